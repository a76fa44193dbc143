"""FedAWARE's theory by hand, on quadratics and over all ways to take part."""

from itertools import product

import numpy as np
import pytest

from fedweave import theory
from fedweave.solve import min_norm_weights
from moments import World


def test_gradient_diversity_by_hand():
    """FedAWARE eqs 3, 6: g = 3e₁, 4e₂, λ = (1/4, 3/4): √(9/4 + 12) over ‖(3/4, 3)‖; λ̃ = (16/25, 9/25) is shortest."""
    g, lam = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.25, 0.75])
    assert theory.gradient_diversity(g, lam) == pytest.approx(np.sqrt(14.25) / np.hypot(0.75, 3))
    shortest = np.array([16 / 25, 9 / 25])
    assert theory.surrogate_diversity(g, lam, shortest) == pytest.approx(np.sqrt(14.25) / 2.4)


def test_diversity_is_at_least_one_and_one_for_equal_gradients():
    rng = np.random.default_rng(5)
    for _ in range(50):
        g, lam = rng.standard_normal((6, 4)), rng.dirichlet(np.ones(6))
        assert theory.gradient_diversity(g, lam) >= 1
    assert theory.gradient_diversity(np.tile([1, 2, 3], (4, 1)), np.full(4, 0.25)) == pytest.approx(1)
    assert theory.gradient_diversity([[1.0], [-1.0]], [0.5, 0.5]) == np.inf
    assert np.isnan(theory.gradient_diversity(np.zeros((2, 3)), [0.5, 0.5]))


def test_the_shortest_combination_is_the_most_diverse_step():
    """D̃ of the min-norm weights ≥ D of any weights on the same gradients; other weights may have D̃ < 1."""
    rng = np.random.default_rng(6)
    for _ in range(50):
        g, lam = rng.standard_normal((5, 9)) + 0.3, rng.dirichlet(np.ones(5))
        best = theory.surrogate_diversity(g, lam, min_norm_weights(g @ g.T))
        assert best >= theory.gradient_diversity(g, lam) * (1 - 1e-9)
        assert best >= theory.surrogate_diversity(g, lam, rng.dirichlet(np.ones(5))) * (1 - 1e-9)
    assert theory.surrogate_diversity([[1.0], [9.0]], [0.9, 0.1], [0.0, 1.0]) < 1


@pytest.mark.parametrize(
    ("g", "weight", "words"),
    [
        ([1.0, 2.0], [0.5, 0.5], ["one row per client"]),
        ([[1.0], [np.nan]], [0.5, 0.5], ["finite", "Client 1"]),
        ([[1.0], [2.0]], [1.0], ["one number per client, 2"]),
        ([[1.0], [2.0]], [0.5, 0.6], ["sum to 1"]),
        ([[1.0], [2.0]], [1.5, -0.5], [">= 0", "client 1"]),
    ],
)
def test_diversity_refuses_nonsense(g, weight, words):
    with pytest.raises(ValueError, match=r".") as caught:
        theory.gradient_diversity(g, weight)
    assert all(word in str(caught.value) for word in words)


def test_corollary_3_1_is_reached_and_holds_for_any_larger_dissimilarity():
    rng = np.random.default_rng(7)
    for _ in range(30):
        g, lam = rng.standard_normal((5, 3)) + 0.5, rng.dirichlet(np.ones(5))
        mean = lam @ g
        norm, apart = np.linalg.norm(mean), lam @ ((g - mean) ** 2).sum(1)
        assert theory.diversity_bound(norm, apart) == pytest.approx(theory.gradient_diversity(g, lam))
        assert theory.diversity_bound(norm, 2 * apart) > theory.gradient_diversity(g, lam)
    assert theory.diversity_bound(0.0, 1.0) == np.inf


def gradients_at(world, x):
    return world.h[:, None] * (x - world.optimum)


def test_eqs_4_and_5_bound_the_exact_drift():
    """Σ λ max_k E ‖x^k − x‖² in closed form, with noise and without, for equal steps and others."""
    rng = np.random.default_rng(8)
    for i in range(60):
        n = int(rng.integers(1, 6))
        world, lam, x = World.random(rng, n), rng.dirichlet(np.ones(n)), 2 * rng.standard_normal(2)
        steps = np.full(n, rng.integers(1, 8)) if i % 2 else rng.integers(1, 8, n)
        L, sigma, K = world.h.max(), rng.choice([0.0, 4.0]), steps.max()
        lr = rng.uniform(0.3, 1) * min(1 / K, 1 / (L * np.sqrt(max(6 * (K - 1) * (2 * K - 1), 1e-9))))
        drift = np.zeros(n)
        for k in range(1, K + 1):
            now = world.reach(k, lr) ** 2 * ((x - world.optimum) ** 2).sum(1) + world.noise(np.full(n, k), lr, sigma)
            drift = np.maximum(drift, np.where(k <= steps, now, 0.0))
        g = gradients_at(world, x)
        zeta = ((g - lam @ g) ** 2).sum(1)
        bound = theory.local_drift_bound(lam, steps, lr, L, zeta, np.linalg.norm(lam @ g), sigma)
        assert lam @ drift <= bound
        by_client = lam @ (5 * lr * (sigma**2 + 6 * steps * (zeta + ((lam @ g) ** 2).sum())))  # Lemma A.1, η K ≤ 1
        assert bound == pytest.approx(by_client)
        assert (theory.heterogeneity_term(lam, steps, lr, zeta) == 0) == (np.ptp(steps * (zeta > 0)) == 0)


