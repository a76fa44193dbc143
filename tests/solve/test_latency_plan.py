"""The latency planner against brute force, other solvers, closed forms and its own laws."""

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedweave as fw
from fedweave import theory
from fedweave.solve import latency_plan
from fedweave.solve.latency_plan import Fleet
from solve.latency_oracle import instance, objective, slsqp_best


def planned(delta, B, alpha, M):
    """Return the planner's p for a given M."""
    return latency_plan(delta, B, alpha, 1e-3, [M]).probability


def simplex_grid(parts):
    """Return all p with three positive shares that are multiples of 1/parts."""
    i, j = np.meshgrid(np.arange(1, parts), np.arange(1, parts), indexing="ij")
    inside = i + j < parts
    return np.stack([i[inside], j[inside], parts - i[inside] - j[inside]], 1) / parts


GRID, AROUND = simplex_grid(200), simplex_grid(60) - 1 / 3


@pytest.mark.parametrize("seed", range(25))
def test_three_clients_against_a_fine_grid(seed):
    rng = np.random.default_rng(seed)
    delta, B = instance(rng, 3)
    for M, alpha in product((1, 2, 3, 20), (0.0, 1.0, 30.0 * B.sum())):
        ours, grid = objective(planned(delta, B, alpha, M), delta, B, alpha, M), GRID
        for zoom in (30, 600, 12_000, None):
            found = objective(grid, delta, B, alpha, M)
            assert ours <= found.min() * (1 + 1e-9)
            if zoom:  # once more around the best, twenty times as fine
                grid = np.abs(grid[found.argmin()] + AROUND / zoom) + 1e-12
                grid /= grid.sum(1, keepdims=True)


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # scipy before 1.16
@pytest.mark.parametrize("seed", range(6))
def test_ten_clients_against_many_starts_of_slsqp(seed):
    """200 instances with 50 starts each: benchmarks/latency_plan.py --check."""
    rng = np.random.default_rng([10, seed])
    delta, B = instance(rng, 10)
    M = int(rng.integers(1, 11))
    ours = objective(planned(delta, B, 1.0, M), delta, B, 1.0, M)
    assert ours <= slsqp_best(delta, B, 1.0, M, 10, rng) * (1 + 1e-6)


@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 12), M=st.integers(1, 30), heavy=st.booleans(), log=st.floats(-3, 3)
)
@settings(max_examples=60, deadline=None)
def test_never_worse_than_uniform_or_norm_selection(seed, n, M, heavy, log):
    rng = np.random.default_rng(seed)
    delta, B = instance(rng, n)
    delta = np.sort(rng.lognormal(0, 2, n)) if heavy else delta
    alpha = 10**log * B.sum()
    ours = objective(planned(delta, B, alpha, M), delta, B, alpha, M)
    for score in (np.ones(n), np.sqrt(B), np.sqrt(B) / delta):
        assert ours <= objective(score / score.sum(), delta, B, alpha, M) * (1 + 1e-12)


def test_the_trap_of_the_straggler():
    """δ = (1, 100), M = 50, α ≫ B: norm selection (half, half) is a local minimum at about 100, and the best is near 1.

    The global minimum by a fine grid over p₂, on a logarithmic scale down to 10⁻⁹.
    """
    delta, B, alpha, M = np.array([1.0, 100.0]), np.array([1e-4, 1e-4]), 1.0, 50
    slow = np.geomspace(1e-9, 0.999, 200_000)
    grid = objective(np.stack([1 - slow, slow], 1), delta, B, alpha, M)
    p = planned(delta, B, alpha, M)
    assert objective(p, delta, B, alpha, M) <= grid.min() * (1 + 1e-9)
    assert grid.min() < 2
    assert objective(np.array([0.5, 0.5]), delta, B, alpha, M) > 99
    stuck = Fleet(delta, B, alpha, np.zeros(2)).descend(np.array([0.5, 0.5]), M)
    assert objective(stuck, delta, B, alpha, M) > 50, "descent from norm selection alone does not get out"


def test_stragglers_in_tiers_against_all_ways_to_leave_them_out():
    """Four tiers of latency, where α is large: a descent from each of 3,000 random points finds nothing better."""
    rng = np.random.default_rng(3)
    for M in (5, 40):
        delta = np.sort(np.repeat([1.0, 10.0, 100.0, 1000.0], 3) * rng.uniform(0.9, 1.1, 12))
        B, alpha = rng.random(12), 100.0
        fleet = Fleet(delta, B, alpha, np.zeros(12))
        points = 10 ** -rng.uniform(0, 6, (3000, 12))
        other = fleet.descend(points / points.sum(1, keepdims=True), M, 60)
        assert objective(planned(delta, B, alpha, M), delta, B, alpha, M) <= objective(
            other, delta, B, alpha, M
        ).min() * (1 + 1e-9)


