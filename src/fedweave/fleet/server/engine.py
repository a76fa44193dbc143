"""The engine of a real fleet: asks over Flower's grid, waits no longer than agreed, and books every failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.client.bytes import upload_bytes
from fedweave.core.records import Array, Assignment, Layout, Population, Replies, State
from fedweave.core.settings import BadInput
from fedweave.engine.links import participation_seconds
from fedweave.fleet.server.mail import at_once, collect
from fedweave.fleet.server.questions import LIFE, Asker, Question
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import Clock, Terms
from fedweave.fleet.wire.answer import read_loss
from fedweave.fleet.wire.request import QUERY_LOSS, ask_loss
from fedweave.fleet.wire.tensors import Tensors, Unfit
from fedweave.method import Method
from fedweave.system.measured import Measured
from fedweave.upload.codec import ClientModel, ModelFleet

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
        method: Method,
        seed: int,
        evaluate: Evaluate,
        terms: Terms,
        measured: Measured | None,
        clock: Clock,
    ):
        self.layout, self._evaluate = layout, evaluate
        self._grid, self._roster, self._terms, self._clock = grid, roster, terms, clock
        self._method, self._seed = method, seed
        self._asker = Asker(Tensors.of_layout(layout), method.solver, seed, terms, upload=method.upload)
        self._measured, self._models = measured, ModelFleet((ClientModel(layout),))
        self.seen: State = measured.fresh(roster.size) if measured else {}

    def train(self, assignment: Assignment) -> Replies:
        """Ask the cohort and return what was received in time."""
        ids, wait = assignment.cohort.ids, self._terms.answer_seconds
        needed = self._terms.needed(ids.size)
        log(INFO, "fedweave: round %s asks clients %s", assignment.round, " ".join(map(str, ids.tolist())))
        question, model = Question(assignment), self._asker.tensors.record(assignment.x)
        messages = self._asker.messages(question, self._roster.node, model, wait, None)
        box = self._asker.box(question)
        few = at_once(assignment.x.nbytes)
        for row, reply, seconds in collect(self._grid, messages, wait, needed, self._terms, self._clock, few):
            box.put(row, reply, seconds)
        box.close(wait, enough=int(box.received.sum()) >= needed)
        replies = self._asker.replies(question, box)
        for failure in (*replies.failures.refused, *replies.failures.failed):
            log(INFO, "fedweave: round %s, %s", assignment.round, failure)
        if not self._measured:
            return replies._replace(seconds=self._world_seconds(question))
        self.seen = self._measured.visited(self.seen, ids, replies.received, replies.seconds, replies.bytes_up)
        return replies

    def _world_seconds(self, q: Question) -> Array:
        """Return the seconds (k,) of this round in the experiment's own world, whose links have rates for bytes."""
        assignment, upload = q.assignment, self._method.upload
        up = upload_bytes(assignment, upload, self._method.solver, self._models)
        down = None if upload.identity else assignment.x.itemsize * q.fetched
        return participation_seconds(assignment, up, down)

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the server's own test set."""
        return self._evaluate(x)

    evaluate_later = evaluate  # a round of a fleet is too expensive to wait for the next

    def evaluate_clients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: the test data of a fleet's clients is not asked for yet."""
        raise BadInput("A real fleet does not tell scores on its own test data: --client-eval is for the simulator.")

    def rehearse(self, assignment: Assignment) -> NoReturn:
        """Refuse: an oracle is for simulations."""
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss of ``x`` on each one's own data; −inf for those who do not say, so that others train."""
        model, wait = self._asker.tensors.record(x), self._terms.answer_seconds
        content, nodes = ask_loss(model, self._seed), [self._roster.node[client] for client in ids.tolist()]
        messages = [Message(content, node, QUERY_LOSS, group_id="loss", ttl=wait + LIFE) for node in nodes]
        found = np.full(ids.size, -np.inf)
        for row, reply, _ in collect(self._grid, messages, wait, ids.size, self._terms, self._clock):
            try:
                found[row] = -np.inf if reply.has_error() else read_loss(reply.content)
            except Unfit as e:
                log(INFO, "fedweave: client %s: %s", ids[row], e)
        return found

    def gradients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: true gradients are for simulations."""
        raise BadInput("A real fleet does not tell its true gradients: --true-gradients is for the simulator.")

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> NoReturn:
        """Refuse: a fleet measures variances while it trains."""
        raise BadInput("A real fleet cannot be asked for its variances beforehand: this sampler is for the simulator.")
