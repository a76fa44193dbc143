"""An immutable table with one vector per client; successive states share the rows that did not change.

``replaced`` returns a new table that shares the untouched rows with the old one. A row is freed when no table refers to
it any more, so an older state stays available at no cost. Rows that were never written are zero and take no space.
Products read the table once, in pieces of fixed size spread over the cores; pieces are summed in a fixed order, so the
bits do not depend on the number of cores.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar, cast

import numpy as np

from fedweave.core.records import Array
from fedweave.tables.slots import Place, SlotFile

Precision = Literal["float64", "float32", "float16", "bfloat16"]
Where = Literal["ram", "disk"]

STORED: dict[str, np.dtype] = {  # bfloat16 is the upper half of a float32
    name: np.dtype("uint16" if name == "bfloat16" else name) for name in ("float64", "float32", "float16", "bfloat16")
}
COLUMNS, BLOCK = 2**15, 128  # one piece: 16 MB of float32 per core, with long contiguous reads from disk
WORTHWHILE = 2**20  # entries below which threads cost more than they save

S = TypeVar("S")
T = TypeVar("T")


class Held:
    """One row in memory, with the place of its copy in the run folder once it is saved."""

    __slots__ = ("kept", "scale", "stored")

    def __init__(self, stored: Array, scale: float, kept: Place | None = None):
        self.stored, self.scale, self.kept = stored, scale, kept


class Rows:
    """A table of N rows; ``rows[ids]`` returns copies, as float32 whatever the stored precision."""

    __slots__ = ("_file", "_rows", "_written", "dim", "precision", "where")
    precision: Precision
    where: Where

    def __init__(
        self, rows: Sequence[Held | Place | None], dim: int, precision: Precision, where: Where, file: SlotFile | None
    ):
        """Wrap stored rows; use ``Rows.zeros`` to create a table. ``file`` takes the new rows of a table on disk."""
        self._rows, self.dim, self.precision, self.where, self._file = rows, dim, precision, where, file
        self._written: Array | None = None

    @classmethod
    def zeros(cls, n: int, dim: int, dtype: Precision = "float32", where: Where = "ram") -> Rows:
        """Return a table of zeros, which takes no space yet.

        "float16" rows are scaled by a power of two so that their largest entry fits. "float64" is for exact worlds
        (quadratics) and is returned as float64.
        """
        return cls([None] * n, dim, dtype, where, SlotFile(None, dim, STORED[dtype]) if where == "disk" else None)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return len(self._rows), self.dim

    @property
    def rows(self) -> Sequence[Held | Place | None]:
        """The rows as stored, None where never written; used by the run folder."""
        return self._rows

    @property
    def written(self) -> Array:
        """(N,) bool: which rows were ever written; the others are zero."""
        if self._written is None:
            self._written = np.array([row is not None for row in self._rows], bool)
            self._written.flags.writeable = False
        return self._written

    @property
    def stored(self) -> np.dtype:
        """The type of the numbers in memory or on disk."""
        return STORED[self.precision]

    @property
    def out(self) -> np.dtype:
        """The type of the numbers returned."""
        return np.dtype(np.float64 if self.precision == "float64" else np.float32)

    def __repr__(self) -> str:
        n, dim = self.shape
        return f"Rows({n} × {dim}, {self.precision}, {self.where}, {int(self.written.sum())} written)"

    def __getitem__(self, ids: Array) -> Array:
        """Return a copy of these rows (k, D)."""
        chosen = self._chosen(ids)
        out = np.empty((len(chosen), self.dim), self.out)

        def fill(piece: slice) -> None:
            self._fill(chosen[piece], 0, out[piece])

        _exhaust(_in_order(fill, _pieces(len(chosen), 1 if out.size >= WORTHWHILE else BLOCK), out.size))
        return out

    # New tables

    def replaced(self, ids: Array, values: Array) -> Rows:
        """Return the table with these rows replaced; this one stays as it is."""
        return self._with(ids, values, lambda k: np.asarray(values[k], self.out))

    def only(self, ids: Array) -> Rows:
        """Return the table in which none but these rows are written, kept where this one is."""
        rows: list[Held | Place | None] = [None] * len(self._rows)
        for i in np.asarray(ids).tolist():
            rows[i] = self._rows[i]
        return Rows(rows, self.dim, self.precision, self.where, self._file)

    def grown(self, n: int) -> Rows:
        """Return the table with room for n clients, of whom those who came later have no row yet."""
        return Rows([*self._rows, *[None] * (n - len(self._rows))], self.dim, self.precision, self.where, self._file)

    def mixed(self, ids: Array, alpha: float | Array, values: Array) -> Rows:
        """Return the table with α·row + (1 − α)·value in these rows; α may differ from row to row."""
        keep = np.broadcast_to(np.asarray(alpha, float), np.shape(ids)).astype(self.out)

        def mix(k: int) -> Array:
            old = self[ids[k : k + 1]][0]
            old *= keep[k]
            old += (1 - keep[k]) * np.asarray(values[k], self.out)
            return old

        return self._with(ids, values, mix)

    def _with(self, ids: Array, values: Array, make: Callable[[int], Array]) -> Rows:
        ids, n = np.asarray(ids), len(self._rows)
        if np.shape(values) != (ids.size, self.dim):
            raise ValueError(f"Rows of shape {(ids.size, self.dim)} are needed for {ids.size} ids. Got {values.shape}.")
        ascending = (
            ids if (ids[1:] > ids[:-1]).all() else np.unique(ids)
        )  # cohorts are sorted; np.unique is slow for few ids
        if ids.size and (ascending[0] < 0 or ascending[-1] >= n or ascending.size < ids.size):
            raise ValueError(f"The ids of rows must be distinct and in 0 … {n - 1}. Got {ids}.")
        if values.size < WORTHWHILE:  # larger arrays are converted row by row, to avoid a second copy of everything
            values = np.asarray(values, self.out)
        places = [self._file.take() if self._file else None for _ in ids]

        def new(k: int) -> Held | Place:
            stored, scale = encode(np.ascontiguousarray(make(k)), self.precision)
            place = places[k]
            if place is None:
                return Held(stored.copy() if np.may_share_memory(stored, values) else stored, scale)
            place.write(stored, scale)
            return place

        rows = list(self._rows)
        for i, row in zip(ids, _in_order(new, range(ids.size), ids.size * self.dim), strict=True):
            rows[i] = row
        return Rows(rows, self.dim, self.precision, self.where, self._file)

    # Memory and disk

    def moved(self, file: SlotFile | None) -> Rows:
        """Return the same table in ``file``, or in memory without one; a table already in ``file`` is not copied."""
        if file is self._file:
            return self
        held = (self._held(row) for row in self._rows)  # one at a time: a table can be larger than memory
        rows = list(held) if file is None else [row and file.put(row.stored, row.scale) for row in held]
        return Rows(rows, self.dim, self.precision, "disk" if file else "ram", file)

    def _held(self, row: Held | Place | None) -> Held | None:
        if isinstance(row, Place):
            return Held(row.read(0, np.empty(self.dim, self.stored)), row.scale, row)
        return row

    def keep(self, file: SlotFile) -> None:
        """Write to ``file`` the rows in memory that it does not have yet."""
        for row in self._rows:
            if isinstance(row, Held) and (row.kept is None or row.kept.file is not file):
                row.kept = file.put(row.stored, row.scale)

    # Algebra

    def dot(self, U: Array) -> Array:
        """Return U @ table.T (k, N) in float64, reading the table once; each piece is multiplied in float32."""
        U = np.asarray(U, self.out)
        return self._products(lambda columns: U[:, columns], U.shape[0])

    def gram(self, ids: Array) -> Array:
        """Return table[ids] @ table.T (k, N) in float64, without copying the rows."""
        chosen = self._chosen(ids)

        def left(columns: slice) -> Array:
            piece = np.empty((len(chosen), columns.stop - columns.start), self.out)
            self._fill(chosen, columns.start, piece)
            return piece

        return self._products(left, len(chosen))

    def combine(self, weights: Array) -> Array:
        """Return weights @ table (D,); rows of weight zero are not read."""
        w = np.asarray(weights)
        ids = np.flatnonzero((w != 0) & self.written)
        chosen, w = self._chosen(ids), w[ids].astype(self.out)
        out = np.zeros(self.dim, self.out)

        def add(columns: slice, buffer: Array) -> None:
            total = np.zeros(columns.stop - columns.start)
            for block in _pieces(len(chosen), BLOCK):
                total += w[block] @ self._load(chosen[block], columns, buffer)
            out[columns] = total

        _exhaust(self._over_columns(add, len(chosen)))
        return out

    def _products(self, left: Callable[[slice], Array], k: int) -> Array:
        ids = np.flatnonzero(self.written)
        chosen, out = self._chosen(ids), np.zeros((k, len(self._rows)))

        def product(columns: slice, buffer: Array) -> Array:
            U = left(columns)
            part = np.empty((k, ids.size), self.out)
            for block in _pieces(ids.size, BLOCK):
                part[:, block] = U @ self._load(chosen[block], columns, buffer).T
            return part

        for part in self._over_columns(product, ids.size):
            out[:, ids] += part
        return out

    def _over_columns(self, work: Callable[[slice, Array], T], rows: int) -> Iterator[T]:
        """Apply ``work`` to every range of columns, each with its own buffer, and yield the results in order."""
        size, buffers = min(BLOCK, rows) * min(COLUMNS, self.dim), SimpleQueue[Array]()

        def work_with_buffer(columns: slice) -> T:
            try:
                buffer = buffers.get_nowait()
            except Empty:
                buffer = np.empty(size, self.out)
            result = work(columns, buffer)
            buffers.put(buffer)
            return result

        return _in_order(work_with_buffer, _pieces(self.dim, COLUMNS), rows * self.dim)

    def _chosen(self, ids: Array) -> list[Held | Place | None]:
        return [self._rows[i] for i in np.asarray(ids).tolist()]

    def _load(self, rows: Sequence[Held | Place | None], columns: slice, buffer: Array) -> Array:
        """Load these columns of the rows into the buffer and return them."""
        shape = len(rows), columns.stop - columns.start
        block = buffer[: shape[0] * shape[1]].reshape(shape)
        self._fill(rows, columns.start, block)
        return block

    def _fill(self, rows: Sequence[Held | Place | None], begin: int, out: Array) -> None:
        """Fill ``out`` with the rows' entries from ``begin`` on."""
        end, raw = begin + out.shape[1], out.view(np.uint32) if self.precision == "bfloat16" else out
        if self.where == "ram":
            zero = np.zeros(end - begin, self.stored)
            lines = [zero if row is None else row.stored[begin:end] for row in cast("Sequence[Held | None]", rows)]
            np.concatenate([*lines, zero[:0]], out=raw.reshape(-1))  # the empty array allows a table without rows
        else:
            scratch = out if self.stored == self.out else np.empty(out.shape, self.stored)
            for row, line in zip(cast("Sequence[Place | None]", rows), scratch, strict=True):
                if row is None:
                    line[:] = 0
                else:
                    row.read(begin, line)
            if scratch is not out:
                raw[...] = scratch
        if self.precision == "bfloat16":
            np.left_shift(raw, 16, out=raw)
        elif self.precision == "float16":
            out *= np.array([row.scale if row else 1 for row in rows], self.out)[:, None]


