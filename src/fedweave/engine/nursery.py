"""Where workers come from: a process that has loaded torch once and forks them, so that each starts in milliseconds.

It shares what it loaded with all of them, which saves memory too. A nursery that nobody needed for a while ends by
itself, as it does when the main process is gone; the next worker then comes from a new one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Pipe
from multiprocessing.connection import wait as ready
from typing import Any, Protocol

import numpy as np

FORKS = sys.platform == "linux"  # elsewhere system libraries may not survive a fork; there each worker is a new program
IDLE_SECONDS = 120.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Process(Protocol):
    """What the main process knows of a worker; ``subprocess.Popen`` is one."""

    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Forked:
    """A worker that a nursery forked; the nursery tells its number, and in the end its exit code, through a pipe."""

    def __init__(self, news: int):
        """Hear of the worker through the pipe ``news``; EOFError says that the nursery is gone."""
        self._news, self.returncode = open(news, "rb", buffering=0), None  # noqa: SIM115 - open until the worker ends
        if not (word := self._news.readline()):
            self._news.close()
            raise EOFError
        self.pid = int(word)

    def poll(self) -> int | None:
        """Return the exit code, or None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one."""
        if self.returncode is None:
            if not ready([self._news.fileno()], timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            if not (word := self._news.readline()):  # without its nursery nobody would know when it ends
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.returncode = int(word or -signal.SIGKILL)
            self._news.close()
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """The main process's end of a nursery."""

    def __init__(self) -> None:
        """Start the process; it takes seconds until it has loaded torch, in which there is other work to do."""
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        self.process = _program("nursery", theirs.fileno(), str(IDLE_SECONDS))
        theirs.close()

    def fork(self, pipe: int) -> Forked:
        """Return a worker that serves ``pipe``, with this process's folder, paths and environment as they are now."""
        here = {"folder": os.getcwd(), "path": sys.path, "environment": _environment()}
        message = json.dumps(here).encode()
        message = len(message).to_bytes(4) + message
        news, theirs = os.pipe()
        try:
            sent = socket.send_fds(self._socket, [message], [pipe, theirs])
            self._socket.sendall(message[sent:])
        except ConnectionError:
            os.close(news)
            raise self._ended() from None
        finally:
            os.close(theirs)
        try:
            return Forked(news)
        except EOFError:
            raise self._ended() from None

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"No worker process can be started: what starts them ended with {self.process.wait()}.")

    def close(self) -> None:
        """End it; its workers end with their pipes."""
        self._socket.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:  # it is still loading torch
            self.process.kill()
            self.process.wait()


_nursery: Nursery | None = None  # one for all pools of this process: that is what it is for
_one_at_a_time = threading.RLock()


def prepare() -> None:
    """See to it that a nursery is there or on its way."""
    if FORKS:
        _current()


def _current() -> Nursery:
    global _nursery
    with _one_at_a_time:
        if not _nursery or _nursery.owner != os.getpid() or _nursery.process.poll() is not None:
            close()
            _nursery = Nursery()
        return _nursery


@atexit.register
def close() -> None:
    """End the nursery."""
    global _nursery
    if _nursery:
        _nursery.close()
    _nursery = None


def start() -> tuple[Process, Any]:
    """Return a new worker and this end of its pipe."""
    ours, theirs = Pipe()
    try:
        return (_forked(theirs.fileno()) if FORKS else _program("worker", theirs.fileno())), ours
    finally:
        theirs.close()


def _forked(pipe: int) -> Process:
    with _one_at_a_time:
        try:
            return _current().fork(pipe)
        except RuntimeError:  # it had just ended, being idle
            return _current().fork(pipe)


def _program(name: str, descriptor: int, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", f"fedweave.engine.{name}", str(descriptor), *arguments]
    # The child inherits what is blocked: Ctrl-C is not for it, from the start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[descriptor])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}


def main(descriptor: int, idle_seconds: float) -> None:
    """Be a nursery for the one at the other end of the socket ``descriptor``."""
    from fedweave.engine import worker

    gc.collect()
    gc.freeze()  # collections in the children would write to, and so copy, what they share
    if (pipe := _birth(socket.socket(fileno=descriptor), idle_seconds)) is not None:
        worker.main(pipe)  # and end as a program of its own would


def _birth(requests: socket.socket, idle_seconds: float) -> int | None:
    """Fork whenever asked; return the pipe to serve in every child, and None in the nursery when it is time to end."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    news: dict[int, int] = {}  # where to tell of each child
    while True:
        ready, _, _ = select.select([requests, woken], [], [], None if news else idle_seconds)
        if not ready:
            return None
        if woken in ready:
            woken.recv(4096)
            _tell(news)
        if requests in ready:
            size, descriptors, _, _ = socket.recv_fds(requests, 4, 2)
            if not size:
                return None
            pipe, tell = descriptors
            here = json.loads(requests.recv(int.from_bytes(size), socket.MSG_WAITALL))
            if not (child := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (requests, woken, wake):
                    other.close()
                for other in (tell, *news.values()):
                    os.close(other)
                _settle(**here)
                return pipe
            os.close(pipe)
            news[child] = tell
            _write(tell, child)


def _tell(news: dict[int, int]) -> None:
    """Tell of the children that have ended."""
    while news:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        _write(news[child], os.waitstatus_to_exitcode(status))
        os.close(news.pop(child))


def _write(tell: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(tell, f"{number}\n".encode())


def _settle(folder: str, path: list[str], environment: dict[str, str]) -> None:
    """Take over where the main process is, what it sees, and randomness of one's own, as a new program would have."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = [p or folder for p in path]
    np.random.seed()  # noqa: NPY002 - the one of users' modules that draw without a seed


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
