"""The engine of a real fleet: asks over Flower's grid, waits no longer than agreed, and books every failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedweave.admit import admit
from fedweave.engine.flower.client import digest
from fedweave.engine.flower.mail import collect
from fedweave.engine.flower.roster import Roster
from fedweave.engine.flower.terms import Clock, Terms
from fedweave.engine.flower.wire import Extras, Task, Tensors, Unfit, ask, client_half, read_answer, size
from fedweave.records import NOTHING, Array, Carried, Cohort, Layout, Population, Replies, State, Trouble
from fedweave.remember import shares, with_change
from fedweave.roles import Solver
from fedweave.settings import BadInput
from fedweave.system.measured import Measured

GONE = 5  # Flower's code for a node that is unavailable
LIFE = 30.0  # seconds beyond the deadline after which an unread question is thrown away

Evaluate = Callable[[Array], Mapping[str, Any]]


class FlowerEngine:
    """Trains cohorts of real clients.

    With ``measured`` the seconds of a reply are those that passed, and every visit is remembered (``seen``); without,
    the experiment has a world of its own, whose clock counts.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        layout: Layout,
        solver: Solver,
        seed: int,
        evaluate: Evaluate,
        terms: Terms,
        measured: Measured | None,
        clock: Clock,
    ):
        self.layout, self.evaluate = layout, evaluate
        self._grid, self._roster, self._terms, self._clock = grid, roster, terms, clock
        self._tensors, self._solver, self._seed = Tensors.of_layout(layout), solver, seed
        self._measured = measured
        self.seen: State = measured.fresh(roster.size) if measured else {}
        self._has: dict[int, set[str]] = {}  # client -> the memories that it keeps, by their digests

    def train(
        self, round: int, x: Array, cohort: Cohort, population: Population, lr: float, has: Carried = NOTHING
    ) -> Replies:
        """Ask the cohort and return what was heard in time."""
        ids = cohort.ids
        memory = None if has.memory is None else has.memory[ids]
        messages = self._questions(round, x, ids, population, lr, has, memory)
        needed = self._terms.needed(ids.size)
        box = _Box(ids, x.size, population.steps[ids])
        wait = self._terms.answer_seconds
        for row, reply, seconds in collect(self._grid, messages, wait, needed, self._terms, self._clock):
            box.put(row, reply, seconds, self._tensors, x, self._terms.most_samples)
        box.close(wait, enough=int(box.received.sum()) >= needed)
        replies = with_change(box.replies(), self._solver, self.layout.parameters, has, ids, population, lr)
        replies, refused = admit(replies, cohort, self.layout)
        self._keep_in_mind(ids, memory, replies)
        if self._measured:
            self.seen = self._measured.visited(self.seen, ids, replies.received, replies.seconds)
        else:
            replies = replies._replace(seconds=population.latency[ids])
        few = int(replies.received.sum())
        least = min(self._terms.fewest, ids.size)
        abandoned = f"{few} of {ids.size} clients answered, {least} must" if few < least else ""
        return replies._replace(trouble=Trouble(tuple(refused), tuple(box.failed), abandoned))

    def _questions(
        self,
        round: int,
        x: Array,
        ids: Array,
        population: Population,
        lr: float,
        has: Carried,
        memory: Array | None,
    ) -> list[Message]:
        model, half = self._tensors.record(x), client_half(self._solver)
        share, life = shares(ids, population), self._terms.answer_seconds + LIFE
        messages = []
        for row, client in enumerate(ids.tolist()):
            name, vector = "", None
            if memory is not None:
                name = digest(memory[row])
                vector = memory[row] if name and name not in self._has.get(client, ()) else None
            work = int(population.steps[client]), int(population.batch_size[client])
            task = Task(round, client, self._seed, *work, lr, float(share[row]), half, name)
            content = ask(task, _same(model), Extras(has.sent, vector))
            node = self._roster.node[client]
            messages.append(Message(content, node, MessageType.TRAIN, group_id=str(round), ttl=life))
        return messages

    def _keep_in_mind(self, ids: Array, memory: Array | None, replies: Replies) -> None:
        """Remember which memories each client keeps now: the one it began with, and the one it has learned."""
        if memory is None or replies.change is None:
            return
        for row, client in enumerate(ids.tolist()):
            heard = replies.received[row]
            both = {digest(memory[row]), digest(memory[row] + replies.change[row])}
            self._has[client] = both if heard else set()  # one that failed may have lost its own: it gets it again

    def rehearse(
        self, round: int, x: Array, ids: Array, population: Population, lr: float, has: Carried = NOTHING
    ) -> NoReturn:
        """Refuse: an oracle is for simulations."""
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    def gradients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: true gradients are for simulations."""
        raise BadInput("A real fleet does not tell its true gradients: --true-gradients is for the simulator.")


def _same(model: ArrayRecord) -> ArrayRecord:
    """Return a record of the same arrays, so that no message can change another's; nothing is copied."""
    return ArrayRecord(dict(model.items()))


class _Box:
    """The answers of a round as they come, row by row."""

    def __init__(self, ids: Array, dim: int, steps: Array):
        k = ids.size
        self.ids, self.received, self.answered = ids, np.zeros(k, bool), np.zeros(k, bool)
        self.updates = np.zeros((k, dim), np.float32)
        self.steps = np.array(steps)
        self.loss, self.first, self.seconds = (np.full(k, np.nan) for _ in range(3))
        self.bytes_up = np.zeros(k, np.int64)
        self.refused: list[str] = []
        self.failed: list[str] = []

    def put(self, row: int, reply: Message, seconds: float, tensors: Tensors, x: Array, most_samples: float) -> None:
        """Take in one answer, good or bad."""
        client = int(self.ids[row])
        self.answered[row], self.seconds[row] = True, seconds
        if reply.has_error():
            self.failed.append(f"client {client}: {why_failed(reply)}")
            return
        self.bytes_up[row] = size(reply.content)
        try:
            about = read_answer(reply.content, tensors, x, self.updates[row], most_samples)
        except Unfit as e:
            self.updates[row] = 0
            self.refused.append(f"client {client} {e}")
            return
        self.received[row] = True
        self.loss[row], self.first[row] = about.loss, about.first_gradient
        self.steps[row] = self.steps[row] if np.isnan(about.steps) else int(about.steps)

    def close(self, waited: float, enough: bool) -> None:
        """Book those who were not heard."""
        why = "was not waited for: enough had answered" if enough else f"did not answer within {waited:g} s"
        self.failed += [f"client {int(client)}: {why}" for client in self.ids[~self.answered]]
        longest = np.nanmax(self.seconds, initial=0.0) if enough else waited
        self.seconds[~self.answered] = longest

    def replies(self) -> Replies:
        """Return what was heard."""
        trouble = Trouble(refused=tuple(self.refused))
        return Replies(
            self.received, self.updates, self.steps, self.loss, self.first, self.seconds, self.bytes_up, trouble=trouble
        )


def why_failed(reply: Message) -> str:
    """Return what Flower says of a client that did not do its work, in one line."""
    if reply.error.code == GONE:
        return "its node is gone"
    lines = (reply.error.reason or "").strip().splitlines()
    return f"its app failed: {lines[-1]}" if lines else f"its app failed (Flower's error {reply.error.code})"
