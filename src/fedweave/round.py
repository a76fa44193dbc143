"""One federated round, as every paper writes it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from fedweave.admit import admit, sensible
from fedweave.method import Method
from fedweave.randomness import Stream, rng_for
from fedweave.records import Array, Cohort, Population, Replies, ServerState, View
from fedweave.roles import Engine
from fedweave.server import advance


class Round(NamedTuple):
    """What happened in one round, for the record."""

    cohort: Cohort
    replies: Replies
    refused: list[str]  # why an update that arrived was not used, one sentence each
    lr: float  # of the clients


def first_state(method: Method, x: Array, population: Population, parameters: int) -> ServerState:
    """Return the state before the first round."""
    return ServerState(
        round=0,
        x=x,
        clock=0.0,
        sampler=method.sampler.init(population),
        aggregator=method.aggregator.init(population, x.size),
        server=method.server.init(parameters),
    )


def run_round(
    method: Method,
    state: ServerState,
    population: Population,
    engine: Engine,
    lr: float,
    seed: int,
    calibrate: bool = False,
) -> tuple[ServerState, Round]:
    """Sample, train, admit, combine, step, learn."""
    r = state.round + 1
    rehearse = partial(engine.rehearse, r, state.x, population=population, lr=lr)
    view = View(r, state.x, population, engine.layout, lr, method.solver.effort, rehearse)
    lr = calibrated(method, state, view) if calibrate else lr
    cohort = sensible(method.sampler.draw(state.sampler, view, rng_for(seed, r, Stream.SAMPLER)), method, population)
    replies, refused = admit(engine.train(r, state.x, cohort, population, lr), cohort, engine.layout)
    direction, aggregator = method.aggregator.combine(state.aggregator, view, cohort, replies)
    x, server = advance(method.server, state.server, state.x, direction, engine.layout)
    sampler = method.sampler.learn(state.sampler, view, cohort, replies)
    clock = state.clock + float(np.max(replies.seconds, initial=0.0))
    happened = Round(cohort, replies, refused, lr)
    if not np.isfinite(x).all():  # nothing of such a round may stay
        refused.append(f"server: {type(method.server).__name__} made the model not finite; the round is abandoned")
        return state._replace(round=r, clock=clock), happened
    return ServerState(r, x, clock, sampler, aggregator, server), happened


def calibrated(method: Method, state: ServerState, view: View) -> float:
    """Return the learning rate at which this method's round is as long as FedAvg's by importance sampling (FedACS I.2).

    FedAvg moves η Σ ω (1 − q) ‖a‖₁ per unit gradient, the method η' Σ c ‖a‖₁; efforts are taken at the nominal η.
    """
    p = view.population
    fedavg = float(p.weight @ ((1 - p.loss_rate) * view.effort))
    return view.lr * fedavg / method.aggregator.step_length(view, method.sampler.law(state.sampler, view))