def encode(row: Array, precision: Precision) -> tuple[Array, float]:
    """Return a float32 row as stored, and the power of two that it was divided by (1 unless float16)."""
    if precision == "float16":
        top = float(np.abs(row).max(initial=0.0))
        power = max(int(np.frexp(top)[1]) - 15, -126) if 0 < top < np.inf else 0  # the largest entry in [2¹⁴, 2¹⁵]
        return (row * np.float32(2.0**-power)).astype(np.float16), 2.0**power
    if precision == "bfloat16":  # to the nearest, ties to even
        bits = row.view(np.uint32)
        near = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
        return np.where(np.isnan(row), np.uint32(0x7FC0), near).astype(np.uint16), 1.0
    return row, 1.0


def _pieces(total: int, size: int) -> list[slice]:
    """Cut 0 … total into slices of equal size; the last one may be smaller."""
    return [slice(i, min(i + size, total)) for i in range(0, total, size)]


def _in_order(work: Callable[[S], T], items: Sequence[S], entries: int) -> Iterator[T]:
    """Yield work(item) in order, computed by one thread per core; only a few results are held ahead."""
    if entries < WORTHWHILE or len(items) < 2:
        yield from map(work, items)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores, len(items))
    with ThreadPoolExecutor(threads) as pool:
        ahead = deque[Callable[[], T]]()
        for item in items:
            try:
                ahead.append(pool.submit(copy_context().run, work, item).result)  # keeps np.errstate
            except RuntimeError:  # a run in another thread, after the main one has ended: no pool takes work any more
                ahead.append(partial(work, item))
            if len(ahead) > threads:
                yield ahead.popleft()()
        while ahead:
            yield ahead.popleft()()


def _exhaust(results: Iterator[Any]) -> None:
    for _ in results:
        pass
