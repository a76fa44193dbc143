"""A file of slots, each holding one vector that does not change while anything refers to it.

A slot belongs to a ``Place`` and becomes free when the last reference to that place is dropped. A state or a checkpoint
keeps a vector by keeping its place.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.tables.files import open_inside, storing


class SlotFile:
    """Slots of ``dim`` numbers; without a path, an unnamed temporary file that is created when first needed."""

    def __init__(self, path: Path | None, dim: int, dtype: np.dtype, used: Iterable[int] = ()):
        """Open the file; the slots in ``used`` already have places, all others are free."""
        self.path, self.dim, self.dtype = path, dim, dtype
        taken = set(used)
        self._slots = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._slots - 1, -1, -1) if slot not in taken]
        self._lock = threading.Lock()
        self._opened: IO[bytes] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one slot."""
        return self.dim * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.descriptor).st_size

    @property
    def descriptor(self) -> int:
        """The open file, as the system knows it."""
        return self._file.fileno()

    @property
    def _file(self) -> IO[bytes]:
        if self._opened is None:
            with self._lock:
                self._opened = self._opened or self._open()
        return self._opened

    def _open(self) -> IO[bytes]:
        if self.path is None:
            file = tempfile.TemporaryFile(prefix="fedweave-", buffering=0)  # noqa: SIM115 - closed by the finalizer
        else:
            file = open_inside(self.path, "r+b" if os.path.lexists(self.path) else "x+b", buffering=0)
        weakref.finalize(self, file.close)
        return file

    def take(self) -> Place:
        """Reserve a free slot; write it before passing the place on."""
        with self._lock:
            if not self._free:
                self._free.append(self._slots)
                self._slots += 1
            return Place(self, self._free.pop())

    def put(self, stored: Array, scale: float) -> Place:
        """Write one vector to a free slot and return its place."""
        place = self.take()
        place.write(stored, scale)
        return place

    def give_back(self, slot: int) -> None:
        """Free a slot; called when its place is garbage-collected."""
        self._free.append(slot)  # atomic: finalizers run in any thread, between any two statements

    def write(self, slot: int, stored: Array) -> None:
        """Write one vector."""
        view, at = stored.data.cast("B"), slot * self.nbytes
        with storing(self.path, view.nbytes):
            while view.nbytes:
                crash_point("row being written")
                done = self._write(view, at)
                view, at = view[done:], at + done

    def read(self, slot: int, begin: int, out: Array) -> None:
        """Fill ``out`` with the entries of one slot from ``begin`` on."""
        view, at = out.data.cast("B"), slot * self.nbytes + begin * self.dtype.itemsize
        while view.nbytes:
            done = self._read(view, at)
            if not done:
                raise BadInput(f"The table {str(self.path)!r} ends too early: it is damaged.")
            view, at = view[done:], at + done

    # Without positioned reads and writes (Windows) the file position is shared, so a lock serialises access.

    def _write(self, view: memoryview, at: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._file.fileno(), view, at)
        file = self._file
        with self._lock:
            file.seek(at)
            return file.write(view)

    def _read(self, view: memoryview, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], at)
        file = self._file
        with self._lock:
            file.seek(at)
            return file.readinto(view)  # pyright: ignore[reportAttributeAccessIssue]

    def sync(self) -> None:
        """Flush everything written to disk."""
        with storing(self.path):
            crash_point("rows being synced")
            if self._opened is not None:
                os.fsync(self._opened.fileno())


class Place:
    """One slot in use."""

    __slots__ = ("check", "file", "scale", "slot")

    def __init__(self, file: SlotFile, slot: int, scale: float = 1.0, check: int = 0):
        self.file, self.slot = file, slot
        self.scale, self.check = scale, check  # what to multiply the stored numbers by; CRC-32 of their bytes

    def __del__(self) -> None:
        self.file.give_back(self.slot)

    def write(self, stored: Array, scale: float) -> None:
        """Write the vector of this place; call it only once."""
        self.file.write(self.slot, stored)
        self.scale, self.check = scale, zlib.crc32(stored.data)

    def read(self, begin: int, out: Array) -> Array:
        """Fill ``out`` with the stored entries from ``begin`` on."""
        self.file.read(self.slot, begin, out)
        return out

    def is_intact(self, scratch: Array) -> bool:
        """Return whether the file still holds what was written, by its checksum."""
        try:
            return zlib.crc32(self.read(0, scratch).data) == self.check
        except BadInput:
            return False
