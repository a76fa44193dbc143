"""The main program of the zygote: load torch, and fork a worker whenever the main process asks for one."""

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
    """Serve the process at the other end of the socket ``descriptor``."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:  # occupy closed outputs, so that no received file gets 0 … 2
        continue
    os.close(lowest)
    gc.collect()
    gc.freeze()  # garbage collection in the children would write to shared memory and so copy it
    if (pipe := _fork_workers(socket.socket(fileno=descriptor), idle_seconds)) is not None:
        worker_main.main(pipe)  # in a child, which ends as a separate program would


def _fork_workers(requests: socket.socket, idle_seconds: float) -> int | None:
    """Fork on request; return the pipe to serve in every child, and None in the zygote when it should end."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # the main process may have blocked it
    try:
        return _serve(requests, woken, idle_seconds)
    finally:
        signal.set_wakeup_fd(-1)  # first: Python would complain of a signal whose descriptor is closed
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (requests, woken, wake):
            other.close()


def _serve(requests: socket.socket, woken: socket.socket, idle_seconds: float) -> int | None:
    reports: dict[int, int] = {}  # child -> the pipe for its exit code
    while True:
        ready = wait([requests, woken], None if reports else idle_seconds)
        if not ready:
            return None
        if woken in ready:
            woken.recv(4096)
            _report_exits(reports)
        if requests in ready:
            size, descriptors, _, _ = socket.recv_fds(requests, 4, 5)
            message = _receive(requests, int.from_bytes(size))
            if not message:
                return None
            pipe, report, *rest = descriptors
            if not (child := os.fork()):
                for other in (report, *reports.values()):
                    os.close(other)
                _adopt(*rest, **json.loads(message))
                return pipe
            for other in (pipe, *rest):
                os.close(other)
            reports[child] = report
            _write(report, child)


def _receive(requests: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes, or none if the other end is closed."""
    found = b""
    while len(found) < size:
        if not (more := requests.recv(size - len(found))):
            return b""
        found += more
    return found


def _report_exits(reports: dict[int, int]) -> None:
    """Report the exit codes of the children that have ended."""
    while reports:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        if (report := reports.pop(child, None)) is not None:
            _write(report, os.waitstatus_to_exitcode(status))
            os.close(report)


def _write(report: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(report, f"{number}\n".encode())


def _adopt(folder: int, *streams: int, outputs: list[int], path: list[str], environment: dict[str, str]) -> None:
    """Adopt the parent's working directory, environment and streams; reseed."""
    os.environ.clear()
    os.environ.update(environment)
    os.fchdir(folder)
    for stream, number in zip(streams, outputs, strict=True):
        os.dup2(stream, number)
    for descriptor in (folder, *streams):
        os.close(descriptor)
    sys.path[:] = path
    importlib.invalidate_caches()
    np.random.seed()  # noqa: NPY002 - the generator of users' modules that draw without a seed


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
