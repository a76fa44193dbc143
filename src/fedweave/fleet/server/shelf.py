"""Answers that wait until their round ends: in memory, and where that would be much in a file without a name."""

from __future__ import annotations

import os
import tempfile
from typing import IO

from flwr.app import Array as Packed
from flwr.app import ArrayRecord, Message

from fedweave.fleet.wire.tensors import records_of
from fedweave.tables.files import storing

HELD = 2**28  # bytes of arrays that are held in memory


class Shelf:
    """One answer of each client, and after how many seconds it came."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[Message, float]] = {}
        self._stored: dict[int, list[tuple[Packed, int, int]]] = {}  # arrays whose data is in the file, and where
        self._held = 0
        self._file: IO[bytes] | None = None

    def __contains__(self, client: int) -> bool:
        return client in self._answers

    def put(self, client: int, answer: Message, seconds: float) -> None:
        """Keep an answer."""
        records = records_of(answer.content, ArrayRecord) if answer.has_content() else {}
        arrays = [array for record in records.values() for array in record.values()]
        size = sum(len(array.data) for array in arrays)
        if self._held + size > HELD:
            self._stored[client] = [self._store(array) for array in arrays]
        else:
            self._held += size
        self._answers[client] = answer, seconds

    def look(self, client: int) -> tuple[bool, float] | None:
        """Return whether a client has answered with an error and after how many seconds; None: it has not answered."""
        found = self._answers.get(client)
        return None if found is None else (found[0].has_error(), found[1])

    def take(self, client: int) -> tuple[Message, float] | None:
        """Return an answer and forget it."""
        for array, begin, size in self._stored.pop(client, ()):
            self._open().seek(begin)
            array.data = self._open().read(size)
        found = self._answers.pop(client, None)
        if not self._answers:
            self._held, self._file = 0, None
        return found

    def _store(self, array: Packed) -> tuple[Packed, int, int]:
        file, size = self._open(), len(array.data)
        begin = file.seek(0, os.SEEK_END)
        with storing(None, size):
            file.write(array.data)
        array.data = b""
        return array, begin, size

    def _open(self) -> IO[bytes]:
        if self._file is None:
            with storing(None):
                self._file = tempfile.TemporaryFile(prefix="fedweave-")  # noqa: SIM115 - goes with the shelf
        return self._file
