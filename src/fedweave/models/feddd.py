"""FedDD's sub-models (Tables 3 and 6): each owns the first channels of every layer of sub-model 1.

The printed tables are corrected where they cannot be built or print two sub-models alike:
- Table 3 prints sub-models 4 and 5 alike. Sub-model 5 narrows the second convolution to 96, as in Table 6.
- Table 6 prints sub-model 2 as Conv(256, 512), Conv(256, 256). Its fifth convolution is Conv(512, 256).
- Table 6 ends sub-models 2-5 in 256 channels before FC(512, ·). The first linear layer takes 256.
- Padding is not printed. It is 1: only then do five poolings reduce 32×32 to 1×1.
"""

from __future__ import annotations

from torch import nn

from fedweave.models import SUBMODELS, Shape
from fedweave.models.layers import chain, dense, stages


def submodel(family: str, number: int, shape: Shape, classes: int) -> nn.Module:
    """Sub-model ``number`` (1 is the full model) of family ``feddd_a`` (Table 3) or ``feddd_b`` (Table 6)."""
    channels, hidden = ([int(w) for w in part.split("-")] for part in SUBMODELS[family][number - 1].split("/"))
    layers, out = stages(shape, channels, kernel=3, padding=1)
    return chain([*layers, *dense(out, [*hidden, classes])])
