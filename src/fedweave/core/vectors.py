"""Arithmetic on the rows of a matrix of updates, which may lie in a file because it is larger than memory.

A matrix of more than ``LARGE`` entries is read in blocks that follow from its shape alone. So the bits are the same
whether it lies in memory or in a file, and of a file no more than a block is resident: what was read is given back.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedweave.core.records import Array

LARGE = 2**26  # entries: 256 MB of float32
BLOCK = 2**24  # entries of a block of rows, unless a row is longer, and at most of a block of columns
COLUMNS = 2**15  # of a block, so that a file is read in long stretches


class MappedRows(mmap.mmap):
    """A file of rows as memory: pages are read when they are touched."""

    def keep_only(self, matrix: Array, rows: Array) -> Array:
        """Return ``matrix``, which lies here, with all rows but these (k,) bool zero, in another file."""
        raise NotImplementedError

    def release(self) -> None:
        """Give the pages that were read back to the system; they are read again when they are touched."""
        if hasattr(self, "madvise"):  # not on Windows
            self.madvise(mmap.MADV_DONTNEED)


def _mapping(matrix: Array) -> MappedRows | None:
    base = matrix
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, MappedRows) else None


def release(matrix: Array) -> None:
    """Give back what was read of a matrix that lies in a file; without one do nothing."""
    if (mapping := _mapping(matrix)) is not None:
        mapping.release()


def keep_only_rows(matrix: Array, rows: Array) -> Array:
    """Return the matrix with all rows but these (k,) bool zero."""
    if (mapping := _mapping(matrix)) is not None:
        return mapping.keep_only(matrix, rows)
    return np.where(rows[:, None], matrix, matrix.dtype.type(0))


def row_blocks(matrix: Array) -> Iterator[slice]:
    """Yield blocks of rows that together are all, and give back what was read of each."""
    k, size = len(matrix), matrix.size
    step = max(k, 1) if size <= LARGE else max(BLOCK * k // size, 1)
    for begin in range(0, k, step):
        yield slice(begin, min(begin + step, k))
        release(matrix)


def by_rows(function: Callable[[Array], Any], matrix: Array) -> Array:
    """Return what a function finds of each row (k,), computed block by block."""
    if matrix.size <= LARGE:
        return function(matrix)
    return np.concatenate([function(matrix[some]) for some in row_blocks(matrix)])


def squared_lengths(rows: Array) -> Array:
    """Return ‖u_i‖² of every row (k,), in the rows' own precision: all dot products in one call."""
    return by_rows(lambda some: np.matmul(some[:, None, :], some[:, :, None])[:, 0, 0], rows)


def lengths(rows: Array) -> Array:
    """Return ‖u_i‖ of every row (k,), summed pairwise in the rows' own precision."""
    return by_rows(lambda some: np.linalg.norm(some, axis=1), rows)


def all_finite(array: Array) -> bool:
    """Return whether every entry is finite. Their sum is not if one of them is not, and is a third of the work."""
    if array.size < 4096:  # there is no work to save
        return np.count_nonzero(np.isfinite(array)) == array.size
    with np.errstate(over="ignore", invalid="ignore"):
        found = by_rows(lambda some: np.atleast_1d(np.isfinite(np.sum(some)) or np.isfinite(some).all()), array)
    return bool(found.all())


def weighted_sum(weights: Array, rows: Array) -> Array:
    """Return Σ_i weights_i u_i (D,), the weights in the rows' own precision."""
    if rows.size <= LARGE:
        return weights @ rows
    (k, dim), total = rows.shape, np.empty(rows.shape[1], rows.dtype)
    step = max(min(COLUMNS, BLOCK // k), 1)
    for begin in range(0, dim, step):
        np.matmul(weights, rows[:, begin : begin + step], out=total[begin : begin + step])
        release(rows)
    return total
