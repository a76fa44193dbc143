"""The main program of a training process: build trainers and answer calls until the pipe closes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from ctypes import CDLL
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from fedweave.core.records import Array
from fedweave.engine.pool.mailbox import Mailbox
from fedweave.engine.pool.shared_data import mapped
from fedweave.engine.pool.worker import Serving, answered, unpacked
from fedweave.local.client_data import ClientData

LARGEST = 2**25  # bytes of an array whose memory is kept; more is not allowed


def main(descriptor: int) -> None:
    """Serve the pipe at file ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's affair; it closes the pipe
    _keep_freed_memory()
    serving, x = Serving(), None
    with suppress(EOFError, BrokenPipeError, ConnectionError):
        mail = Mailbox.joined(Connection(descriptor))
        while True:
            ok, call = answered(unpacked, *mail.receive())
            if not ok:
                mail.send((ok, call))
                continue
            work, arguments, *model = call
            if work == "load":
                mail.send(answered(_load, serving, recv_handle(mail.link), *arguments))
            else:
                (x,) = model or (x,)
                mail.send(answered(_call, serving, x, work, arguments))
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - as multiprocessing's children do
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or gone
            stream.flush()
    os._exit(0)  # taking torch apart in good order would take longer than starting did


def _keep_freed_memory() -> None:
    """Have what a call frees wait here for the next one: memory that comes anew from the system is cleared first."""
    with suppress(AttributeError, OSError):  # another C library than GNU's, or none
        library = CDLL(None)
        library.mallopt(-3, LARGEST)  # M_MMAP_THRESHOLD: larger arrays come and go as before
        library.mallopt(-1, 2 * LARGEST)  # M_TRIM_THRESHOLD


def _call(serving: Serving, x: Array, work: bytes, arguments: tuple[Any, ...]) -> Any:
    return serving.call(x, unpacked(work), arguments)


def _load(serving: Serving, file: int, build: bytes, places: ClientData) -> None:
    serving.load(build, mapped(file, places))


if __name__ == "__main__":
    main(int(sys.argv[1]))