def test_eq_4_by_hand_and_where_the_papers_condition_is_not_enough():
    """K = 2, η = .1: 5 · .1 (9 + 12 · 2 + 12 · 4); L = 100, K = 2, η = 1/2 ≤ 1/K drifts by 2400 x."""
    half = np.full(2, 0.5)
    assert theory.local_drift_bound(half, [2, 2], 0.1, 1.0, [1.0, 3.0], 2.0, 3.0) == pytest.approx(0.5 * 81)
    assert theory.local_drift_bound(half, [2, 4], 0.1, 0.5, [1.0, 3.0], 2.0, 3.0) == pytest.approx(
        0.5 * (9 + 12 * 2 + 18 * 4) + 30 * 0.1 * 0.5 * 2 * 3
    )
    wild = World(np.zeros((1, 1)), np.array([100.0]))
    assert wild.reach(2, 0.5)[0] ** 2 == 2400**2
    assert 5 * 0.5 * 6 * 2 * 100**2 < 2400**2, "the printed bound is violated"
    with pytest.raises(ValueError, match=r"lr must be <= 1/K"):
        theory.local_drift_bound([1.0], [2], 0.5, 100.0, [0.0], 100.0)


def test_eq_17_bounds_the_exact_error_of_an_update():
    rng = np.random.default_rng(9)
    for _ in range(40):
        world, K, sigma, lr = World.random(rng, 1), int(rng.integers(1, 7)), rng.choice([0.0, 2.0]), rng.uniform(0, 0.3)
        h, away = world.h[0], 3.0
        error = (world.reach(K, lr)[0] - lr * K * h) ** 2 * away**2 + world.noise([K], lr, sigma)[0]
        ways = [(world.reach(k, lr)[0] * away) ** 2 + world.noise([k], lr, sigma)[0] for k in range(K)]
        assert error <= theory.update_error_bound(K, lr, h, max(ways), sigma) + 1e-12
    assert theory.update_error_bound(1, 0.1, 2.0, 0.0, 3.0) == pytest.approx(0.09)  # one step: its noise, exactly


def test_lemma_4_1_for_a_round_over_both_ways_to_take_part():
    rng = np.random.default_rng(10)
    for _ in range(200):
        alpha, p, c, h = rng.uniform(0, 0.9), rng.uniform(0.05, 1), rng.uniform(0.1, 2), rng.uniform(0.3, 3)
        before, now, error, miss = (rng.standard_normal(2) for _ in range(4))
        stay = error + c * h * (before - now)  # m − c ∇f(x^t) of a client that does not take part
        exact = (1 - p) * (stay**2).sum() + p * ((alpha * stay + (1 - alpha) * miss) ** 2).sum()
        moved = ((now - before) ** 2).sum()
        bound = theory.momentum_error_bound((error**2).sum(), (1 - alpha) * p, c, h, moved, (miss**2).sum())
        assert exact <= bound * (1 + 1e-9)
    assert theory.momentum_error_bound(5.0, 1.0, 1.0, 1.0, 7.0, 2.0) == pytest.approx(2.5 + 2)  # no news is stale
    # as printed: everyone, α = 0, one step: ‖η ∇f − ∇f‖² ≤ L² η² ‖∇f‖² fails for small η, and in units of η it is zero
    lr, L = 0.1, 1.0
    assert (1 - lr) ** 2 > L**2 * lr**2


def walk(world, lam, steps, lr, server_lr, alpha, x, cohorts):
    """Run Algorithm 1 in plain NumPy after a first round with everyone; return ‖d‖² per round and the largest error."""
    k, c = world.reach(steps, lr), lr * steps
    lengths, errors = [], []
    momentum = k[:, None] * (x - world.optimum)
    for who in [None, *cohorts]:
        update = k[:, None] * (x - world.optimum)
        errors.append(((update - c[:, None] * gradients_at(world, x)) ** 2).sum(1).max())
        momentum = momentum.copy()
        if who is not None:
            momentum[who] = alpha * momentum[who] + (1 - alpha) * update[who]
        d = min_norm_weights(momentum @ momentum.T) @ momentum
        lengths.append(d @ d)
        x = x - server_lr * d
    return np.array(lengths), max(errors), errors[0]


