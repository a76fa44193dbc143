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
from flwr.superlink.grid.http_grid import HttpGrid

from fedweave.fleet.server.around import AroundGrid
from fedweave.fleet.server.received import received
from fedweave.fleet.wire.answer import size

THREADS = 16  # that pull at the same time
SECONDS = 0.2  # for which a look waits for the pulls that it began
HELD = 2**28  # bytes of answers that are in memory at the same time
FEWEST = 4  # answers that may be, however large

Pulled = tuple[list[str], list[Message], Exception | None]  # the questions, their answers, or why there are none


class WholeAnswers(AroundGrid):
    """A grid whose ``pull_messages`` returns soon, with the answers of which all bytes are there.

    Flower hands out an answer once its node has begun to send it, and then waits for the rest: a pull of several
    returns with the slowest, so that behind one slow link all clients seem slow, and a round passes its deadline. Here
    answers are pulled by threads, few at a time; what one look does not get, a later one does.

    Memory does not grow with the number of clients. Answers are taken to be as large as the largest question, a model;
    those that are being pulled or wait to be asked for are at most ``HELD`` bytes, or ``FEWEST`` of them. An answer
    that was given up while it was being sent cannot be stopped: it has a thread until it ends, so there are at most
    ``THREADS`` of these, and holds up no other.
    """

    def __init__(self, grid: Grid):
        super().__init__(grid)
        self._come = queue.SimpleQueue[Pulled | None]()
        self._threads, self._under_way = 0, set[str]()  # names of the questions whose answers are being pulled
        self._given_up = set[str]()  # those among them whose answers nobody waits for
        self._found, self._largest = dict[str, Message](), 1

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self._largest = max(self._largest, *(size(message.content) for message in messages), 0)
        return super().push_messages(messages)

    def give_up(self, message_ids: Iterable[str]) -> None:
        for name in message_ids:
            self._found.pop(name, None)
            if name in self._under_way:
                self._given_up.add(name)

    @property
    def _room(self) -> int:
        """How many answers may be pulled beside those that are in memory."""
        inside = len(self._under_way) - len(self._given_up) + len(self._found)
        return max(HELD // self._largest, FEWEST) - inside

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        self._given_up -= set(names)
        new = [name for name in names if name not in self._under_way and name not in self._found]
        new = new[: max(self._room, 0)]
        few = max(-(-len(new) // THREADS), 1)
        work = deque(new[begin : begin + few] for begin in range(0, len(new), few))
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
        return [self._found.pop(name) for name in names if name in self._found]

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
        unwanted = self._given_up & set(names)
        self._under_way -= set(names)
        self._given_up -= unwanted
        if error is not None:
            raise error
        came = {answer.metadata.reply_to_message_id: answer for answer in answers}
        self._found |= {name: answer for name, answer in came.items() if name not in unwanted}

    def _pulled(self, names: list[str]) -> Iterable[Message]:
        if isinstance(self._grid, HttpGrid):
            return received(self._grid, names, self._largest)
        return self._grid.pull_messages(names)

    def _pull(self, work: deque[list[str]]) -> None:
        """Pull what there is to pull: a thread's work."""
        with suppress(IndexError):
            while names := work.popleft():
                try:
                    self._come.put((names, list(self._pulled(names)), None))
                except Exception as e:  # which is for the thread that looks
                    self._come.put((names, [], e))
        self._come.put(None)


def whole_answers(grid: Grid) -> Grid:
    """Return a grid that hands out whole answers; only Flower's own wait for the others."""
    return WholeAnswers(grid) if type(grid).__module__.partition(".")[0] == "flwr" else grid
