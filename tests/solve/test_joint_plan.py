"""The joint plan of selection and dropout against every subset of tiny fleets, each by a linear program."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog

from fedweave.core.settings import BadInput
from fedweave.solve.joint_plan import joint_plan


def fleet(seed, n):
    rng = np.random.default_rng(seed)
    even = seed % 3 == 0
    size = np.full(n, 8e6) if even else rng.integers(2, 9, n) * 1e6
    up, down = rng.lognormal(14, 1, n), rng.lognormal(15, 1, n)
    compute, worth = rng.lognormal(0, 1, n) * (rng.random(n) < 0.8), rng.random(n) * (rng.random(n) < 0.9)
    return size, compute, up, down, worth


def quick_fleet(seed, n):
    """Links that take hardly any time beside computing; in two of three fleets some, or all, take none."""
    rng = np.random.default_rng(seed)
    free = rng.random(n) < (0.0, 0.5, 1.0)[seed % 3]
    up, down = (np.where(free, np.inf, rng.lognormal(mean, 1.5, n)) for mean in (2, 3))
    return rng.choice([1.0, 1.0, 2.0], n), rng.uniform(0.1, 3, n), up, down, rng.uniform(0.1, 1, n)


def best_of_subset(size, compute, link, worth, budget, least):
    """Return the largest Σ w s/t of these clients: a linear-fractional program, linear in y = s/t and τ = 1/t."""
    n = size.size
    rows = [np.column_stack([np.diag(link), compute]), np.column_stack([np.eye(n), -np.ones(n)])]
    rows += [np.column_stack([-np.eye(n), np.full(n, least)]), np.append(size, -budget)[None]]
    limits = np.concatenate([np.ones(n), np.zeros(2 * n + 1)])
    found = linprog(-np.append(worth, 0.0), np.concatenate(rows), limits, bounds=(0, None), method="highs")
    return -found.fun if found.status == 0 else 0.0


def brute_force(size, compute, up, down, worth, budget, max_rate, most):
    link, ids = size * (1 / up + 1 / down), range(size.size)
    subsets = [np.array(s) for k in range(1, most + 1) for s in combinations(ids, k)]
    fits = [s for s in subsets if (1 - max_rate) * size[s].sum() <= budget]
    rates = [best_of_subset(size[s], compute[s], link[s], worth[s], budget, 1 - max_rate) for s in fits]
    return max(rates, default=0.0)


@pytest.mark.parametrize(("made", "seed"), [(fleet, s) for s in range(24)] + [(quick_fleet, s) for s in range(48)])
def test_no_subset_of_a_tiny_fleet_gains_more_per_second(made, seed):
    rng = np.random.default_rng(1000 + seed)
    n = 6 if made is fleet else int(rng.integers(2, 6))
    given, most, max_rate = made(seed, n), int(rng.integers(1, n + 1)), float(rng.choice([0.0, 0.5, 0.8]))
    budget = float(rng.uniform(0.3, 1.0)) * most * given[0].mean()
    plan = joint_plan(*given, budget, max_rate, most, gap=1e-5)
    optimum = brute_force(*given, budget, max_rate, most)
    assert optimum <= plan.bound * (1 + 1e-9)
    assert plan.gain >= optimum * plan.seconds * (1 - 2e-5)
    size, compute, up, down, worth = given
    asked = plan.share > 0
    assert asked.sum() <= most
    assert (plan.share[asked] >= (1 - max_rate) * (1 - 1e-9)).all()
    assert plan.share.max() <= 1
    assert size @ plan.share <= budget * (1 + 1e-9)
    assert plan.gain == pytest.approx(worth @ plan.share)
    assert plan.seconds == pytest.approx((compute + size * (1 / up + 1 / down) * plan.share)[asked].max(initial=0))
    if not asked.any():
        assert optimum == 0
        return
    again = joint_plan(*given, budget, max_rate, most, asked=asked, gap=1e-5)
    assert again.gain / again.seconds == pytest.approx(plan.gain / plan.seconds, rel=3e-5)
    assert ((again.share > 0) == asked).all()


def test_equal_clients_are_all_asked_as_far_as_the_budget_goes():
    """t and gain are both proportional to what is sent when nobody computes; with computing, sending more pays."""
    plan = joint_plan(np.full(5, 1e6), np.ones(5), np.full(5, 2e6), np.full(5, 2e6), np.ones(5), 5e6, 0.8)
    assert plan.share == pytest.approx(1.0)
    assert (plan.seconds, plan.gain, plan.bound) == pytest.approx((2.0, 5.0, 2.5), rel=1e-3)


def test_a_straggler_sends_little_or_is_left_out():
    size, compute, down, worth = np.full(4, 1e6), np.full(4, 0.1), np.full(4, np.inf), np.ones(4)
    slow = joint_plan(size, compute, np.array([1e6, 1e6, 1e6, 3e5]), down, worth, 4e6, 0.8)
    assert slow.share == pytest.approx([1, 1, 1, 0.3], rel=1e-2)
    hopeless = joint_plan(size, compute, np.array([1e6, 1e6, 1e6, 1e4]), down, worth, 4e6, 0.8)
    assert hopeless.share == pytest.approx([1, 1, 1, 0], rel=1e-2)
    needed = joint_plan(size, compute, np.array([1e6, 1e6, 1e6, 1e4]), down, np.array([1, 1, 1, 999.0]), 4e6, 0.8)
    assert needed.share[3] > 0


@pytest.mark.parametrize("n", [100, 1000])
def test_large_fleets_come_with_a_certificate(n):
    given = fleet(n, n)
    plan = joint_plan(*given, 0.6 * 20 * given[0].mean(), 0.8, 20)
    assert plan.gain / plan.seconds >= plan.bound / 1.001


def test_where_nobody_can_be_asked_nobody_is():
    given = fleet(1, 4)
    assert joint_plan(*given, 1.0, 0.0).share.tolist() == [0, 0, 0, 0]
    assert joint_plan(*given[:4], np.zeros(4), 1e9, 0.5).bound == 0


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(BadInput) as caught:
        joint_plan(np.array([1.0, -1.0]), np.array([np.nan, 1.0]), 0.0, 1.0, -1.0, 0.0, 1.0, 0)
    assert len(caught.value.problems) == 7
