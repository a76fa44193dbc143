"""The updates of a round as they arrive: a matrix in memory, or in a file without a name where that would be large.

Rows are written by the client's place in its cohort, so that the order of arrival changes no bit. However a run ends,
no file is left behind. It lies in the system's temporary folder, which TMPDIR names.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref

import numpy as np

from fedweave.core.records import Array
from fedweave.core.vectors import LARGE, MappedRows, row_blocks
from fedweave.tables.files import storing
from fedweave.tables.slots import SlotFile


class Memory:
    """Memory for one matrix after another: it is used again once nobody holds the one before, nor a view of it."""

    def __init__(self) -> None:
        self._free: list[Array] = []

    def matrix(self, shape: tuple[int, int], dtype: np.dtype) -> tuple[Array, bool]:
        """Return a matrix, and whether it holds what an earlier one held; a new one is zero."""
        size = math.prod(shape) * dtype.itemsize
        found = next((place for place, memory in enumerate(self._free) if memory.size == size), None)
        memory = np.zeros(size, np.uint8) if found is None else self._free[found]
        self._free.clear()  # what does not fit any longer is given back
        whole = np.frombuffer(memory.data, dtype)  # every view of the matrix refers to this one
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole.reshape(shape), found is not None


class Spool:
    """A matrix (k, D) that is filled row by row; rows that are never put are zero."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype, memory: Memory | None = None):
        """Begin a matrix; with ``memory`` in that of an earlier one, where it is free and the matrix is no file."""
        self._shape, self._dtype, large = shape, dtype, shape[0] * shape[1] > LARGE
        self._file = SlotFile(None, shape[1], dtype) if large else None
        self._held, used = (memory or Memory()).matrix((0, 0) if large else shape, dtype)
        self._unfit = np.full(shape[0], used)  # rows in memory that hold something else
        self._row = np.empty(shape[1] if large else 0, dtype)

    def put(self, rows: Array | slice | int, values: Array) -> None:
        """Write some rows."""
        if self._file is None:
            self._held[rows] = values
            self._unfit[rows] = False
            return
        chosen = np.atleast_1d(np.arange(self._shape[0])[rows])
        for row, one in zip(chosen.tolist(), np.atleast_2d(values), strict=True):
            self._file.write(row, np.ascontiguousarray(one, self._dtype))

    def begin(self, row: int) -> Array:
        """Return where a row (D,) is written without a copy; it counts after ``end``, to be called before the next."""
        self._unfit[row] = True
        return self._held[row] if self._file is None else self._row

    def end(self, row: int) -> None:
        """Take in what was written since ``begin``."""
        self._unfit[row] = False
        if self._file is not None:
            self._file.write(row, self._row)

    def matrix(self) -> Array:
        """Return all rows, once nothing more is put; a file's cannot be written to."""
        if self._file is None:
            self._held[self._unfit] = 0
            return self._held
        size = self._shape[0] * self._file.nbytes
        with storing(None, size):
            os.truncate(self._file.descriptor, size)  # what was never written takes no room
            content = _Spooled(self._file.descriptor, size, access=mmap.ACCESS_READ)
        return np.frombuffer(content, self._dtype).reshape(self._shape)


class _Spooled(MappedRows):
    def keep_only(self, matrix: Array, rows: Array) -> Array:
        kept = Spool((matrix.shape[0], matrix.shape[1]), matrix.dtype)
        for some in row_blocks(matrix):
            chosen = np.arange(some.start, some.stop)[rows[some]]
            kept.put(chosen, matrix[chosen])
        return kept.matrix()
