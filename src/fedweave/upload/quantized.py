"""Quantised updates: a few bits for each entry, right on average (QSGD)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from fedweave.core.records import Array
from fedweave.core.roles import Buffer, Upload
from fedweave.core.settings import BadInput, settings
from fedweave.upload.bits import pack, packed_size, unpack
from fedweave.upload.compressor import Compressor, as_bytes, as_numbers

CHUNK = 1 << 15  # entries that are quantised at a time, so that they stay in the cache


@settings
class Quantized(Compressor, Upload):
    """Every entry is one of 2s + 1 multiples of its bucket's norm over s, s = 2^(bits−1) − 1 (QSGD, Alistarh et al.).

    Q(v_i) = ‖v‖ · sign(v_i) · ξ_i, where ξ_i is |v_i|/‖v‖ rounded to a multiple of 1/s, up or down by chance, so that
    E Q(v) = v (section 3.1). The norm of each ``bucket`` of entries, the last of which may be shorter, travels with
    them. It is the largest magnitude ("max", which the paper's experiments take) or the length ("l2", its theory). For
    both E‖Q(v) − v‖² ≤ min(B/s², √B/s) ‖v‖² with B entries in a bucket (Lemma 3.1, whose proof needs no more than a
    norm between the largest magnitude and the length).

    ``rounding`` "nearest" is not right on average, but never further from v than 0 is. In ``ErrorFeedback`` it is that,
    with the norm "max": the largest entry of each bucket is then sent as it is, so ‖Q(v) − v‖² ≤ (1 − 1/B) ‖v‖².

    Codes have ``bits`` bits each instead of the paper's Elias codes, so that the size is known beforehand.
    """

    bits: Annotated[int, Field(ge=2, le=8)] = 4
    bucket: PositiveInt = 512
    norm: Literal["max", "l2"] = "max"
    rounding: Literal["random", "nearest"] = "random"

    @property
    def levels(self) -> int:
        """Number s of steps from zero to the norm."""
        return 2 ** (self.bits - 1) - 1

    def contraction(self) -> Quantized:
        return replace(self, norm="max", rounding="nearest")

    def compressed_size(self, dim: int, itemsize: int) -> int:
        return itemsize * -(-dim // self.bucket) + packed_size(dim, self.bits)

    def compress(self, values: Array, rng: np.random.Generator) -> bytes:
        norms, codes = np.empty(-(-values.size // self.bucket), values.dtype), np.empty(values.size, np.uint8)
        for buckets, entries in self._chunks(values.size):
            rows = values[entries].reshape(norms[buckets].size, -1)
            norm = self._norms(rows)
            norms[buckets] = norm
            codes[entries] = self._codes(rows, norm, rng).ravel()
        return as_bytes(norms) + pack(codes, self.bits)

    def expand(self, payload: Buffer, out: Array) -> None:
        head, s = out.itemsize * -(-out.size // self.bucket), self.levels
        norms, codes = as_numbers(payload[:head], out.dtype), unpack(payload[head:], out.size, self.bits)
        if codes.max(initial=0) > 2 * s or (norms < 0).any():
            raise BadInput(f"A quantised update has {2 * s + 1} codes and no negative norms. Got others.")
        steps = norms / out.dtype.type(s)
        for buckets, entries in self._chunks(out.size):
            rows = out[entries].reshape(steps[buckets].size, -1)
            np.subtract(codes[entries].reshape(rows.shape), out.dtype.type(s), out=rows, dtype=out.dtype)
            with np.errstate(invalid="ignore"):  # a norm that is not finite stays so
                rows *= steps[buckets, None]

    def _chunks(self, dim: int) -> list[tuple[slice, slice]]:
        """Return some buckets and their entries at a time; the last bucket is alone if it is shorter."""
        whole, each = dim // self.bucket, max(CHUNK // self.bucket, 1)
        found = [slice(i, min(i + each, whole)) for i in range(0, whole, each)]
        chunks = [(b, slice(b.start * self.bucket, b.stop * self.bucket)) for b in found]
        rest = slice(whole, whole + 1), slice(whole * self.bucket, dim)
        return [*chunks, rest] if dim % self.bucket else chunks

    def _norms(self, rows: Array) -> Array:
        """Return the norm of each bucket (n,), no less than its largest magnitude; nan or inf if an entry is."""
        largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
        if self.norm == "max":
            return largest
        squares = np.einsum("nb,nb->n", rows, rows, dtype=np.float64)
        return np.maximum(np.sqrt(squares).astype(rows.dtype), largest)

    def _codes(self, rows: Array, norm: Array, rng: np.random.Generator) -> Array:
        """Return the rounded multiples plus s (n, b) uint8."""
        s, kind = self.levels, rows.dtype.type
        fine = np.isfinite(norm)
        if not fine.all():  # the norm alone says so
            rows, norm = np.where(fine[:, None], rows, kind(0)), np.where(fine, norm, kind(0))
        exact = rows / np.where(norm > 0, norm, kind(1))[:, None]
        exact *= kind(s)
        if self.rounding == "nearest":
            return (np.rint(exact) + kind(s)).astype(np.uint8)
        low = np.floor(exact)
        exact -= low
        up = rng.random(rows.shape, dtype=np.float32) < exact
        low += kind(s)
        return low.astype(np.uint8) + up
