"""A round in two parts, for a framework that takes the questions first and brings the answers later.

A round is a pure function of its state, so it is played twice: until it asks, and again with the answers to the end.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NoReturn

from fedweave.core.records import NOTHING, Array, Carried, Cohort, Layout, Population, Replies, ServerState
from fedweave.core.roles import Sampler
from fedweave.core.settings import BadInput
from fedweave.fleet.server.questions import Question
from fedweave.method import Method
from fedweave.round.closing import Rules
from fedweave.round.steps import Round, run_round


def played_to_the_question(
    method: Method, state: ServerState, population: Population, layout: Layout, lr: float, seed: int
) -> Question:
    """Return what the next round asks of whom."""
    engine: Any = _Waiting(layout)
    try:
        run_round(method, state, population, engine, lr, seed)
    except _Stop as stop:
        return stop.question
    raise AssertionError("a round that asks nobody")


def played_to_the_end(
    method: Method,
    state: ServerState,
    population: Population,
    layout: Layout,
    lr: float,
    seed: int,
    cohort: Cohort,
    replies: Replies,
    rules: Rules,
) -> tuple[ServerState, Round]:
    """Return the state after the round in which this cohort was asked and gave these replies.

    ``population`` may have learned from the replies how many samples and steps the clients have: the draw is done.
    """
    drawn, engine = copy(method), _Waiting(layout, replies)
    object.__setattr__(drawn, "sampler", _Drawn(method.sampler, cohort))
    stage: Any = engine
    return run_round(drawn, state, population, stage, lr, seed, rules=rules)


class _Drawn:
    """A sampler that has drawn already; in everything else it is itself."""

    def __init__(self, sampler: Sampler, cohort: Cohort):
        self._sampler, self._cohort = sampler, cohort

    def draw(self, *_: Any) -> Cohort:
        return self._cohort

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Stop(Exception):  # noqa: N818 - not an error: the round has come to its question
    def __init__(self, question: Question):
        super().__init__()
        self.question = question


class _Waiting:
    """An engine that has the answers already, or stops the round where it asks."""

    def __init__(self, layout: Layout, replies: Replies | None = None):
        self.layout, self._replies = layout, replies

    def train(
        self, round: int, x: Array, cohort: Cohort, population: Population, lr: float, has: Carried = NOTHING
    ) -> Replies:
        if self._replies is None:
            raise _Stop(Question(round, x, cohort, population, lr, has))
        return self._replies

    def rehearse(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    def losses(self, *_: Any) -> NoReturn:
        raise BadInput(
            "A strategy cannot ask clients how they do before it chooses whom to train: give the method to "
            "fedweave.flower.server instead, which can."
        )
