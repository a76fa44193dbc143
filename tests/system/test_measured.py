"""A fleet as its server sees it: rates and computing times from the bytes and seconds of messages."""

import numpy as np
import pytest

import worlds
from fedweave.solve import dropout_plan
from fedweave.system import Measured
from fedweave.system.measured import FAITH, FASTEST

SIZE = 1e6  # bytes of the model


def seen_of(visits, system=None, clients=1):
    """Return the estimates after visits (ids, seconds, bytes), all of them heard."""
    system, seen = system or Measured(memory=1.0), (system or Measured(memory=1.0)).fresh(clients)
    for ids, seconds, sent in visits:
        seen = system.visited(
            seen, np.atleast_1d(ids), np.ones(np.size(ids), bool), *map(np.atleast_1d, (seconds, sent))
        )
    return seen


def known(seen, system=None, clients=1):
    return (system or Measured(memory=1.0)).known(
        worlds.equal_clients(clients, model_bytes=np.full(clients, SIZE)), seen
    )


def computing(p):
    """Return the seconds that FedDD takes for computing: what a whole model's links leave of the latency."""
    return p.latency - 8 * SIZE / p.up_rate - 8 * SIZE / p.down_rate


def test_messages_of_different_sizes_tell_the_rate_and_the_rest():
    """Against NumPy's own line fit, with noise: the assumption is worth a hundredth of a visit."""
    rng = np.random.default_rng(0)
    sent = SIZE * rng.uniform(0.2, 1, 60)
    seconds = 5.0 + 8 * sent / 2e5 + rng.normal(0, 2, 60)
    p = known(seen_of([(0, s, b) for s, b in zip(seconds, sent, strict=True)]))
    slope, rest = np.polyfit(sent, seconds, 1)
    assert 8 / p.up_rate[0] == pytest.approx(slope, rel=0.01)
    assert computing(p)[0] == pytest.approx(rest, abs=0.2)
    assert p.latency[0] == pytest.approx(rest + slope * SIZE, rel=0.01)


def test_the_line_is_the_least_squares_of_the_visits_and_the_assumption():
    """The sum of squares with FAITH visits that say b·ū = sending·t̄, minimised on a grid."""
    visits = [(10.0, 1.0), (8.0, 0.9), (9.0, 0.7)]
    system = Measured(memory=1.0, sending=0.3)
    p = known(seen_of([(0, t, SIZE * u) for t, u in visits], system), system)
    t, u = np.array(visits).T
    slopes = np.linspace(0, 14, 14001)
    rest = t.mean() - slopes * u.mean()
    cost = ((t - rest[:, None] - slopes[:, None] * u) ** 2).sum(1)
    cost += FAITH * (slopes * u.mean() - 0.3 * t.mean()) ** 2
    assert 8 * SIZE / p.up_rate[0] == pytest.approx(slopes[cost.argmin()], abs=2e-3)


@pytest.mark.parametrize("visits", [1, 7])
def test_messages_of_one_size_are_split_by_assumption(visits):
    system = Measured(sending=0.25)
    p = known(seen_of([(0, 8.0, SIZE)] * visits, system), system)
    assert 8 * SIZE / p.up_rate[0] == pytest.approx(2)
    assert computing(p)[0] == pytest.approx(6)
    assert p.latency[0] == pytest.approx(8)
    assert p.down_rate[0] == pytest.approx(FASTEST)
    both = Measured(sending=0.25, receiving=0.5)
    p = known(seen_of([(0, 8.0, SIZE)] * visits, both), both)
    assert 8 * SIZE / p.down_rate[0] == pytest.approx(3)
    assert computing(p)[0] == pytest.approx(3)


def test_what_was_left_out_is_added_to_the_latency():
    p = known(seen_of([(0, 3 + 8 * u, u * SIZE) for u in (1.0, 0.2, 0.2, 0.2, 0.2, 0.2)]))
    assert p.latency[0] == pytest.approx(11, rel=0.01)  # of a whole model
    whole = known(seen_of([(0, 8.0, SIZE + 300)]))  # a few numbers travel beside the model
    assert whole.latency[0] == 8.0


@pytest.mark.parametrize("nonsense", [np.nan, np.inf, -5.0, 1e9, 0.0])
def test_one_nonsense_time_does_not_decide(nonsense):
    good = [(0, 3 + 8 * u, u * SIZE) for u in np.linspace(0.2, 1, 20)]
    before, after = known(seen_of(good)), known(seen_of([*good, (0, nonsense, SIZE)]))
    assert np.isfinite(after.up_rate).all()
    link = [8 * SIZE / p.up_rate[0] for p in (before, after)]
    assert link[0] / 2 < link[1] < 3 * link[0]


def test_a_client_that_was_not_heard_is_taken_for_average_and_without_visits_nothing_is_known():
    system = Measured()
    seen = seen_of([(np.arange(2), np.array([4.0, 8.0]), np.full(2, SIZE))], system, clients=3)
    p = known(seen, system, clients=3)
    assert 8 * SIZE / p.up_rate == pytest.approx([2, 4, 3])
    silent = system.visited(system.fresh(3), np.arange(3), np.zeros(3, bool), np.full(3, 30.0), np.zeros(3))
    assert known(silent, system, clients=3).up_rate is None
    assert system.known(worlds.equal_clients(3), seen).up_rate is None  # of models of no known size


def test_a_level_line_and_one_through_the_origin_are_the_ends():
    rising = known(seen_of([(0, 20 - 10 * u, u * SIZE) for u in (0.2, 0.6, 1.0)]))  # longer for less
    assert rising.up_rate[0] == pytest.approx(FASTEST)
    steep = known(seen_of([(0, 20 * u - 3, u * SIZE) for u in (0.2, 0.6, 1.0)]))
    assert computing(steep)[0] == pytest.approx(0, abs=1.0)
    assert (computing(steep) > -1e-6).all()


@pytest.mark.parametrize(("noise", "seed"), [(0.0, 0), (0.0, 1), (0.03, 2), (0.03, 3)])
def test_feddds_plan_on_a_fleet_becomes_that_of_known_rates(noise, seed):
    """Ten clients of known rates; each round the plan of the estimates decides what is sent in the next."""
    rng, n, keep = np.random.default_rng(seed), 10, 0.6
    compute, up, worth = rng.uniform(1, 10, n), 8 * SIZE / rng.uniform(1, 40, n), rng.uniform(0.5, 1.5, n)
    bits, free, rate, system = np.full(n, 8 * SIZE), np.full(n, np.inf), np.zeros(n), Measured()
    right, seen = dropout_plan(bits, compute, up, free, worth, keep, 0.8, 0.0), system.fresh(n)
    for _ in range(25):
        sent = SIZE * (1 - rate)
        seconds = (compute + 8 * sent / up) * rng.lognormal(0, noise, n)
        seen = system.visited(seen, np.arange(n), np.ones(n, bool), seconds, sent)
        p = system.known(worlds.equal_clients(n, model_bytes=np.full(n, SIZE)), seen)
        rate = dropout_plan(bits, np.maximum(computing(p), 0), p.up_rate, p.down_rate, worth, keep, 0.8, 0.0)
    ours, best, whole = ((compute + bits * (1 - r) / up).max() for r in (rate, right, np.zeros(n)))
    assert ours < 1.05 * best < 0.8 * whole
    if not noise:
        moved = right > 0.3  # who always sends everything cannot be told apart, and need not be
        assert p.up_rate[moved] == pytest.approx(up[moved], rel=0.02)
        assert computing(p)[moved] == pytest.approx(compute[moved], rel=0.1)
        assert rate == pytest.approx(right, abs=0.005)
