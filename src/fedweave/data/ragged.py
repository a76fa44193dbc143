"""Arrays of different lengths in one array: a million clients' positions without a million objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index as whole_number
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

AT_A_TIME = 2**22  # numbers that are copied to be summed up


@dataclass(frozen=True, eq=False)
class Ragged(Sequence[Array]):
    """A sequence of arrays of whole numbers, one for each client; each is a view, made when it is asked for."""

    values: Array  # (n,) int64, all arrays one behind the other
    offsets: Array  # (N + 1,) int64: array i is values[offsets[i]:offsets[i + 1]]

    @classmethod
    def of(cls, parts: Sequence[Array]) -> Ragged:
        """Return a sequence of arrays in this form; one that has it already stays as it is."""
        if isinstance(parts, Ragged):
            return parts
        if isinstance(parts, Lazy):
            return parts.made
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls.cut(np.concatenate([np.empty(0, np.int64), *parts], dtype=np.int64, casting="same_kind"), sizes)

    @classmethod
    def cut(cls, values: Array, sizes: Array) -> Ragged:
        """Return ``values`` (n,) cut into arrays of these sizes, which sum to n."""
        return cls(values, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    @cached_property
    def sizes(self) -> Array:
        """(N,) how many numbers each array has."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Array:
        """(n,) to which array each of the values belongs."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def means(self, rows: Array) -> Array:
        """Return the mean (N, …) of the rows at each array's numbers, in double precision."""
        found, width = np.full((len(self), *rows.shape[1:]), np.nan), rows[:1].size
        for size in np.unique(self.sizes[self.sizes > 0]):  # arrays of one length together
            alike = np.flatnonzero(self.sizes == size)
            for some in np.array_split(alike, -(-alike.size * int(size) * width // AT_A_TIME)):
                where = self.values[self.offsets[some, None] + np.arange(size)]
                found[some] = rows[where].mean(1, dtype=float)
        return found

    def __len__(self) -> int:
        return self.offsets.size - 1

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | slice) -> Array | Ragged:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return Ragged.of([self[i] for i in range(start, stop, step)])
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        i = whole_number(index)
        i += len(self) if i < 0 else 0
        if not 0 <= i < len(self):
            raise IndexError(f"client {index} of {len(self)}")
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} arrays, {self.values.size} numbers)"


class Lazy(Sequence[Array]):
    """A sequence of arrays that is computed when the first of them is read."""

    def __init__(self, length: int, make: Callable[[], Ragged]):
        self._length, self._make = length, make

    @cached_property
    def made(self) -> Ragged:
        """The arrays."""
        return self._make()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | slice) -> Array | Ragged:
        return self.made[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.made.values, self.made.offsets)
