"""A fleet in one process whose messages take time: what stands in where no testbed of real links can be had."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedweave.fleet.local.grid import LocalGrid
from fedweave.fleet.local.testbed import Link
from fedweave.fleet.server.terms import Clock
from fedweave.fleet.wire.answer import size


class ThrottledGrid(LocalGrid):
    """A ``LocalGrid`` with a link for each node: an answer is there when its bytes would have come.

    That is 8 · bytes / rate after asking, in each direction, and what the app took to compute, or ``compute`` seconds.
    The clock should be a ``VirtualClock``: nodes compute one after another here, which takes no time of a virtual one,
    so that all of them begin when they are asked.
    """

    def __init__(
        self, app: ClientApp, links: Sequence[Link], clock: Clock, *, compute: float | None = None, **more: Any
    ):
        super().__init__(app, len(links), **more)
        self._links, self._clock, self._compute = dict(zip(self.nodes, links, strict=True)), clock, compute
        self._asked, self._due = 0.0, dict[str, float]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._asked = self._clock.now()
        return super().push_messages(messages)

    def _handle(self, message: Message) -> str:
        sent, begin = size(message.content), time.perf_counter()
        name = super()._handle(message)
        compute = time.perf_counter() - begin if self._compute is None else self._compute
        if name in self._answers:
            link, answer = self._links[message.metadata.dst_node_id], self._answers[name]
            back = size(answer.content) if answer.has_content() else 0
            self._due[name] = self._asked + 8 * sent / link.down + compute + 8 * back / link.up + 2 * link.delay
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now = self._clock.now()
        return super().pull_messages([name for name in message_ids if self._due.get(name, now) <= now])
