"""The first half of a round: who takes part, and what each of them is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.randomness import Stream, borrow
from fedweave.core.records import Array, Assignment, ClientContext, Cohort, Population, Probes, ServerState, View
from fedweave.core.roles import Prober
from fedweave.method import Method
from fedweave.round.calibration import calibrated_lr
from fedweave.round.guard import guarded
from fedweave.round.memories import client_context, empty_memories, no_flights
from fedweave.round.read_only import read_only, read_only_record
from fedweave.round.rules import NO_RULES, Rules, without_quarantined


def first_state(method: Method, x: Array, population: Population, parameters: int) -> ServerState:
    """Return the state before the first round."""
    parts = guarded(method)
    aggregator = parts.aggregator.init(population, x.size)
    return ServerState(
        round=0,
        x=x,
        clock=0.0,
        sampler=parts.sampler.init(population),
        aggregator=aggregator,
        server=parts.server.init(parameters),
        clients=empty_memories(method, population, x),
        upload=parts.upload.init(population),
        flights=no_flights(method, x, parts.aggregator.broadcast(aggregator)) if method.pacing.overlaps else {},
    )


def plan(
    method: Method,
    state: ServerState,
    population: Population,
    prober: Prober,
    lr: float,
    seed: int,
    calibrate: bool = False,
    rules: Rules = NO_RULES,
    number: int | None = None,
) -> Assignment:
    """Sample a cohort and allocate its work; the prober is asked only if a sampler asks.

    ``number`` is that of the dispatch, if it is not that of the round.
    """
    parts, context = guarded(method), client_context(method, state)
    view = view_of(method, state, without_quarantined(population, state.refusals, rules), prober, lr, seed, context)
    cohort = parts.sampler.draw(state.sampler, view, borrow(seed, number or view.round, Stream.SAMPLER))
    crash_point("sampled")
    budget = parts.upload.allocate(state.upload, view, cohort)
    view = replace(view, lr=calibrated_lr(method, state, view)) if calibrate else view
    view.probes.forget()  # an oracle's answers are as large as all clients' models
    return Assignment(view, cohort, context if budget is None else context._replace(budget=budget), number)


def view_of(
    method: Method,
    state: ServerState,
    population: Population,
    prober: Prober,
    lr: float,
    seed: int = 0,
    context: ClientContext | None = None,
) -> View:
    """Return what the stages of the next round may see."""
    make_view = partial(
        View,
        round=state.round + 1,
        x=read_only(state.x),
        population=read_only_record(population) if method.foreign else population,
        layout=prober.layout,
        lr=lr,
        effort_of=partial(method.solver.effort, lr=lr),
        seed=seed,
        secret=getattr(prober, "secret", None),
    )
    return make_view(probes=_RoundProbes(prober, context or client_context(method, state), make_view))


class _RoundProbes(Probes):
    """A round's probes. Looked up lazily, so engines without probes still work.

    Answers are kept for the round: an oracle's law is expensive to compute, and calibration computes it again.
    """

    def __init__(self, prober: Prober, context: ClientContext, make_view: Callable[[], View]):
        # Not the view itself: it holds these probes, and a cycle would keep each round's arrays alive for a while.
        self._prober, self._context, self._make_view = prober, context, make_view
        self._answers: dict[tuple[str, bytes], Array] = {}

    def forget(self) -> None:
        self._answers.clear()

    def _once(self, kind: str, ids: Array, ask: Callable[[Array], Array]) -> Array:
        key = kind, ids.tobytes()
        if key not in self._answers:
            self._answers[key] = read_only(ask(ids))
        return self._answers[key]

    def losses(self, ids: Array) -> Array:
        return self._prober.losses(self._make_view().x, ids)

    def updates(self, ids: Array) -> Array:
        def rehearse(ids: Array) -> Array:
            cohort = Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=np.ones(ids.size))
            return self._prober.rehearse(Assignment(self._make_view(), cohort, self._context))

        return self._once("updates", ids, rehearse)

    def gradients(self, ids: Array) -> Array:
        return self._once("gradients", ids, partial(self._prober.gradients, self._make_view().x))

    def variances(self, ids: Array) -> Array:
        view = self._make_view()
        return self._once(
            "variances", ids, lambda ids: self._prober.variances(view.round, view.x, ids, view.population)
        )
