"""Rounds that overlap: the same as synchronous ones where they should be, and as event loops written by hand."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.core.flights import flights_of
from fedweave.local.quadratic import Quadratics
from fedweave.pacing import Buffered, Synchronous
from fedweave.round import first_state, run_round
from fedweave.runs.method_names import method_names, parse

N, D, LR = 9, 4, 0.1
PROBLEM = Quadratics.random(N, D)
WEIGHT = np.arange(1.0, N + 1) / np.arange(1.0, N + 1).sum()


def clients(n=N, **fields):
    """Return uneven clients whose links have rates."""
    rate = {"up_rate": np.linspace(50, 90, n), "down_rate": np.linspace(80, 200, n), "model_bytes": np.full(n, 8 * D)}
    plain = {"weight": WEIGHT[:n] / WEIGHT[:n].sum(), "steps": 1 + np.arange(n) % 4, "samples": 5 + np.arange(n)}
    return worlds.equal_clients(n, **(rate | plain | fields))


def even(number):
    """Return a world in which all participations take equally long."""
    return clients(up_rate=None, down_rate=None)


def lognormal(number):
    """Return a world of heavy-tailed seconds, redrawn for each dispatch."""
    return clients(latency=np.random.default_rng(number).lognormal(0, 1, N))


def play(method, rounds, world, seed=0, state=None, **how):
    """Yield the state after each round, and what happened in it."""
    method = method.widened
    engine = worlds.quadratic_simulator(PROBLEM, method.solver, seed, WEIGHT, method.upload)
    state = state or first_state(method, np.full(D, 2.0), world(1), D)
    for _ in range(rounds):
        state, happened = run_round(method, state, world, engine, LR, seed, **how)
        yield state, happened


def told(state, happened):
    """Return all that a round leaves, as bytes."""
    everyone, cohort, replies = np.arange(N), happened.cohort, happened.replies
    tables = [state.sampler, state.aggregator, state.server, state.clients, state.upload]
    arrays = [v if isinstance(v, np.ndarray) else v[everyone] for part in tables for _, v in sorted(part.items())]
    names = ("received", "updates", "steps", "loss", "seconds", "bytes_up", "first_gradient", "first_loss")
    arrays += [state.x, cohort.ids, cohort.count, cohort.expected, happened.direction]
    arrays += [getattr(replies, name) for name in names]
    found = [np.ascontiguousarray(a).tobytes() for a in arrays]
    return [*found, state.clock, state.round, happened.bytes_down, cohort.probed]


def fits(name):
    """Return whether a method can have asynchronous rounds."""
    return not Buffered(3, 3).misfit(parse(name, 3).sampler)


@pytest.mark.parametrize("world", [even, lognormal])
@pytest.mark.parametrize("name", [name for name in method_names() if fits(name)])
def test_as_many_as_the_buffer_without_losses_is_synchronous(name, world):
    """Bit for bit: model, rows, memories and clock, for every method that can."""
    method = parse(name, 3)
    runs = [play(replace(method, pacing=pacing), 6, world) for pacing in (Synchronous(), Buffered(3, 3))]
    for one, other in zip(*runs, strict=True):
        assert told(*one) == told(*other)
        assert not other[1].replies.staleness.any()
        assert not flights_of(other[0].flights).client.size


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedvarp", "latency_uniform", "fedavg_full", "fedaware"])
def test_nobody_late_is_synchronous(name):
    runs = [play(replace(parse(name, 3), pacing=Synchronous(late=late)), 6, lognormal) for late in ("drop", "discount")]
    for one, other in zip(*runs, strict=True):
        assert told(*one) == told(*other)
