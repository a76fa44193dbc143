"""The engine of a real fleet: asks over Flower's grid, waits no longer than agreed, and books every failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any, NoReturn

from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.engine.flower.asking import Asker, Question
from fedweave.engine.flower.mail import collect
from fedweave.engine.flower.roster import Roster
from fedweave.engine.flower.terms import Clock, Terms
from fedweave.engine.flower.wire import Tensors
from fedweave.records import NOTHING, Array, Carried, Cohort, Layout, Population, Replies, State
from fedweave.roles import Solver
from fedweave.settings import BadInput
from fedweave.system.measured import Measured

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
        self.layout, self._evaluate = layout, evaluate
        self._grid, self._roster, self._terms, self._clock = grid, roster, terms, clock
        self._asker = Asker(Tensors.of_layout(layout), solver, seed, terms)
        self._measured = measured
        self.seen: State = measured.fresh(roster.size) if measured else {}

    def train(
        self, round: int, x: Array, cohort: Cohort, population: Population, lr: float, has: Carried = NOTHING
    ) -> Replies:
        """Ask the cohort and return what was heard in time."""
        ids, wait, needed = cohort.ids, self._terms.answer_seconds, self._terms.needed(cohort.ids.size)
        log(INFO, "fedweave: round %s asks clients %s", round, " ".join(map(str, ids.tolist())))
        question = Question(round, x, cohort, population, lr, has)
        model = self._asker.tensors.record(x)
        messages = self._asker.messages(question, self._roster.node, model, wait, None)
        box = self._asker.box(question)
        for row, reply, seconds in collect(self._grid, messages, wait, needed, self._terms, self._clock):
            box.put(row, reply, seconds)
        box.close(wait, enough=int(box.received.sum()) >= needed)
        replies = self._asker.replies(question, box)
        for sentence in (*replies.trouble.refused, *replies.trouble.failed):
            log(INFO, "fedweave: round %s, %s", round, sentence)
        if not self._measured:
            return replies._replace(seconds=population.latency[ids])
        self.seen = self._measured.visited(self.seen, ids, replies.received, replies.seconds)
        return replies

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the server's own test set."""
        return self._evaluate(x)

    def rehearse(
        self, round: int, x: Array, ids: Array, population: Population, lr: float, has: Carried = NOTHING
    ) -> NoReturn:
        """Refuse: an oracle is for simulations."""
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    def gradients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: true gradients are for simulations."""
        raise BadInput("A real fleet does not tell its true gradients: --true-gradients is for the simulator.")
