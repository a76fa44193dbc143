"""LoRA: a frozen transformer whose layers learn low-rank changes; only these are sent. Run: python examples/lora.py"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import fedweave as fw


class LowRank(nn.Module):
    """Adds up @ down to a weight; ``up`` begins at zero, so the model begins as it was."""

    def __init__(self, rows: int, columns: int, rank: int):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, columns) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def lora(base: Mapping[str, Tensor], data: fw.data.Dataset, rank: int = 4) -> nn.Module:
    """Return the transformer with these values, frozen, and an adapter at every linear layer."""
    net = fw.models.build("transformer", *data.sample)
    net.load_state_dict(base)
    net.requires_grad_(False)
    for layer in [m for m in net.modules() if isinstance(m, nn.Linear)]:
        register_parametrization(layer, "weight", LowRank(*layer.weight.shape, rank))
    return net


def counting(clients: int = 8, modulus: int = 17) -> fw.data.Dataset:
    """Return sequences of numbers, one kind for each client: client k counts in steps of k + 1, around the end."""
    who, start = np.divmod(np.arange(clients * modulus * 4), modulus * 4)
    text = (start[:, None] + np.arange(9) * (who[:, None] + 1)) % modulus
    return fw.data.from_arrays(text[:, :-1], text[:, 1:], group=who, classes=modulus)


def main(rounds: int = 10) -> None:
    """Train a transformer for a while, then go on with adapters alone. For real text: fw.data.load("shakespeare")."""
    data = counting()
    whole = fw.Experiment("fedavg", data, model="transformer", rounds=rounds, steps=10, lr=0.1)
    base = fw.run(whole).state_dict()
    adapted = fw.Experiment("fedavg", data, model=partial(lora, base, data), rounds=rounds, steps=10, lr=0.1)
    for name, experiment in (("all weights", replace(whole, start=base)), ("adapters", adapted)):
        found = fw.run(experiment).summary
        print(f"{name:<12} perplexity {found['value']:.2f}  {found['bytes_up']:,} bytes up")


if __name__ == "__main__":
    main()
