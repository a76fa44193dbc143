"""The main program of a nursery: load torch, and fork a worker whenever the main process asks for one."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import wait

import numpy as np

from fedweave.engine.pool import worker_main


def main(descriptor: int, idle_seconds: float) -> None:
    """Be a nursery for the one at the other end of the socket ``descriptor``."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:  # closed outputs: what arrives must not take their numbers
        continue
    os.close(lowest)
    gc.collect()
    gc.freeze()  # collections in the children would write to, and so copy, what they share
    if (pipe := _birth(socket.socket(fileno=descriptor), idle_seconds)) is not None:
        worker_main.main(pipe)  # and end as a program of its own would


def _birth(requests: socket.socket, idle_seconds: float) -> int | None:
    """Fork whenever asked; return the pipe to serve in every child, and None in the nursery when it is time to end."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # the main process may have blocked it
    news: dict[int, int] = {}  # where to tell of each child
    while True:
        ready = wait([requests, woken], None if news else idle_seconds)
        if not ready:
            return None
        if woken in ready:
            woken.recv(4096)
            _tell(news)
        if requests in ready:
            size, descriptors, _, _ = socket.recv_fds(requests, 4, 5)
            message = _received(requests, int.from_bytes(size))
            if not message:
                return None
            pipe, tell, *rest = descriptors
            if not (child := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (requests, woken, wake):
                    other.close()
                for other in (tell, *news.values()):
                    os.close(other)
                _settle(*rest, **json.loads(message))
                return pipe
            for other in (pipe, *rest):
                os.close(other)
            news[child] = tell
            _write(tell, child)


def _received(requests: socket.socket, size: int) -> bytes:
    """Return so many bytes, or none if the other end is gone."""
    found = b""
    while len(found) < size:
        if not (more := requests.recv(size - len(found))):
            return b""
        found += more
    return found


def _tell(news: dict[int, int]) -> None:
    """Tell of the children that have ended."""
    while news:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        if (tell := news.pop(child, None)) is not None:
            _write(tell, os.waitstatus_to_exitcode(status))
            os.close(tell)


def _write(tell: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(tell, f"{number}\n".encode())


def _settle(where: int, *streams: int, outputs: list[int], path: list[str], environment: dict[str, str]) -> None:
    """Take over where the main process is, what it sees, and randomness of one's own, as a new program would have."""
    os.environ.clear()
    os.environ.update(environment)
    os.fchdir(where)
    for stream, number in zip(streams, outputs, strict=True):
        os.dup2(stream, number)
    for descriptor in (where, *streams):
        os.close(descriptor)
    sys.path[:] = path
    importlib.invalidate_caches()
    np.random.seed()  # noqa: NPY002 - the one of users' modules that draw without a seed


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
