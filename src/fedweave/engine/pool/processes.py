"""A pool of training processes with one thread each, and the data laid out once for all of them.

Workers are processes at the other end of a pipe, not ``multiprocessing`` ones, so a user's script needs no
``if __name__ == "__main__"`` guard; a worker ends by itself when the main process is gone. What crosses the pipe never
leaves this machine and user.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from typing import Any

from fedweave.core.records import Array
from fedweave.engine.pool import zygote
from fedweave.engine.pool.mailbox import Mailbox, Packed, Received, pack
from fedweave.engine.pool.protocol import Build, Call, WorkerDied
from fedweave.engine.pool.shared_data import lay_out
from fedweave.engine.pool.worker import Unsendable, packed, result_of
from fedweave.local.client_data import ClientData


class Workers(AbstractContextManager["Workers"]):
    """Processes that each hold a trainer and do one call at a time; started when first needed, then kept."""

    supported = os.name == "posix"  # pipes are handed over as file descriptors

    def __init__(self, count: int, patience: float = 0.0):
        """Plan ``count`` processes; they become worthwhile after ``patience`` seconds of work done without them."""
        self.count, self.patience = count, patience
        self.asked = not patience  # a number that the user chose, not "auto"
        self.holds: Any = None  # the ``build`` whose trainer they have now
        self._processes: list[zygote.Process] = []
        self._links: list[Mailbox] = []
        self._given: tuple[Build, ClientData] | None = None  # with the links, for more workers

    def __str__(self) -> str:
        return f"{self.count} worker processes" if self.count > 1 else "one process"

    @property
    def worthwhile(self) -> bool:
        """Whether to use them now."""
        return self.count > 1 and self.patience <= 0

    def join(self) -> None:
        """Local processes need no set-up."""

    def load(self, build: Build, data: ClientData, pieces: int) -> bool:
        """Give every worker the trainer ``build(data)``; no more workers than a round has ``pieces``.

        Return whether it could be done: a model that cannot be pickled has to train here.
        """
        try:
            self._load(build, data, pieces)
        except Unsendable:
            self._stop(patience=0)
            if self.asked:
                raise
            self.count = 1
            return False
        self.holds, self._given = build, (build, data)
        return True

    def _load(self, build: Build, data: ClientData, pieces: int) -> None:
        blob = packed(build)
        zygote.prepare()  # and lay out the data meanwhile
        file, places = lay_out(data)
        with file:
            while len(self._processes) < min(self.count, pieces):
                process, link = zygote.start()
                self._processes.append(process)
                self._links.append(Mailbox.opened(link))
            for link in self._links:
                self._send(link, pack(("load", (blob, places)), packed), file.fileno())
            for link in self._links:
                _result(self._answer(link))

    def map(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Do each call, with ``x`` in front of its arguments, on whichever worker is free; yield (position, result)."""
        if not self._links:
            raise WorkerDied("The worker processes have ended.")
        try:
            yield from self._map(x, calls)
        except BaseException:  # answers may still be under way: nobody must take them for answers to later calls
            self._stop(patience=0)
            raise

    def _map(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        if self._given and len(self._links) < min(self.count, len(calls)):  # links were bad when they were started
            self.load(*self._given, len(calls))
        doing, functions = dict[Any, int](), dict[int, bytes]()

        def message(call: Call, *model: Array) -> Packed:
            """Pack a call; its function may be a user's, its arguments are arrays and the library's."""
            work, arguments = call
            if id(work) not in functions:
                functions[id(work)] = packed(work)
            return pack((functions[id(work)], arguments, *model))

        for i, (link, call) in enumerate(zip(self._links, calls, strict=False)):
            self._send(link, message(call, x))  # which it keeps for the calls that follow
            doing[link] = i
        todo = ((i, message(call)) for i, call in islice(enumerate(calls), len(doing), None))
        following = next(todo, None)  # packed while they work
        while doing:
            for link in wait(list(doing)):
                answer, done = self._answer(link), doing.pop(link)
                if following is not None:
                    doing[link] = following[0]
                    self._send(link, following[1])
                    following = next(todo, None)
                yield done, _result(answer)

    def _send(self, link: Any, message: Packed, descriptor: int | None = None) -> None:
        try:
            link.post(message)
            if descriptor is not None:
                send_handle(link.link, descriptor, None)
        except (BrokenPipeError, ConnectionError):
            raise self._died(link) from None

    def _answer(self, link: Any) -> Received:
        try:
            return link.receive()
        except (EOFError, ConnectionError):
            raise self._died(link) from None

    def _died(self, link: Any) -> WorkerDied:
        process = self._processes[self._links.index(link)]
        with suppress(subprocess.TimeoutExpired):  # its pipe closes a moment before its exit code is known
            process.wait(timeout=2)
        return WorkerDied(f"A training process died with exit code {process.returncode}; -9 often means out of memory.")

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop(patience=5.0 if kind is None else 0.5)

    def _stop(self, patience: float) -> None:
        """End the workers: each one ends when its pipe closes, unless it is busy for longer than all have."""
        for link in self._links:
            link.close()
        deadline = time.monotonic() + patience
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline - time.monotonic(), 0))
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
        self._links, self._processes = [], []
        self.holds = None


def _result(answer: Received) -> Any:
    message, contents = answer
    return result_of(pickle.loads(message, buffers=contents))