def test_every_step_goes_down():
    rng = np.random.default_rng(0)
    for _ in range(30):
        n, M = rng.integers(2, 40), int(rng.integers(1, 60))
        delta, B = np.sort(rng.lognormal(0, 2, n)), rng.lognormal(0, 2, n)
        fleet = Fleet(delta, B, 10 ** rng.uniform(-2, 3), np.full(n, rng.choice([0, 0.3 / n])))
        p, costs = fleet.starts[1], []
        for _ in range(20):
            p, cost = fleet.step(p, M)
            costs.append(cost)
        assert (np.diff(costs) <= 1e-12).all()


@pytest.mark.parametrize("M", [1, 3, 12])
def test_the_gradient_is_the_same_for_all_clients_at_the_optimum(M):
    """KKT, with the gradient by central differences of the theory's functions: no formula of the solver is used."""
    rng = np.random.default_rng(M)
    delta, B = instance(rng, 8)
    p = planned(delta, B, 2.0, M)

    def log_cost(q):
        return np.log(theory.expected_round_seconds(q, delta, M)) + 2 * np.log(2.0 + (B / q).sum() / M)

    scale = np.abs(2 * B / (M * p**2 * (2.0 + (B / p).sum() / M))).max()  # of either part of the gradient
    for i in range(1, 8):
        move = 1e-6 * (np.eye(8)[i] - np.eye(8)[0])  # what one client gets another loses
        assert abs(log_cost(p + move) - log_cost(p - move)) / 2e-6 < 1e-5 * scale


def test_equal_latencies_give_norm_selection_exactly():
    """Corollary 3, also with other clients' latencies equal and the order mixed."""
    B = np.array([4.0, 1.0, 9.0, 16.0])
    plan = latency_plan(np.full(4, 0.7), B, 1.0, 0.1)
    assert np.allclose(plan.probability, np.array([2, 1, 3, 4]) / 10, atol=1e-12)
    assert plan.round_seconds == pytest.approx(0.7)
    assert plan.cohort_size == 4, "with equal latencies a larger cohort costs nothing"


def test_order_ties_and_scale():
    """Clients may come in any order; equal ones are treated alike; seconds may be minutes."""
    rng = np.random.default_rng(1)
    delta, B = rng.choice([1.0, 2.0, 5.0], 9), rng.choice([1.0, 3.0], 9)
    p = planned(delta, B, 1.0, 4)
    shuffled = rng.permutation(9)
    assert np.allclose(planned(delta[shuffled], B[shuffled], 1.0, 4), p[shuffled], atol=1e-9)
    for i, j in product(range(9), repeat=2):
        if (delta[i], B[i]) == (delta[j], B[j]):
            assert p[i] == pytest.approx(p[j], abs=1e-9)
    assert np.allclose(planned(60 * delta, B, 1.0, 4), p, atol=1e-9)
    assert np.allclose(planned(delta, 7 * B, 0.0, 4), planned(delta, B, 0.0, 4), atol=1e-9)
    assert np.allclose(planned(delta, 7 * B, 7.0, 4), p, atol=1e-9)


def test_faster_clients_are_asked_more_than_by_norm_selection_and_slower_ones_less():
    rng = np.random.default_rng(2)
    delta, B = instance(rng, 20)
    ratio = planned(delta, B, 1.0, 5) / (np.sqrt(B) / np.sqrt(B).sum())
    assert (np.diff(ratio) < 1e-9).all()
    assert ratio[0] > 1 > ratio[-1]


def test_one_client_and_clients_without_influence():
    alone = latency_plan([3.0], [2.0], 1.0, 0.5)
    assert (alone.probability.tolist(), alone.cohort_size) == ([1.0], 1)
    assert alone.rounds == (1 + 2) ** 2 / 0.5**2
    assert alone.total_seconds == pytest.approx(36 * 3.0)
    plan = latency_plan([1.0, 2.0, 3.0, 0.1], [1.0, 0.0, 1.0, 0.0], 1.0, 0.5, [2])
    assert plan.probability[[1, 3]].tolist() == [0, 0]
    assert np.allclose(plan.probability[[0, 2]], planned([1.0, 3.0], [1.0, 1.0], 1.0, 2))


def test_a_floor_is_kept_and_the_rest_is_optimal():
    rng = np.random.default_rng(4)
    n, M, alpha = 8, 4, 5.0
    delta, B = instance(rng, n)
    least = np.full(n, 0.08)
    free, held = planned(delta, B, alpha, M), latency_plan(delta, B, alpha, 0.1, [M], floor=0.08).probability
    assert free.min() < 0.08
    assert held.min() >= 0.08 - 1e-15
    assert held.sum() == pytest.approx(1)
    q = least + (1 - least.sum()) * rng.dirichlet(np.ones(n), 3000)
    q = held + 10 ** -rng.uniform(0, 5, (3000, 1)) * (q - held)  # no feasible point nearby or far is better
    assert objective(held, delta, B, alpha, M) <= objective(q, delta, B, alpha, M).min() * (1 + 1e-10)
    assert np.allclose(latency_plan(delta, B, alpha, 0.1, [M], floor=1 / n).probability, 1 / n)
    own = np.linspace(0.01, 0.2, n)
    assert (latency_plan(delta, B, alpha, 0.1, [M], floor=own).probability >= own - 1e-15).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_fast_search_over_cohort_sizes_misses_little(seed):
    rng = np.random.default_rng(seed)
    n = 24
    delta = rng.lognormal(0, 1.5, n) if seed % 2 else np.cumsum(rng.random(n))
    B = rng.random(n)
    alpha = 10 ** rng.uniform(-1, 2) * np.sqrt(B).sum() ** 2 / 10
    fast, all_of_them = (latency_plan(delta, B, alpha, alpha / 8, exhaustive=e) for e in (False, True))
    assert all_of_them.total_seconds <= fast.total_seconds * (1 + 1e-6)
    assert fast.total_seconds <= all_of_them.total_seconds * 1.001
    single = min(latency_plan(delta, B, alpha, alpha / 8, [M]).total_seconds for M in range(1, n + 1))
    assert all_of_them.total_seconds == pytest.approx(single, rel=1e-6)


