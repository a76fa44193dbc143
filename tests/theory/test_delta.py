"""DELTA's bounds against exact moments, enumeration and brute force; its laws are tested with the samplers."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedweave import theory
from moments import World, inverse_probability


def sums_of_gradients(world, moments, steps, lr, sigma):
    """Return E ‖ĝ_i‖² (m,) and E ‖Σ ω ĝ‖² as a function of ω: sums of the local gradients of a round."""
    k, noise = world.reach(steps, lr) / lr, world.noise(steps, lr, sigma) / lr**2
    mean, square = moments
    cross = square - world.optimum @ mean - (world.optimum @ mean)[:, None] + world.optimum @ world.optimum.T
    products = np.outer(k, k) * cross + np.diag(noise)
    return np.diag(products), lambda weight: weight @ products @ weight


def test_theorem_3_1_bounds_the_exact_mean_over_rounds_for_any_law():
    rng = np.random.default_rng(0)
    for i in range(40):
        m, n, K, T = int(rng.integers(2, 6)), int(rng.integers(1, 5)), int(rng.integers(1, 5)), 100
        world, w, p = World.random(rng, m, equal=bool(i % 2)), rng.dirichlet(np.ones(m)), rng.dirichlet(2 * np.ones(m))
        beta, kappa = world.dissimilarity(w)
        L, sigma, steps = world.h.max(), rng.choice([0.0, 2.0]), np.full(m, K)
        lr = rng.uniform(0.2, 1) * min(1 / 8, 0.2 / beta) / (L * K)
        path = world.path(2 * rng.standard_normal(2), T, inverse_probability(p, w, n), steps, lr, sigma)
        variance = 0.0
        for moments in path:
            own, whole = sums_of_gradients(world, moments, steps, lr, sigma)
            variance += ((w**2 / p) @ own - whole(w)) / n / T
        phi = theory.importance_variance(variance, w, np.full(m, sigma**2), kappa**2, K, lr, L)
        gap = world.value(w, *path[0]) - world.lowest(w)
        bound = theory.importance_bound(gap, T, phi, K, lr, L, excess=beta**2 - 1)
        assert np.mean([world.gradient(w, *m) for m in path]) <= bound


def test_eq_4_by_hand():
    """K = 2, η = .05, η_g = 2, L = 1, σ² = (1, 3), ω = ½, σ_G² = .5, V = .8: 5/2 η² K (2 + 8·.5) + .05 (1/.8 + .4)."""
    found = theory.importance_variance(0.8, np.full(2, 0.5), np.array([1.0, 3.0]), 0.5, 2, 0.05, 1.0, 2.0)
    assert found == pytest.approx(2.5 * 0.0025 * 2 * 6 + 0.05 * (1 / 0.8 + 0.4))
    assert theory.importance_bound(3.0, 10, found, 2, 0.05, 1.0, 2.0) == pytest.approx((3 / 2 + found) / 0.4)
    with pytest.raises(ValueError, match=r"1/\(8 L K\)"):
        theory.importance_variance(0.8, np.full(2, 0.5), np.ones(2), 0.5, 2, 0.2, 1.0)
    with pytest.raises(ValueError, match="too large"):
        theory.importance_bound(3.0, 10, found, 2, 0.1, 1.0, excess=1.0)


def test_theorem_3_5_as_printed_is_violated():
    """Two clients at ±e, one draw, one step, η = .01: E ‖∇f‖² settles at e² η/(2 − η), Φ̃/c ≈ 20 η² e²."""
    e, lr, half, zero = 1.3, 0.01, np.full(2, 0.5), np.zeros(2)
    two = World(np.array([[-e], [e]]), np.ones(2))
    last = two.path(np.zeros(1), 2000, inverse_probability(half, half, 1), np.ones(2, int), lr)[-1]
    found = two.gradient(half, *last)
    assert found == pytest.approx(e**2 * lr / (2 - lr))
    printed = theory.delta_bound(half, half, np.full(2, e), zero, np.ones(2), lr, 1.0, 1) / 0.49
    assert printed == pytest.approx(10 * lr**2 * e**2 / 0.49)
    assert printed < found / 2
    variance = theory.update_variance(half, half, np.array([[-e], [e]]), 1)  # at the optimum, where it is smallest
    phi = theory.importance_variance(variance, half, zero, e**2, 1, lr, 1.0)
    assert 1 < theory.importance_bound(0.0, 1, phi, 1, lr, 1.0) / found < 2.5  # what holds is within 2.5 of the truth


def systematic(inclusion):
    """Return the sets of systematic sampling with these inclusion probabilities and how likely each is."""
    ends = np.cumsum(inclusion)
    starts = np.unique(np.concatenate([[0.0], (ends % 1).round(12), [1.0]]))
    for low, high in pairwise(starts):
        points = (low + high) / 2 + np.arange(round(ends[-1]))
        yield high - low, np.searchsorted(ends, points)


def test_eq_10_and_the_smaller_eq_11_hold_without_replacement():
    """E ‖(1/n) Σ_S (ω/p) t‖² ≤ Σ (ω²/p) ‖t‖², which is n/m of what (67) has, for designs with inclusion n p."""
    rng = np.random.default_rng(8)
    for _ in range(50):
        m, n = 5, 2
        w, p, t = rng.dirichlet(np.ones(m)), rng.dirichlet(8 * np.ones(m)), rng.standard_normal((m, 3)) + 1
        if p.max() > 1 / n:
            continue
        square = included = 0.0
        for chance, chosen in systematic(n * p):
            square += chance * (((w / p)[chosen] @ t[chosen] / n) ** 2).sum()
            included += chance * np.bincount(chosen, minlength=m)
        assert included == pytest.approx(n * p)
        ours = (w**2 / p) @ (t**2).sum(1)
        assert square <= ours * (1 + 1e-9) <= m / n * ours


def test_eq_10_by_hand_and_its_best_law():
    rng = np.random.default_rng(9)
    m, n, K, lr, L, g = 6, 2, 3, 0.01, 2.0, 1.5
    even, zeta, var, p = np.full(m, 1 / m), rng.uniform(0, 2, m), rng.uniform(0, 3, m), rng.dirichlet(np.ones(m))
    printed = 5 * L**2 * K * lr**2 / (2 * m * n) * ((var + 4 * K * zeta**2) / p).sum()
    printed += L * lr * g / (2 * n) * (var / (m**2 * p)).sum()
    setting = (np.full(m, K), lr, L, n, g)
    assert theory.delta_bound(p, even, zeta, var, *setting, replacement=False) == pytest.approx(printed)
    best = theory.delta_probability(even, zeta, var, *theory.delta_alphas(*setting, crowding=m / n))
    least = theory.delta_bound(best, even, zeta, var, *setting, replacement=False)
    for other in rng.dirichlet(3 * np.ones(m), 200):
        assert theory.delta_bound(other, even, zeta, var, *setting, replacement=False) >= least * (1 - 1e-12)


def test_table_1_is_the_order_of_the_best_tuned_bound():
    """FedIS: the smallest T with min over η_g of eq. 28 ≤ ε, for V = K² σ_G² + K σ_L², by brute force, is a constant
    times the leading term of the table as ε → 0; and its drift term is that of η = 1/(√T K L)."""

    def rounds(e, K, n, sl, sg):
        def error(log_step, T):  # of s = η_g η K, with η so small that the drift vanishes
            s = np.exp(log_step)
            return 1 / (s * T) + s / (2 * n * K) * (sl + K * sg)

        low, high = 1.0, 1e18
        for _ in range(80):
            T = np.sqrt(low * high)
            best = minimize_scalar(error, bounds=(-40, 10), args=(T,), method="bounded", options={"xatol": 1e-10}).fun
            low, high = (T, high) if best > e else (low, T)
        return high

    for e, K, n, sl, sg in [(1e-3, 1, 1, 1, 1), (1e-3, 5, 3, 2.0, 0.1), (1e-4, 10, 20, 0.3, 4.0), (1e-5, 2, 7, 0, 1)]:
        row = theory.rounds_order(e, K, n, 100, sl, sg, 1.0)["fedis"]
        leading = row - (sl + 4 * K * sg) / (K * e)
        assert rounds(e, K, n, sl, sg) / leading == pytest.approx(2, rel=1e-3)
        T = (5 / 2) * (sl + 4 * K * sg) / (K * e)
        drift = theory.importance_variance(0.0, np.ones(1), np.array([sl]), sg, K, 1 / (np.sqrt(T) * K), 1.0, 1e-9)
        assert drift == pytest.approx(e, rel=1e-3)


def test_table_1_in_its_limits():
    """Nothing changes between visits: practical rows are the oracles'; no noise, no diversity: DELTA needs nothing."""
    rows = theory.rounds_order(0.1, 4, 5, 50, 2.0, 3.0, 1.5)
    assert rows["fedpracis"] == rows["fedis"]
    assert rows["fedpracdelta"] == rows["feddelta"] < rows["fedis"] < rows["fedavg (Yang et al.)"]
    assert theory.rounds_order(0.1, 4, 5, 50, 0.0, 3.0, 0.0)["feddelta"] == 0
    assert theory.rounds_order(0.1, 4, 5, 50, 2.0, 3.0, 1.5, 2.0)["fedpracdelta"] == 4 * rows["feddelta"]
    assert rows["sgd"] == pytest.approx(2 / (50 * 4 * 0.01) + 10)
    karimireddy = theory.rounds_order(0.01, 4, 5, 50, 2.0, 9.0, 1.5, excess=2.0)["fedavg (Karimireddy et al.)"]
    assert karimireddy == pytest.approx((2 + 4 * 0.9 * 9) / (5 * 4 * 1e-4) + 3 / 0.01 + 3 / 0.001)
    assert rows["fedavg (Yang et al.), everyone"] == pytest.approx(2 / (50 * 4 * 0.01) + (2 / 16 + 3) / 0.1)
