"""A round of a strategy between its two halves: what was asked, and who is meant by an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

from flwr.app import ArrayRecord, Message

from fedweave.core.records import Layout, ServerState
from fedweave.core.settings import BadInput
from fedweave.fleet.server.questions import Question
from fedweave.method import Method


class NoProbes:
    """What a strategy can offer to samplers while a round is planned: the model's layout, and no probes."""

    def __init__(self, layout: Layout, secret: int | None = None):
        self.layout, self.secret = layout, secret

    def losses(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput(
            "A strategy cannot ask clients for their losses before it chooses a cohort: give the method to "
            "fedweave.flower.server instead, which can."
        )

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    rehearse = gradients = variances = _refuse


class Asked:
    """A round between its question and its answers."""

    def __init__(
        self,
        method: Method,
        state: ServerState,
        question: Question,
        messages: Sequence[Message],
        arrays: ArrayRecord,
        at: float,
    ):
        self.method, self.state, self.question = method, state, question
        self.messages, self.arrays, self.at = messages, arrays, at

    def row(self, reply: Message) -> int | None:
        """Return the row of the cohort that a reply is from, None if from nobody who was asked.

        A reply is matched by the message it answers, which Flower names when it is sent, or else by its node.
        """
        by_node = self._by_node.get(reply.metadata.src_node_id)
        return self._by_message.get(reply.metadata.reply_to_message_id, by_node)

    @cached_property
    def _by_message(self) -> Mapping[str, int]:  # first asked for with a reply, so after the messages were named
        return {m.metadata.message_id: row for row, m in enumerate(self.messages) if m.metadata.message_id}

    @cached_property
    def _by_node(self) -> Mapping[int, int]:
        return {m.metadata.dst_node_id: row for row, m in enumerate(self.messages)}
