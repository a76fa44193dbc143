"""The main program of a training process: build trainers and answer calls until the pipe closes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from fedweave.engine.pool.messages import pack, receive, send
from fedweave.engine.pool.shared_data import mapped
from fedweave.engine.pool.worker import Serving, answered, unpacked
from fedweave.local.client_data import ClientData


def main(descriptor: int) -> None:
    """Serve the pipe at file ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's affair; it closes the pipe
    link, serving, x = Connection(descriptor), Serving(), None
    with suppress(EOFError, BrokenPipeError, ConnectionError):
        while True:
            ok, call = answered(unpacked, *receive(link))
            if not ok:
                send(link, pack((ok, call)))
                continue
            work, arguments = call
            if work == "model":
                x = arguments
            elif work == "load":
                send(link, pack(answered(_load, serving, recv_handle(link), *arguments)))
            else:
                send(link, pack(answered(serving.call, x, work, arguments)))
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - as multiprocessing's children do
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or gone
            stream.flush()
    os._exit(0)  # taking torch apart in good order would take longer than starting did


def _load(serving: Serving, file: int, build: bytes, places: ClientData) -> None:
    serving.load(build, mapped(file, places))


if __name__ == "__main__":
    main(int(sys.argv[1]))
