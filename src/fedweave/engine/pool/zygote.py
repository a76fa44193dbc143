"""Where workers come from: a process that has loaded torch once and forks them, so that each starts in milliseconds.

It shares what it loaded with all of them, which saves memory too. A nursery that nobody needed for a while ends by
itself, as it does when the main process is gone; the next worker then comes from a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import Any, Protocol

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
        self._news, self._owner = open(news, "rb", buffering=0), os.getpid()  # noqa: SIM115 - open until it ends
        self.returncode: int | None = None
        try:
            if not (word := self._news.readline()):
                raise EOFError
        except BaseException:
            self._news.close()
            raise
        self.pid, self._handle = int(word), None
        with suppress(OSError):  # a number may come to mean another process; old systems know nothing better
            self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one."""
        if self.returncode is None:
            self.returncode = self._ended(timeout)
            self._news.close()
            if self._handle is not None:
                os.close(self._handle)
        return self.returncode

    def _ended(self, timeout: float | None) -> int:
        if self._owner != os.getpid():  # a fork of the main process: the worker is none of its business
            return 0
        if not wait([self._news.fileno()], timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        if word := self._news.readline():
            return int(word)
        self._kill()  # without its nursery nobody would know when it ends
        return -signal.SIGKILL

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._handle is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class Nursery:
    """The main process's end of a nursery."""

    def __init__(self) -> None:
        """Start the process; it takes seconds until it has loaded torch, in which there is other work to do."""
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        self.process = _program("zygote_main", theirs.fileno(), str(IDLE_SECONDS))
        theirs.close()

    def fork(self, pipe: int) -> Forked:
        """Return a worker that serves ``pipe``, with this process's folder, paths and environment as they are now."""
        outputs = [n for n in (1, 2) if _is_open(n)]
        here = {"outputs": outputs, "path": [p or os.getcwd() for p in sys.path], "environment": _environment()}
        message = json.dumps(here).encode()
        message = len(message).to_bytes(4) + message
        news, theirs = os.pipe()
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            sent = socket.send_fds(self._socket, [message], [pipe, theirs, folder, *outputs])
            self._socket.sendall(message[sent:])
        except BaseException as e:
            os.close(news)
            if isinstance(e, ConnectionError):
                raise self._ended() from None
            self.close()  # it may have heard half a word
            raise
        finally:
            os.close(theirs)
            os.close(folder)
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


def _after_fork() -> None:
    """Let a fork of the main process start workers, whatever another thread was about to do."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


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
        return (_forked(theirs.fileno()) if FORKS else _program("worker_main", theirs.fileno())), ours
    except BaseException:
        ours.close()  # a worker that has begun all the same sees it
        raise
    finally:
        theirs.close()


def _forked(pipe: int) -> Process:
    with _one_at_a_time:
        try:
            return _current().fork(pipe)
        except RuntimeError:  # it had just ended, being idle
            return _current().fork(pipe)


def _program(name: str, descriptor: int, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", f"fedweave.engine.pool.{name}", str(descriptor), *arguments]
    # The child inherits what is blocked: Ctrl-C is not for it, from the start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[descriptor])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
