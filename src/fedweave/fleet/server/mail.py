"""Sending and collecting: answers by the message they belong to, and none that came in time is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedweave.fleet.server.terms import Clock, Terms

DAY = 86400.0


def collect(
    grid: Grid, messages: Sequence[Message], seconds: float, enough: int, terms: Terms, clock: Clock
) -> Iterator[tuple[int, Message, float]]:
    """Send the messages and yield (position, answer, seconds) as answers come, until enough are good or time is up.

    An answer is matched by the message it replies to: for a node that is gone the server itself answers. At the
    deadline the mail is looked through once more: what is there by then came in time.
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


class PromptGrid(Grid):
    """A grid that looks for answers often, once more at the deadline, and notes when each came."""

    def __init__(self, grid: Grid, terms: Terms, clock: Clock):
        self._grid, self._terms, self._clock = grid, terms, clock
        self.seconds: dict[str, float] = {}  # from asking to the answer, by the message that was answered

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        wait = min(timeout or DAY, self._terms.answer_seconds)
        train = bool(sent) and sent[0].metadata.message_type == MessageType.TRAIN
        enough, found = self._terms.needed(len(sent)) if train else len(sent), []
        self.seconds.clear()
        for _, reply, seconds in collect(self._grid, sent, wait, enough, self._terms, self._clock):
            self.seconds[reply.metadata.reply_to_message_id] = seconds
            found.append(reply)
        return found

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
