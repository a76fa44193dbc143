"""Sending and collecting: answers by the message they belong to, and none that came in time is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedweave.engine.flower.terms import Clock, Terms


def collect(
    grid: Grid, messages: Sequence[Message], seconds: float, enough: int, terms: Terms, clock: Clock
) -> Iterator[tuple[int, Message, float]]:
    """Send the messages and yield (position, answer, seconds) as answers come, until enough are good or time is up.

    An answer is told by the message it replies to: for a node that is gone the server itself answers. At the deadline
    the mail is looked through once more: what is there by then came in time.
    """
    begin = clock.now()
    waiting = {name: row for row, name in enumerate(grid.push_messages(messages)) if name}
    while waiting and enough > 0:
        for reply in grid.pull_messages(list(waiting)):
            row = waiting.pop(reply.metadata.reply_to_message_id, None)
            if row is not None:  # else it was answered twice
                enough -= not reply.has_error()
                yield row, reply, clock.now() - begin
        left = begin + seconds - clock.now()
        if left <= 0:
            return
        if waiting and enough > 0:
            clock.sleep(min(terms.poll_seconds, left))
