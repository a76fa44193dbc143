"""Messages between the main process and a worker: large arrays go through shared memory, the rest through a pipe."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from fedweave.core.records import Array

LARGE = 2**14  # bytes of an array; the pipe is as fast for smaller ones
KEPT = 2**26  # bytes of memory that are kept for the next message

Packed = tuple[bytes, list[memoryview]]  # a pickle, and the large arrays that were taken out of it
Received = tuple[bytes, list[Array]]


def pack(value: Any, dumps: Callable[..., bytes] = pickle.dumps) -> Packed:
    """Return a message for any mailbox, pickled by ``dumps``."""
    large: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        """Take a large array out of the message, and return whether it stays in it."""
        content = buffer.raw()
        if content.nbytes < LARGE:
            return True
        large.append(content)
        return False

    return dumps(value, protocol=5, buffer_callback=stays), large


def _write(file: int, contents: list[memoryview]) -> None:
    """Write contents one after another to the memory that is this file."""
    begin = 0
    if os.fstat(file).st_size < (size := sum(content.nbytes for content in contents)):
        os.ftruncate(file, size)
    for content in contents:
        end = begin + content.nbytes
        while begin < end:  # the system copies at most 2 GB at a time
            begin += os.pwrite(file, content[begin - end :], begin)


class Mailbox:
    """One end of a pipe. The ends take turns: whoever has sent a message reads the answer before the next.

    So both can use the same memory, a file without a name, where the system has such files.
    """

    def __init__(self, link: Any, shared: int | None):
        """Use this pipe, and the memory at a descriptor, if there is any."""
        self.link, self._shared, self._new = link, shared, False
        self.fileno = link.fileno  # to wait for it

    @classmethod
    def opened(cls, link: Any) -> Mailbox:
        """Return this end, which hands its memory to the other one with its first message."""
        shared = None
        with suppress(AttributeError, OSError):  # some systems have no such files, or do not allow them
            shared = os.memfd_create("fedweave")
        mail = cls(link, shared)
        mail._new = True
        return mail

    @classmethod
    def joined(cls, link: Any) -> Mailbox:
        """Return the other end, which shares the memory of the first."""
        return cls(link, recv_handle(link) if link.recv() else None)

    def send(self, value: Any) -> None:
        """Send something."""
        self.post(pack(value))

    def post(self, message: Packed) -> None:
        """Send what was packed."""
        if self._new:
            self.link.send(self._shared is not None)
            if self._shared is not None:
                send_handle(self.link, self._shared, None)
            self._new = False
        head, large = message
        if self._shared is not None:
            _write(self._shared, large)
        self.link.send(([content.nbytes for content in large], head))
        if self._shared is None:
            for content in large:
                self.link.send_bytes(content)

    def receive(self) -> Received:
        """Return what the other end sent: the pickle, and copies of the contents that were taken out of it."""
        sizes, head = self.link.recv()
        contents, begin = [np.empty(size, np.uint8) for size in sizes], 0
        for content in contents:
            if self._shared is None:
                self.link.recv_bytes_into(content.data)
                continue
            end = begin + content.nbytes
            while begin < end:
                begin += os.preadv(self._shared, [content[begin - end :].data], begin)
        if self._shared is not None and begin > KEPT:
            os.ftruncate(self._shared, 0)
        return head, contents

    def close(self) -> None:
        """Close the pipe, so that the other end ends, and forget the memory."""
        self.link.close()
        self._forget()

    def _forget(self) -> None:
        if self._shared is not None:
            os.close(self._shared)
        self._shared = None
