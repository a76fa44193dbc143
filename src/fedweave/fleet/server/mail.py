"""Sending and collecting: answers by the message they belong to, and none that came in time is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedweave.fleet.server.around import AroundGrid, give_up
from fedweave.fleet.server.terms import Clock, Terms
from fedweave.fleet.wire.answer import size

DAY = 86400.0
PULLED = 2**26  # bytes of answers that are pulled at a time


def at_once(nbytes: int) -> int:
    """Return how many answers of this size to pull at a time."""
    return max(1, PULLED // max(nbytes, 1))


def collect(
    grid: Grid,
    messages: Sequence[Message],
    seconds: float,
    enough: int,
    terms: Terms,
    clock: Clock,
    at_a_time: int | None = None,
) -> Iterator[tuple[int, Message, float]]:
    """Send the messages and yield (position, answer, seconds) as answers come, until enough are good or time is up.

    An answer is matched by the message it replies to: for a node that is gone the server itself answers. At the
    deadline the mail is looked through once more: what is there by then came in time. A look pulls ``at_a_time``
    answers after another, all at once unless given, so that no more of them are in memory.
    """
    begin = clock.now()
    waiting = {name: row for row, name in enumerate(grid.push_messages(messages)) if name}
    try:
        while waiting and enough > 0:
            for reply in _pull(grid, list(waiting), at_a_time or len(waiting)):
                row = waiting.pop(reply.metadata.reply_to_message_id, None)
                if row is not None:  # else it was answered twice
                    enough -= not reply.has_error()
                    yield row, reply, clock.now() - begin
            left = begin + seconds - clock.now()
            if left <= 0:
                return
            if waiting and enough > 0:
                clock.sleep(min(terms.poll_seconds, left))
    finally:
        give_up(grid, waiting)


def _pull(grid: Grid, names: list[str], at_a_time: int) -> Iterator[Message]:
    for begin in range(0, len(names), at_a_time):
        yield from grid.pull_messages(names[begin : begin + at_a_time])


class PromptGrid(AroundGrid):
    """A grid that looks for answers often, once more at the deadline, and notes when each came.

    Trained models are handed on one by one, as they come and are asked for, so that not all are in memory.
    """

    def __init__(self, grid: Grid, terms: Terms, clock: Clock):
        super().__init__(grid)
        self._terms, self._clock = terms, clock
        self.seconds: dict[str, float] = {}  # from asking to the answer, by the message that was answered

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        wait = min(timeout or DAY, self._terms.answer_seconds)
        if not sent or sent[0].metadata.message_type != MessageType.TRAIN:
            return list(self._replies(sent, wait, len(sent), None))
        return self._replies(sent, wait, self._terms.needed(len(sent)), at_once(size(sent[0].content)))

    def _replies(self, sent: Sequence[Message], wait: float, enough: int, at_a_time: int | None) -> Iterator[Message]:
        self.seconds.clear()
        for _, reply, seconds in collect(self._grid, sent, wait, enough, self._terms, self._clock, at_a_time):
            self.seconds[reply.metadata.reply_to_message_id] = seconds
            yield reply
