"""One federated round, as every paper writes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.admit import admit
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
    method: Method, state: ServerState, population: Population, engine: Engine, lr: float, seed: int
) -> tuple[ServerState, Round]:
    """Sample, train, admit, combine, step, learn."""
    r = state.round + 1
    effort = method.solver.effort(population.steps, lr)
    view = View(r, state.x, population, engine.layout, effort)
    cohort = method.sampler.draw(state.sampler, view, rng_for(seed, r, Stream.SAMPLER))
    replies, refused = admit(engine.train(r, state.x, cohort, population), cohort, engine.layout)
    direction, aggregator = method.aggregator.combine(state.aggregator, view, cohort, replies)
    x, server = advance(method.server, state.server, state.x, direction, engine.layout)
    sampler = method.sampler.learn(state.sampler, view, cohort, replies)
    clock = state.clock + float(np.max(replies.seconds, initial=0.0))
    return ServerState(r, x, clock, sampler, aggregator, server), Round(cohort, replies, refused)