def test_theorem_4_1_over_all_ways_to_take_part():
    """One of three clients after a first round with everyone: all 3⁵ histories, uneven steps, two α."""
    rng = np.random.default_rng(12)
    for alpha in (0.0, 0.4):
        world, lam, steps = World.random(rng, 3), rng.dirichlet(np.ones(3)), np.array([1, 2, 4])
        world.optimum += 6.0  # far from the start, so that the directions do not vanish at once
        L, lr, beta, x = world.h.max(), 0.05, (1 - alpha) / 3, np.zeros(2)
        server_lr = 0.9 / np.sqrt(8 * (1 - beta) * (2 - beta)) * beta / (lr * 4 * L) * 0.7
        runs = [walk(world, lam, steps, lr, server_lr, alpha, x, who) for who in product(range(3), repeat=5)]
        measured = np.mean([lengths for lengths, _, _ in runs])
        worst, start = max(error for _, error, _ in runs), runs[0][2]
        gap = world.value(lam, x, 0.0) - world.lowest(lam)
        bound = theory.aware_bound(gap, 6, lam, lr * steps, server_lr, L, beta, worst, start)
        assert measured <= bound


def test_theorem_4_1_with_exact_momenta_and_where_it_is_reached():
    rng = np.random.default_rng(13)
    for _ in range(30):
        n = int(rng.integers(1, 6))
        world, lam, one = World.random(rng, n), rng.dirichlet(np.ones(n)), np.ones(n, int)
        x, lr, L = 4 * rng.standard_normal(2), 0.1, world.h.max()
        server_lr = rng.uniform(0.2, 1) / (lr * L)
        lengths, *_ = walk(world, lam, one, lr, server_lr, 0.0, x, [np.arange(n)] * 39)
        gap = world.value(lam, x, x @ x) - world.lowest(lam)
        assert lengths.mean() <= theory.aware_bound(gap, 40, lam, lr * one, server_lr, L)
    alone = World(np.zeros((1, 1)), np.array([2.0]))  # one step of Newton's length: Σ ‖d‖² is the bound
    lengths, *_ = walk(alone, np.ones(1), np.ones(1, int), 0.1, 5.0, 0.0, np.ones(1), [[0]] * 9)
    assert lengths.mean() == pytest.approx(theory.aware_bound(1.0, 10, [1.0], [0.1], 5.0, 2.0))


def test_theorem_4_1_as_printed_fails_between_two_optima():
    """f = (x ∓ 1)²/2 at .1: λ̃ = (.55, .45) makes d = 0 with ρ > 0, so the printed right side vanishes with T."""
    two, half, x = World(np.array([[1.0], [-1.0]]), np.ones(2)), np.full(2, 0.5), np.array([0.1])
    g = gradients_at(two, x)
    lam = min_norm_weights(g @ g.T)
    assert lam == pytest.approx([0.55, 0.45])
    apart = ((lam - half) ** 2 / half**2).sum()
    assert 1 - np.sqrt(apart) - apart > 0.8
    lengths, *_ = walk(two, half, np.ones(2, int), 0.1, 1.0, 0.0, x, [np.arange(2)] * 20)
    assert lengths.max() < 1e-20
    assert two.gradient(half, x, x @ x) == pytest.approx(0.01)


def test_theorem_4_2_everywhere_and_below_the_printed_one():
    rng = np.random.default_rng(14)
    for _ in range(100):
        g, lam, other = rng.standard_normal((4, 3)), rng.dirichlet(np.ones(4)), rng.dirichlet(0.5 * np.ones(4))
        mean, step = lam @ g, other @ g
        apart, norm = lam @ ((g - mean) ** 2).sum(1), np.linalg.norm(mean)
        bound = theory.surrogate_gradient_bound(lam, other, norm, apart)
        printed = 4 + ((other / lam) ** 2).sum() - 2 * (other / lam).sum()
        assert step @ step <= bound <= (2 * printed * apart + 2 * (1 + printed) * norm**2) * (1 + 1e-9)
    assert theory.surrogate_gradient_bound([0.5, 0.5], [0.5, 0.5], 3.0, 9.0) == 18.0


def test_theorem_4_1_refuses_steps_that_are_too_large():
    with pytest.raises(ValueError, match="too large"):
        theory.aware_bound(1.0, 10, [0.5, 0.5], [0.1, 0.1], 11.0, 1.0)
    with pytest.raises(ValueError, match="too large"):
        theory.aware_bound(1.0, 10, [0.5, 0.5], [0.1, 0.1], 5.0, 1.0, beta=0.1)


def test_theorem_4_1_by_hand():
    """c = (1, 3), λ = ½: 1/c = 2/3; β = ½: μ = 2 · ½ · 3/2 · 4 · (3 · .05)² = .135, so 1 − 4 μ = .46."""
    bound = theory.aware_bound(2.0, 10, [0.5, 0.5], [1.0, 3.0], 0.05, 1.0, 0.5, update_error=0.3, start_error=0.7)
    assert bound == pytest.approx((4 * 1.5 * 2 / 0.5 + 8 * 0.7 / 5 + 8 * 0.3) / 0.46)
