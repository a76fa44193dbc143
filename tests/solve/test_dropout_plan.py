"""The dropout plan against a hand example, brute force on a grid and an independent linear program, and its laws."""

import numpy as np
import pytest
from scipy.optimize import linprog

from fedweave.core.settings import BadInput
from fedweave.solve import dropout_plan
from fedweave.solve.dropout_plan import round_seconds

HAND = {"size": [1, 1], "compute_seconds": [0.5, 0.2], "up_rate": [1, 2], "down_rate": [10, 10]}


def value(rate, p, contribution, penalty):
    return round_seconds(rate, *p) + penalty * np.asarray(contribution) @ rate


def instance(rng, n=None):
    """A random problem; now and then without compute, with equal clients or equal contributions."""
    n = n or int(rng.integers(1, 40))
    size, up, down = rng.uniform(0.2, 2, n), rng.uniform(0.5, 5, n), rng.uniform(1, 20, n)
    compute, worth = rng.uniform(0, 3, n) * (rng.random() < 0.8), rng.uniform(0, 1, n) * (rng.random(n) < 0.9)
    if rng.random() < 0.2:
        size[:], up[:], down[:] = 1, up[0], down[0]
    if rng.random() < 0.2:
        worth[:] = worth[0]
    most = rng.uniform(0.1, 1)
    return (size, compute, up, down), worth, rng.uniform(1 - most, 1), most, rng.choice([0, 0.1, 1, 10.0])


@pytest.mark.parametrize(
    ("penalty", "rates", "best"),
    [
        (0, (64 / 85, 4 / 85), 328 / 425),
        (0.5, (64 / 85, 4 / 85), 0.9011764705882353),
        (1, (64 / 85, 4 / 85), 1.0305882352941176),
        (5, (0.8, 0.0), 2.0),
    ],
)
def test_the_hand_example(penalty, rates, best):
    found = dropout_plan(**HAND, contribution=[0.3, 0.7], keep=0.6, max_rate=0.8, penalty=penalty)
    assert np.allclose(found, rates, atol=1e-9)
    assert value(found, HAND.values(), [0.3, 0.7], penalty) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3])
def test_no_plan_on_a_grid_is_better(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        p, worth, keep, most, penalty = instance(rng, n)
        ours = value(dropout_plan(*p, worth, keep, most, penalty), p, worth, penalty)
        size, compute, up, down = p
        grid = np.linspace(0, most, 101 if n == 3 else 2001)
        first = np.stack(np.meshgrid(*[grid] * (n - 1)), -1).reshape(-1, n - 1)
        last = ((1 - keep) * size.sum() - first @ size[:-1]) / size[-1]
        rate = np.column_stack([first, last])[(last >= 0) & (last <= most)]
        seconds = (compute + size * (1 - rate) * (1 / up + 1 / down)).max(1)
        assert ours <= (seconds + penalty * rate @ worth).min(initial=np.inf) + 1e-9


def test_two_hundred_plans_are_as_good_as_an_independent_linear_program():
    """The other formulation: variables are the bits that each sends, not the rates, and an interior-point solver."""
    rng, exact = np.random.default_rng(0), {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    for _ in range(200):
        p, worth, keep, most, penalty = instance(rng)
        size, compute, up, down = p
        found = linprog(
            np.append(-penalty * worth / size, 1),
            A_ub=np.hstack([np.diag(1 / up + 1 / down), -np.ones((size.size, 1))]),
            b_ub=-compute,
            A_eq=np.append(np.ones(size.size), 0)[None],
            b_eq=[keep * size.sum()],
            bounds=[*zip(size * (1 - most), size, strict=True), (0, None)],
            method="highs-ipm",
            options=exact,
        )
        rate = dropout_plan(*p, worth, keep, most, penalty)
        assert value(rate, p, worth, penalty) == pytest.approx(found.fun + penalty * worth.sum(), abs=1e-7)
        assert (rate >= 0).all()
        assert (rate <= most).all()
        assert abs(size @ (1 - rate) - keep * size.sum()) < 1e-9


def test_what_is_worth_more_is_dropped_less_and_slower_links_drop_more():
    rng = np.random.default_rng(1)
    for _ in range(50):
        (size, compute, up, down), worth, keep, most, _ = instance(rng, 6)
        size[1], compute[1], up[1], down[1] = size[0], compute[0], up[0], down[0]
        worth[0] = worth[1] + 0.3
        rate = dropout_plan(size, compute, up, down, worth, keep, most, 1.0)
        assert rate[0] <= rate[1] + 1e-12
        worth[0] = worth[1]
        for slow, fast in ((0, 1), (1, 0)):
            link = up.copy()
            link[slow] = up[fast] / 2
            rate = dropout_plan(size, compute, link, down, worth, keep, most, rng.choice([0, 1.0]))
            assert rate[slow] >= rate[fast] - 1e-12


def test_the_order_of_clients_does_not_matter_and_units_cancel():
    rng = np.random.default_rng(2)
    p, worth, keep, most, penalty = instance(rng, 12)
    order = rng.permutation(12)
    rate = dropout_plan(*p, worth, keep, most, penalty)
    again = dropout_plan(*(c[order] for c in p), worth[order], keep, most, penalty)
    assert np.allclose(again, rate[order], atol=1e-12)
    size, compute, up, down = p
    mega = dropout_plan(1e6 * size, compute, 1e6 * up, 1e6 * down, worth, keep, most, penalty)
    assert np.allclose(mega, rate, atol=1e-9)


def test_corners():
    one = np.ones(4)
    assert not dropout_plan(one, one, one, one, one, 1.0, 0.8, 1.0).any(), "everything is kept"
    assert np.allclose(dropout_plan(one, one, one, one, one, 0.2, 0.8, 1.0), 0.8), "the only point there is"
    free = np.full(4, np.inf)
    rate = dropout_plan(one, one, free, free, [4, 1, 3, 2], 0.6, 0.8, 1.0)
    assert np.allclose(rate, [0, 0.8, 0, 0.8]), "without links only the worth decides"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": 0.1}, ["0.8 at most", "0.2 of their models", "the 0.1", "Raise keep to 0.2 or max_rate to 0.9"]),
        ({"keep": 0}, ["'keep'", "(0, 1]", "0"]),
        ({"max_rate": 1.5}, ["'max_rate'", "[0, 1]", "1.5"]),
        ({"penalty": -1}, ["'penalty'", "-1"]),
        ({"size": [1, 0]}, ["'size'", "positive", "0.0"]),
        ({"up_rate": [1, np.nan]}, ["'up_rate'", "positive", "nan"]),
        ({"contribution": [1, -2]}, ["'contribution'", "not negative", "-2.0"]),
        ({"size": [1, 1, 1]}, ["one length", "size 3", "up_rate 2"]),
    ],
)
def test_a_bad_problem_is_explained_in_numbers(changes, words):
    good = {**HAND, "contribution": [0.3, 0.7], "keep": 0.6, "max_rate": 0.8, "penalty": 1.0}
    with pytest.raises(BadInput) as error:
        dropout_plan(**{**good, **changes})
    for word in words:
        assert word in str(error.value)
