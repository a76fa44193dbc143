"""Asynchronous rounds in random worlds: whatever the links do, every run ends and nobody is under way twice."""

import numpy as np
from fleet import THOROUGH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedweave as fw
import worlds
from fedweave import aggregate, sample
from fedweave.core.flights import flights_of, impossible
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.pacing import Buffered, Synchronous
from fedweave.round import first_state, run_round

ROUNDS = 12


class Watched(Simulator):
    """A simulator that looks at everything that is under way, at every draw event."""

    most, sent, kept = np.inf, 0, ()

    def send(self, assignment):
        ids = assignment.cohort.ids
        assert not set(ids.tolist()) & set(self.kept)  # under way already
        self.sent += int(assignment.cohort.count.sum())
        return super().send(assignment)

    def wait(self, flights, enough, until):
        assert np.unique(flights.client).size == flights.client.size
        assert flights.under_way <= self.most
        over = super().wait(flights, enough, until)
        self.kept = flights.client[~over.rows].tolist()
        return over


@st.composite
def pacings(draw):
    if draw(st.booleans()):
        concurrency = draw(st.integers(1, 7))
        timeout = draw(st.none() | st.floats(0.1, 3))
        return Buffered(concurrency, draw(st.integers(1, concurrency)), timeout, draw(st.integers(0, 4)))
    return Synchronous(draw(st.none() | st.floats(0.1, 3)), draw(st.none() | st.integers(1, 4)), late="discount")


@settings(
    max_examples=10_000 if THOROUGH else 150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(pacings(), st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.9, 0.99]), st.booleans())
def test_every_run_ends_and_nobody_is_under_way_twice(pacing, n, seed, loss, replacement):
    per_round = min(3, n)
    sampler = sample.Weighted(per_round) if replacement else sample.Deadline(per_round)
    method = fw.Method(sampler, aggregator=aggregate.Stale(aggregate.Anonymous()), pacing=pacing).widened

    def world(number):
        rng = np.random.default_rng([seed, number])
        return worlds.equal_clients(
            n,
            latency=rng.integers(0, 4, n) / 2,  # ties, and answers at once
            loss_rate=loss * rng.random(n),
            available=rng.random(n) < rng.choice([0.0, 0.5, 1.0]),
            steps=rng.integers(1, 4, n),
        )

    engine = Watched(QuadraticTrainer(Quadratics.random(n, 2), method.solver, seed, np.full(n, 1 / n)))
    engine.most = pacing.concurrency if isinstance(pacing, Buffered) else np.inf
    state, absorbed = first_state(method, np.ones(2), world(1), 2), 0
    for r in range(1, ROUNDS + 1):
        before = state
        state, happened = run_round(method, state, world, engine, 0.1, seed)
        replies, cohort = happened.replies, happened.cohort
        assert state.round == r
        assert state.clock >= before.clock
        assert (np.diff(cohort.ids) > 0).all()
        assert (replies.staleness[replies.received] <= pacing.most_staleness).all()
        assert (replies.staleness >= 0).all()
        absorbed += int(cohort.count.sum())
        left = flights_of(state.flights)
        engine.kept = left.client.tolist()
        assert (left.due >= state.clock).all()
        assert absorbed + left.under_way == engine.sent  # nobody is forgotten, and nobody counts twice
        columns = {k: v for k, v in state.flights.items() if isinstance(v, np.ndarray)}
        assert impossible(columns, state.round) == ""
        table = state.flights["x"]
        assert np.array_equal(np.flatnonzero(table.written), np.unique(left.version % table.shape[0]))
