"""Answers are taken when they are there as a whole: one that is still being sent holds up nobody else."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

from fedweave.fleet.server.around import AroundGrid

THREADS = 16  # that pull at the same time
SECONDS = 0.2  # for which a look waits for the pulls that it began
KEPT = 16  # answers that nobody has asked for again

Pulled = tuple[list[str], list[Message], Exception | None]  # the questions, their answers, or why there are none


class WholeAnswers(AroundGrid):
    """A grid whose ``pull_messages`` returns soon, with the answers of which all bytes are there.

    Flower hands out an answer once its node has begun to send it, and then waits for the rest: a pull of several
    returns with the slowest, so that behind one slow link all clients seem slow, and a round passes its deadline. Here
    answers are pulled by threads, few at a time; what one look does not get, a later one does.
    """

    def __init__(self, grid: Grid):
        super().__init__(grid)
        self._come = queue.SimpleQueue[Pulled | None]()
        self._threads, self._under_way = 0, set[str]()  # names of the questions whose answers are being pulled
        self._found = dict[str, Message]()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        new = [name for name in names if name not in self._under_way and name not in self._found]
        size = max(-(-len(new) // THREADS), 1)
        work = deque(new[begin : begin + size] for begin in range(0, len(new), size))
        free = min(THREADS - self._threads, len(work))
        self._threads += free
        self._under_way |= set(new)
        for _ in range(free):
            Thread(target=self._pull, args=(work,), daemon=True).start()
        end = time.monotonic() + SECONDS
        while free and not self._under_way.isdisjoint(new) and (left := end - time.monotonic()) > 0:
            self._hear(left)
        while work:  # what no thread has begun
            with suppress(IndexError):
                self._under_way -= set(work.popleft())
        while not self._come.empty():
            self._hear(0)
        answers = [self._found.pop(name) for name in names if name in self._found]
        while len(self._found) > KEPT:  # the oldest: the rounds of most are over
            del self._found[next(iter(self._found))]
        return answers

    def _hear(self, seconds: float) -> None:
        """Take in what a thread has pulled, within so many seconds."""
        try:
            pulled = self._come.get(timeout=seconds)
        except queue.Empty:
            return
        if pulled is None:
            self._threads -= 1
            return
        names, answers, error = pulled
        self._under_way -= set(names)
        if error is not None:
            raise error
        self._found |= {answer.metadata.reply_to_message_id: answer for answer in answers}

    def _pull(self, work: deque[list[str]]) -> None:
        """Pull what there is to pull: a thread's work."""
        with suppress(IndexError):
            while names := work.popleft():
                try:
                    self._come.put((names, list(self._grid.pull_messages(names)), None))
                except Exception as e:  # which is for the thread that looks
                    self._come.put((names, [], e))
        self._come.put(None)


def whole_answers(grid: Grid) -> Grid:
    """Return a grid that hands out whole answers; only Flower's own wait for the others."""
    return WholeAnswers(grid) if type(grid).__module__.partition(".")[0] == "flwr" else grid
