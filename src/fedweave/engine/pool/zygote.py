"""The zygote: a process that loads torch once and forks workers, so that each starts in milliseconds.

Workers share what it has loaded, which also saves memory. The zygote ends when it is idle for a while or when the main
process ends; the next worker then comes from a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import Any, Protocol

from fedweave.core.locks import ThreadLock

FORKS = sys.platform == "linux"  # elsewhere system libraries may not survive a fork, and each worker is a new program
IDLE_SECONDS = 120.0
# Training allocates large tensors at every step; in huge pages the system prepares them faster. Only glibc reads this.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Process(Protocol):
    """A worker as the main process sees it; ``subprocess.Popen`` is one."""

    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class ForkedProcess:
    """A worker forked by the zygote, which reports its process id and later its exit code through a pipe."""

    def __init__(self, reports: int):
        """Read the worker's process id from the pipe ``reports``; raise EOFError if the zygote has ended."""
        self._reports, self._owner = open(reports, "rb", buffering=0), os.getpid()  # noqa: SIM115 - open until it ends
        self.returncode: int | None = None
        try:
            if not (line := self._reports.readline()):
                raise EOFError
        except BaseException:
            self._reports.close()
            raise
        self.pid, self._handle = int(line), None
        with suppress(OSError):  # process ids can be reused; old systems have no handles
            self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            self.returncode = self._read_exit_code(timeout)
            self._reports.close()
            if self._handle is not None:
                os.close(self._handle)
        return self.returncode

    def _read_exit_code(self, timeout: float | None) -> int:
        if self._owner != os.getpid():  # in a fork of the main process, which does not own the worker
            return 0
        if not wait([self._reports.fileno()], timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        if line := self._reports.readline():
            return int(line)
        self._kill()  # the zygote has ended, so no exit code would ever be reported
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


class Zygote:
    """The zygote as the main process sees it."""

    def __init__(self) -> None:
        """Start the process; it loads torch, which takes seconds, while the main process goes on."""
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        self.process = _program("zygote_main", theirs.fileno(), str(IDLE_SECONDS))
        theirs.close()

    def fork(self, pipe: int) -> ForkedProcess:
        """Return a worker that serves ``pipe``, with this process's current folder, paths and environment."""
        outputs = [n for n in (1, 2) if _is_open(n)]
        here = {"outputs": outputs, "path": [p or os.getcwd() for p in sys.path], "environment": _environment()}
        message = json.dumps(here).encode()
        message = len(message).to_bytes(4) + message
        reports, theirs = os.pipe()
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            sent = socket.send_fds(self._socket, [message], [pipe, theirs, folder, *outputs])
            self._socket.sendall(message[sent:])
        except BaseException as e:
            os.close(reports)
            if isinstance(e, ConnectionError):
                raise self._exit_error() from None
            self.close()  # it may have received half a message
            raise
        finally:
            os.close(theirs)
            os.close(folder)
        try:
            return ForkedProcess(reports)
        except EOFError:
            raise self._exit_error() from None

    def _exit_error(self) -> RuntimeError:
        return RuntimeError(f"No worker process can be started: the zygote ended with code {self.process.wait()}.")

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


_zygote: Zygote | None = None  # one for all pools of this process
_one_at_a_time = ThreadLock()


def prepare() -> None:
    """Start the zygote unless it is running."""
    if FORKS:
        _current()


def _current() -> Zygote:
    global _zygote
    with _one_at_a_time.held():
        if not _zygote or _zygote.owner != os.getpid() or _zygote.process.poll() is not None:
            close()
            _zygote = Zygote()
        return _zygote


@atexit.register
def close() -> None:
    """End the zygote."""
    global _zygote
    if _zygote:
        _zygote.close()
    _zygote = None


def start() -> tuple[Process, Any]:
    """Return a new worker and this end of its pipe."""
    ours, theirs = Pipe()
    try:
        return (_fork(theirs.fileno()) if FORKS else _program("worker_main", theirs.fileno())), ours
    except BaseException:
        ours.close()  # a worker that has started nevertheless sees the closed pipe
        raise
    finally:
        theirs.close()


def _fork(pipe: int) -> Process:
    with _one_at_a_time.held():
        try:
            return _current().fork(pipe)
        except RuntimeError:  # it has just ended because it was idle
            return _current().fork(pipe)


def _program(name: str, descriptor: int, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", f"fedweave.engine.pool.{name}", str(descriptor), *arguments]
    # The child inherits the signal mask, so Ctrl-C never reaches it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env={**HUGE_PAGES, **_environment()}, pass_fds=[descriptor]
        )
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
