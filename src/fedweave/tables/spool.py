"""The updates of a round as they arrive: a matrix in memory, or in a file without a name where that would be large.

Rows are written by the client's place in its cohort, so that the order of arrival changes no bit. However a run ends,
no file is left behind. It lies in the system's temporary folder, which TMPDIR names.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from fedweave.core.records import Array
from fedweave.core.vectors import LARGE, MappedRows, row_blocks
from fedweave.tables.files import storing
from fedweave.tables.slots import SlotFile


class Spool:
    """A matrix (k, D) that is filled row by row; rows that are never put are zero."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype):
        self._shape, self._dtype, large = shape, dtype, shape[0] * shape[1] > LARGE
        self._file = SlotFile(None, shape[1], dtype) if large else None
        self._held = np.zeros((0, 0) if large else shape, dtype)

    def put(self, rows: Array | slice | int, values: Array) -> None:
        """Write some rows."""
        if self._file is None:
            self._held[rows] = values
            return
        chosen = np.atleast_1d(np.arange(self._shape[0])[rows])
        for row, one in zip(chosen.tolist(), np.atleast_2d(values), strict=True):
            self._file.write(row, np.ascontiguousarray(one, self._dtype))

    def matrix(self) -> Array:
        """Return all rows, once nothing more is put; a file's cannot be written to."""
        if self._file is None:
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