def test_the_plan_says_what_its_parts_cost():
    rng = np.random.default_rng(5)
    delta, B = rng.permutation(np.cumsum(rng.random(12))), rng.random(12)
    plan = latency_plan(delta, B, 1.0, 0.3, [3, 5])
    assert plan.cohort_size in (3, 5)
    R = 1 + (B / plan.probability).sum() / plan.cohort_size
    assert isinstance(plan.rounds, int)
    assert R / np.sqrt(plan.rounds) <= 0.3 < R / np.sqrt(plan.rounds - 1)  # (P2a) holds, and not with one round less
    assert plan.round_seconds == theory.expected_round_seconds(plan.probability, delta, plan.cohort_size)
    assert plan.total_seconds == plan.rounds * plan.round_seconds
    order = np.argsort(delta)
    p = plan.probability[order]
    continuous = objective(p, delta[order], B[order], 1.0, plan.cohort_size) / 0.09
    assert 0 <= plan.total_seconds - continuous <= plan.round_seconds


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latency": [1.0, 0.0]}, ["latency must be numbers > 0", "Got 0.0", "client 1"]),
        ({"latency": [np.nan, 1.0]}, ["latency", "nan", "client 0"]),
        ({"data_factor": [1.0, -1.0]}, ["data_factor", "-1.0", "client 1"]),
        ({"data_factor": [0.0, 0.0]}, ["data_factor is 0 for every client"]),
        ({"data_factor": [1.0]}, ["one number per client", "(2,)", "(1,)"]),
        ({"latency": [], "data_factor": []}, ["one number per client"]),
        ({"alpha": -1.0}, ["alpha", "-1.0"]),
        ({"epsilon": 0.0}, ["epsilon", "0.0"]),
        ({"epsilon": float("nan")}, ["epsilon", "nan"]),
        ({"cohort_sizes": [0, 3]}, ["cohort_sizes", "[0, 3]"]),
        ({"cohort_sizes": []}, ["cohort_sizes", "[]"]),
        ({"floor": 0.6}, ["floor", "1.2"]),
        ({"floor": -0.1}, ["floor", "-0.1"]),
        ({"latency": [-1.0, 1.0], "alpha": -1.0, "epsilon": -1.0}, ["latency", "alpha", "epsilon"]),
    ],
)
def test_nonsense_is_refused_by_name(changes, words):
    given = {"latency": [1.0, 2.0], "data_factor": [1.0, 1.0], "alpha": 1.0, "epsilon": 0.1, **changes}
    with pytest.raises(fw.BadInput) as caught:
        latency_plan(**given)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("floor", [0.0, 2e-4])
@pytest.mark.parametrize("weight", [1.0, 1e3])
@pytest.mark.parametrize("law", ["uniform", "log-normal", "straggler"])
def test_many_clients_are_searched_in_groups_and_nothing_is_lost(law, weight, floor, monkeypatch):
    rng, n, M = np.random.default_rng(4), 1500, 20
    B = rng.random(n)
    delta = {
        "uniform": rng.random(n) + 1e-3,
        "log-normal": rng.lognormal(0, 1, n),
        "straggler": np.where(np.arange(n) == 700, 50.0, 1 + rng.random(n)),
    }[law]
    alpha = weight * np.sqrt(B).sum() ** 2 / M
    whole = latency_plan(delta, B, alpha, 1e-3, [M], floor=floor).probability
    monkeypatch.setattr(sys.modules[Fleet.__module__], "GROUPS", 256)
    monkeypatch.setattr(Fleet, "solve", lambda self, *_, solve=Fleet.solve: shrunk(self, n) and solve(self, *_))
    grouped = latency_plan(delta, B, alpha, 1e-3, [M], floor=floor).probability
    assert grouped.sum() == pytest.approx(1, abs=1e-12)
    assert grouped.min() >= floor
    costs = [objective(p, delta, B, alpha, M) for p in (grouped, whole)]
    assert costs[0] <= costs[1] * (1 + 1e-9)


def shrunk(fleet, n):
    """Say so if all clients are searched as they are."""
    assert fleet.latency.size < n / 3
    return True
