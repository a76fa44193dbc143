"""One federated round, as every paper writes it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.randomness import Stream, borrow
from fedweave.core.records import SERVER, Array, Carried, Cohort, Failure, Population, Replies, ServerState, View
from fedweave.core.roles import Engine
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.admission import admit, check_cohort, not_finite
from fedweave.round.closing import NO_RULES, Rules, abandoned, close_round, trust_after, trusted
from fedweave.round.memories import all_bytes_down, blank, carried, committed
from fedweave.server import advance


class Round(NamedTuple):
    """What happened in one round, for the record."""

    cohort: Cohort
    replies: Replies
    refused: list[Failure]  # why an update that arrived was not used
    view: View  # what the stages saw, with this round's learning rate
    direction: Array
    bytes_down: int  # sent to all of the cohort
    abandoned: str = ""  # why nothing of this round counts

    @property
    def lr(self) -> float:
        """Learning rate of the clients."""
        return self.view.lr

    def failures(self) -> list[tuple[str, Failure]]:
        """Return what went wrong, each with its kind: refused, failed or abandoned."""
        kinds = ("refused", self.refused), ("failed", self.replies.failures.failed)
        found = [(kind, failure) for kind, failures in kinds for failure in failures]
        return [*found, *([("abandoned", Failure(SERVER, self.abandoned))] if self.abandoned else [])]


def first_state(method: Method, x: Array, population: Population, parameters: int) -> ServerState:
    """Return the state before the first round."""
    return ServerState(
        round=0,
        x=x,
        clock=0.0,
        sampler=method.sampler.init(population),
        aggregator=method.aggregator.init(population, x.size),
        server=method.server.init(parameters),
        clients=blank(method, population, x),
        upload=method.upload.init(population),
    )


def run_round(
    method: Method,
    state: ServerState,
    population: Population,
    engine: Engine,
    lr: float,
    seed: int,
    calibrate: bool = False,
    rules: Rules = NO_RULES,
) -> tuple[ServerState, Round]:
    """Sample, allocate, send, train, admit, combine, step, learn."""
    r, population = state.round + 1, trusted(population, state.trust, rules)
    has = carried(method, state)
    view = view_of(method, state, population, engine, lr, has, seed)
    view = calibrated(method, state, view) if calibrate else view
    cohort = check_cohort(method.sampler.draw(state.sampler, view, borrow(seed, r, Stream.SAMPLER)), method, population)
    crash_point("sampled")
    if (dropout := method.upload.allocate(state.upload, view, cohort)) is not None:
        has = has._replace(dropout=dropout)
    replies = close_round(engine.train(r, state.x, cohort, population, view.lr, has), cohort, rules)
    crash_point("trained")
    replies, refused = admit(replies, cohort, engine.layout, rules.longest)
    direction, aggregator = method.aggregator.combine(state.aggregator, view, cohort, replies)
    crash_point("combined")
    x, server = advance(method.server, state.server, state.x, direction, engine.layout)
    sampler = method.sampler.learn(state.sampler, view, cohort, replies)
    upload = method.upload.learn(state.upload, view, cohort, replies)
    clients = committed(state.clients, cohort, replies, method.upload.refreshes(r))
    clock = state.clock + (float(replies.seconds.max()) if cohort.ids.size else 0.0)
    down = all_bytes_down(replies, state.x, has) + state.x.nbytes * cohort.probed
    trust = trust_after(state.trust, refused, population.size, rules)
    why = abandoned(replies, refused, rules) or not_finite(x, method)
    happened = Round(cohort, replies, refused, view, direction, down, why)
    if why:  # nothing of such a round may stay, but whom not to believe
        return state._replace(round=r, clock=clock, trust=trust), happened
    return ServerState(r, x, clock, sampler, aggregator, server, clients, upload, trust), happened


class _Asking(NamedTuple):
    """Probes by an engine, looked up when used: one that cannot answer is no harm to who does not ask."""

    engine: Engine
    round: int
    x: Array
    population: Population

    def losses(self, ids: Array) -> Array:
        return self.engine.losses(self.x, ids)

    def gradients(self, ids: Array) -> Array:
        return self.engine.gradients(self.x, ids)

    def variances(self, ids: Array) -> Array:
        return self.engine.variances(self.round, self.x, ids, self.population)


def view_of(
    method: Method,
    state: ServerState,
    population: Population,
    engine: Engine,
    lr: float,
    has: Carried | None = None,
    seed: int = 0,
) -> View:
    """Return what the stages of the next round may see."""
    r = state.round + 1
    effort_of = partial(method.solver.effort, lr=lr)
    has = has or carried(method, state)
    rehearse = partial(engine.rehearse, r, state.x, population=population, lr=lr, has=has)
    return View(
        r,
        state.x,
        population,
        engine.layout,
        lr,
        effort_of,
        rehearse,
        [],
        seed,
        _Asking(engine, r, state.x, population),
    )


def calibrated(method: Method, state: ServerState, view: View) -> View:
    """Return the view with the learning rate at which this round is as long as that of FedAvg by importance sampling.

    FedAvg moves η Σ ω (1 − q) ‖a‖₁ per unit gradient, the method η' Σ c ‖a‖₁, efforts at the nominal η (FedACS I.2).
    """
    p = view.population
    fedavg = float(p.weight @ (p.arrival_rate * view.effort))
    length = method.aggregator.step_length(view, method.sampler.law_once(state.sampler, view))
    if not 0 < length < np.inf:
        parts = f"{type(method.sampler).__name__} with {type(method.aggregator).__name__}"
        raise BadInput(f"{method.name} cannot be calibrated: the step length of {parts} is not known.")
    lr = view.lr * fedavg / length
    after = View(
        view.round, view.x, p, view.layout, lr, view.effort_of, view.rehearse, view.laws, view.seed, view.probes
    )
    after.__dict__["effort"] = view.effort  # at the nominal lr, so it stays as it is
    return after
