"""The channels of a model: what is sent together or not at all.

A channel is what makes one output of a layer: the row of its weight (all inputs), the entry of its bias, and of the
normalisation behind it scale, shift and running averages. The weights by which the *next* layer reads this output
belong to that layer's own channels: they are sent with those, whether this channel is sent or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from fedweave.core.records import Array, Layout


@dataclass(frozen=True)
class Tensor:
    """One tensor of the flat vector, and whose channels its rows belong to."""

    begin: int  # in the flat vector
    rows: int
    fan: int  # entries per row
    layer: int
    weighs: bool  # whether it counts when channels are compared: weights do, biases and norms go along

    @property
    def end(self) -> int:
        """Where it ends in the flat vector."""
        return self.begin + self.rows * self.fan

    def of(self, vectors: Array) -> Array:
        """Return the tensor (…, rows, fan) of flat vectors (…, D), as a view."""
        return vectors[..., self.begin : self.end].reshape(*vectors.shape[:-1], self.rows, self.fan)


@dataclass(frozen=True)
class Channels:
    """The layers of a model and the channels in them; channels are numbered layer after layer."""

    tensors: tuple[Tensor, ...]
    widths: tuple[int, ...]  # channels of each layer

    @property
    def count(self) -> int:
        """Number of channels G."""
        return sum(self.widths)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The first channel of each layer."""
        return tuple(int(n) for n in np.cumsum((0, *self.widths[:-1])))

    @cached_property
    def entries(self) -> Array:
        """(G,) entries of each channel."""
        size = np.zeros(self.count, np.int64)
        for t in self.tensors:
            size[self.rows(t)] += t.fan
        return size

    @property
    def dim(self) -> int:
        """Length D of the flat vector."""
        return self.tensors[-1].end

    def rows(self, tensor: Tensor) -> slice:
        """Return the channels that the rows of a tensor belong to."""
        first = self.firsts[tensor.layer]
        return slice(first, first + tensor.rows)

    def spread(self, kept: Array) -> Array:
        """Return the entries (…, D) of the channels ``kept`` (…, G)."""
        out = np.empty((*kept.shape[:-1], self.dim), kept.dtype)
        for t in self.tensors:
            t.of(out)[...] = kept[..., self.rows(t), None]
        return out


@lru_cache(maxsize=32)
def channels_of(layout: Layout) -> Channels:
    """Return the channels of a model.

    A tensor of two or more dimensions begins a layer, whose outputs are its first dimension. Vectors of that length
    behind it are its bias or a normalisation of its outputs; running averages, which come last in a layout, follow the
    tensors of their own module. Whatever else there is has a channel per entry.
    """
    tensors: list[Tensor] = []
    widths: list[int] = []
    owners: dict[str, int] = {}  # module -> layer
    begin, last = 0, -1
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        module, size = name.rpartition(".")[0], prod(shape)
        if len(shape) >= 2:
            layer, weighs = len(widths), True
            widths.append(shape[0])
            last = layer
        elif len(shape) == 1 and owners.get(module) is not None and widths[owners[module]] == size:
            layer, weighs = owners[module], False
        elif len(shape) == 1 and last >= 0 and widths[last] == size and module not in owners:
            layer, weighs = last, False
        else:
            layer, weighs = len(widths), True
            widths.append(size)
        owners.setdefault(module, layer)
        rows = widths[layer]
        tensors.append(Tensor(begin, rows, size // max(rows, 1), layer, weighs))
        begin += size
    return Channels(tuple(tensors), tuple(widths))
