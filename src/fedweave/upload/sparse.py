"""Sparse updates: the largest entries, or random ones; the others count as zero."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.roles import Buffer, Upload
from fedweave.core.settings import settings
from fedweave.upload.bits import pack_positions, positions_size, unpack_positions
from fedweave.upload.compressor import Compressor, as_bytes, as_numbers
from fedweave.upload.quantized import Quantized

Share = Annotated[float, Field(gt=0, le=1)]
SEED = 8  # bytes


class _Sparse(Compressor):
    """Some values, then where they belong."""

    share: Share
    values: Quantized | None
    sparse: ClassVar[bool] = True

    def count(self, dim: int) -> int:
        """Return how many of ``dim`` entries are sent: the nearest whole number to their share, one at least."""
        return min(max(1, round(self.share * dim)), dim)

    @abstractmethod
    def places_size(self, dim: int) -> int:
        """Return the bytes that say where the values belong."""

    def compressed_size(self, dim: int, itemsize: int) -> int:
        return self._values_size(self.count(dim), itemsize) + self.places_size(dim)

    def _values_size(self, count: int, itemsize: int) -> int:
        return count * itemsize if self.values is None else self.values.compressed_size(count, itemsize)

    def _pack_values(self, values: Array, rng: np.random.Generator) -> bytes:
        return as_bytes(values) if self.values is None else self.values.compress(values, rng)

    def _unpack_values(self, payload: Buffer, count: int, dtype: np.dtype) -> Array:
        if self.values is None:
            return as_numbers(payload, dtype)
        found = np.zeros(count, dtype)
        self.values.expand(payload, found)
        return found

    def _contracted(self) -> Quantized | None:
        return None if self.values is None else self.values.contraction()


@settings
class TopK(_Sparse, Upload):
    """The share of the entries that is largest in magnitude; of equal ones the first.

    What it leaves out is at most (1 − k/d) ‖u‖² (Stich et al., Sparsified SGD with memory), but always the same small
    entries: alone it does not lead to the optimum, in ``ErrorFeedback`` it does. With ``values=Quantized(4)`` the
    values travel quantised.
    """

    share: Share = 0.01
    values: Quantized | None = None

    def contraction(self) -> TopK:
        return replace(self, values=self._contracted())

    def places_size(self, dim: int) -> int:
        return positions_size(dim, self.count(dim))

    def compress(self, values: Array, rng: np.random.Generator) -> bytes:
        where = largest(values, self.count(values.size))
        return self._pack_values(values[where], rng) + pack_positions(where, values.size)

    def expand(self, payload: Buffer, out: Array) -> None:
        k = self.count(out.size)
        head = self._values_size(k, out.itemsize)
        where = unpack_positions(payload[head:], out.size, k)
        out[where] = self._unpack_values(payload[:head], k, out.dtype)


@settings
class RandomK(_Sparse, Upload):
    """A share of the entries, drawn anew each time and multiplied by d/k, so that E Q(u) = u.

    E‖Q(u) − u‖² = (d/k − 1) ‖u‖². The entries follow from a seed of eight bytes, drawn at the client's address, and
    are not sent (``random_positions``). With ``values=Quantized(4)`` the values travel quantised. Without ``unbiased``,
    and in ``ErrorFeedback``, they are not multiplied, and E‖Q(u) − u‖² = (1 − k/d) ‖u‖².
    """

    share: Share = 0.1
    values: Quantized | None = None
    unbiased: bool = True

    def contraction(self) -> RandomK:
        return replace(self, values=self._contracted(), unbiased=False)

    def places_size(self, dim: int) -> int:
        return SEED

    def compress(self, values: Array, rng: np.random.Generator) -> bytes:
        k, seed = self.count(values.size), int(rng.bit_generator.random_raw())
        sent = values[random_positions(seed, values.size, k)]
        if self.unbiased:
            with np.errstate(over="ignore"):
                sent *= values.dtype.type(values.size / k)
        if not np.isfinite(values).all():  # admission must see it, whatever was drawn
            sent[:] = np.nan
        return self._pack_values(sent, rng) + seed.to_bytes(SEED, "little")

    def expand(self, payload: Buffer, out: Array) -> None:
        k, head = self.count(out.size), len(payload) - SEED
        values = self._unpack_values(payload[:head], k, out.dtype)
        out[random_positions(int.from_bytes(payload[head:], "little"), out.size, k)] = values


def largest(values: Array, count: int) -> Array:
    """Return where the ``count`` values of largest magnitude are (count,), increasing; of equal ones the first.

    Magnitudes are compared by their bits, of which those of nan are the largest, so that it is always among them.
    """
    kind = np.dtype(f"u{values.itemsize}").type
    magnitude = values.view(kind) & kind(np.iinfo(kind).max >> 1)
    least = np.partition(magnitude, values.size - count)[values.size - count]
    chosen = magnitude > least
    missing = count - np.count_nonzero(chosen)
    chosen[np.flatnonzero(magnitude == least)[:missing]] = True
    return np.flatnonzero(chosen)


def random_positions(seed: int, dim: int, count: int) -> Array:
    """Return ``count`` of ``dim`` positions (count,), increasing, every such set equally likely.

    They follow from the raw output of Philox with the seed as its key, which is the same in every version of NumPy:
    each position gets a byte, those with the smallest bytes are taken, and among those with the byte at which there
    would be too many the rest is drawn in the same way. Words of 64 bits give eight bytes, the lowest first; each draw
    begins with a new word.
    """
    return np.flatnonzero(_draw(rng_for(seed, 0, Stream.UPLOAD).bit_generator, dim, count))


def _draw(source: np.random.BitGenerator, dim: int, count: int) -> Array:
    """Return which positions are drawn (dim,) bool."""
    keys = source.random_raw(-(-dim // 8)).astype("<u8", copy=False).view(np.uint8)[:dim]
    up_to = np.bincount(keys, minlength=256).cumsum()  # positions with a byte of at most this
    last = int(np.searchsorted(up_to, count, side="right"))  # the byte at which there would be too many
    if last == 256:  # all of them
        return np.ones(dim, bool)
    drawn, missing = keys < last, count - (int(up_to[last - 1]) if last else 0)
    if missing:
        equal = np.flatnonzero(keys == last)
        drawn[equal[_draw(source, equal.size, missing)]] = True
    return drawn
