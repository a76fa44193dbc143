"""A pool of training processes with one thread each, and the data laid out once for all of them.

Workers are plain child processes at the other end of a pipe, so a user's script needs no ``if __name__ == "__main__"``
guard; a worker ends by itself when the main process is gone. What crosses the pipe never leaves this machine and user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from fedweave.local.torch_trainer import ClientData, TorchTrainer
from fedweave.records import Array

Call = tuple[str, Any]  # a method of the trainer and its arguments, or "load" and a trainer to build


class WorkerDied(RuntimeError):  # noqa: N818 - it says what happened
    """A training process ended in the middle of its work."""


class Workers(AbstractContextManager["Workers"]):
    """Child processes that each hold a trainer and do one call at a time; started when first needed, then kept."""

    supported = os.name == "posix"  # pipes are handed over as file descriptors

    def __init__(self, count: int, patience: float = 0.0):
        """Plan ``count`` processes; they become worthwhile after ``patience`` seconds of work done without them."""
        self.count, self.patience = count, patience
        self._processes: list[subprocess.Popen[bytes]] = []
        self._links: list[Any] = []

    def __str__(self) -> str:
        return f"{self.count} worker processes" if self.count > 1 else "one process"

    @property
    def worthwhile(self) -> bool:
        """Whether to use them now."""
        return self.count > 1 and self.patience <= 0

    def load(self, build: Callable[[ClientData], TorchTrainer], data: ClientData) -> None:
        """Give every worker the trainer ``build(data)``."""
        while len(self._processes) < self.count:
            process, link = _start()
            self._processes.append(process)
            self._links.append(link)
        with tempfile.TemporaryDirectory(prefix="fedweave-") as folder:
            blob = cloudpickle.dumps((build, _share(data, Path(folder))))
            for link in self._links:
                self._send(link, ("load", blob))
            for link in self._links:  # once all have mapped the files, their names can go
                self._receive(link)

    def map(self, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Do each call on whichever worker is free; yield (position, result) as they end."""
        todo = iter(enumerate(calls))
        doing: dict[Any, int] = {}
        for link, (i, call) in zip(self._links, todo, strict=False):
            self._send(link, call)
            doing[link] = i
        while doing:
            for link in wait(list(doing)):
                result, done = self._receive(link), doing.pop(link)
                if (following := next(todo, None)) is not None:
                    doing[link] = following[0]
                    self._send(link, following[1])
                yield done, result

    def _send(self, link: Any, call: Call) -> None:
        try:
            link.send(call)
        except (BrokenPipeError, ConnectionError):
            raise self._died() from None

    def _receive(self, link: Any) -> Any:
        try:
            ok, value = link.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None
        if not ok:
            raise value
        return value

    def _died(self) -> WorkerDied:
        codes = {p.pid: p.wait(timeout=5) for p in self._processes if p.poll() is not None}
        return WorkerDied(f"A training process died (exit codes by pid: {codes}); -9 usually means out of memory.")

    def __exit__(self, *_: object) -> None:
        for link in self._links:  # a worker ends when its pipe closes
            link.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._links, self._processes = [], []


def _start() -> tuple[subprocess.Popen[bytes], Any]:
    ours, theirs = Pipe()
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    env = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "fedweave.engine.worker", str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, ours


class Mapped(NamedTuple):
    """An array that lies in a file, to be mapped by the workers: one copy for all of them."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    def open(self) -> Array:
        """Return the array, read only when first touched."""
        return np.memmap(self.path, self.dtype, "c", shape=self.shape)


SHARED = ("x", "y", "test_x", "test_y")


def _share(data: ClientData, folder: Path) -> ClientData:
    """Return ``data`` with its sample arrays replaced by files."""

    def put(name: str) -> Mapped:
        array = np.ascontiguousarray(getattr(data, name))
        array.tofile(folder / name)
        return Mapped(str(folder / name), array.dtype.str, array.shape)

    return data._replace(**{name: put(name) for name in SHARED})


def opened(data: ClientData) -> ClientData:
    """Return the data a worker was sent, with its files mapped."""
    return data._replace(**{name: getattr(data, name).open() for name in SHARED})
