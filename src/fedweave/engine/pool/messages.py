"""Messages between the main process and its workers: pickles through a pipe, and large arrays beside them.

Large arrays lie in a file in memory, without a name, whose descriptor follows the message. Nothing is copied into or
out of a pickle, one copy serves all workers that are sent it, and it is freed with the last array that was received.
However a process ends, nothing is left. Where the system has no such files, everything goes through the pipe.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any, NamedTuple

from fedweave.engine.pool.shared_data import ALIGNMENT
from fedweave.tables.files import storing

# Bytes of an array that goes beside the pickle; for smaller ones a pipe is faster (benchmarks/messages.py).
LARGE = 2**20 if sys.platform == "linux" else sys.maxsize
BESIDE = b"\0"  # begins a message with arrays beside it; pickles begin otherwise

Dumps = Callable[..., bytes]  # pickle.dumps or the like


class Message(NamedTuple):
    """A message that may be sent several times."""

    body: bytes
    file: IO[bytes] | None = None  # the large arrays


def pack(value: Any, dumps: Dumps = pickle.dumps) -> Message:
    """Return the message that says ``value``."""
    arrays = list[memoryview]()

    def within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        arrays.append(raw)
        return False

    body = dumps(value, protocol=5, buffer_callback=within)
    if not arrays:
        return Message(body)
    places, end = list[slice](), 0
    for raw in arrays:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + raw.nbytes
        places.append(slice(begin, end))
    with storing(None, end):
        file = open(os.memfd_create("fedweave"), "wb")  # noqa: SIM115 - closed when nobody refers to it
        for place, raw in zip(places, arrays, strict=True):
            file.seek(place.start)
            file.write(raw)
        file.flush()
    return Message(BESIDE + pickle.dumps((places, body)), file)


def send(link: Any, message: Message) -> None:
    """Send a message through a pipe."""
    link.send_bytes(message.body)
    if message.file is not None:
        send_handle(link, message.file.fileno(), None)


def receive(link: Any) -> tuple[bytes, list[memoryview]]:
    """Return a message as ``pickle.loads`` takes it; its arrays may be changed, which nobody else sees."""
    body = link.recv_bytes()
    if not body.startswith(BESIDE):
        return body, []
    places, body = pickle.loads(body[len(BESIDE) :])
    descriptor = recv_handle(link)
    try:
        content = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(descriptor)
    return body, [content[place] for place in places]
