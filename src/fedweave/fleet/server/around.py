"""A grid around another one: what a class does not change is done by the inner grid."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class AroundGrid(Grid):
    """Passes every call on to ``grid``."""

    def __init__(self, grid: Grid):
        self._grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def give_up(self, message_ids: Iterable[str]) -> None:
        """Say that nobody will ask for the answers to these messages again."""
        give_up(self._grid, message_ids)

    @property
    def in_process(self) -> bool:
        """Whether the clients are in the server's own process."""
        return in_process(self._grid)

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


def in_process(grid: Grid) -> bool:
    """Return whether a grid's clients are in this process; not if the grid does not say so."""
    return getattr(grid, "in_process", False)


def noise_secret(grid: Grid) -> int | None:
    """Return a seed for noise that no client knows, another one each time; None where all are in one process.

    It is kept nowhere: a server that comes back has other noise, and what it sends cannot be subtracted from what the
    one before it sent in the same round.
    """
    return None if in_process(grid) else secrets.randbits(128)


def give_up(grid: Grid, message_ids: Iterable[str]) -> None:
    """Tell a grid that nobody will ask for these answers again, if it is one that keeps answers."""
    if isinstance(grid, AroundGrid):
        grid.give_up(message_ids)
