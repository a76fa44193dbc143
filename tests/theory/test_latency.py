"""The latency paper's theory against enumeration, simulation and exact moments."""

from itertools import product

import numpy as np
import pytest

from fedweave import theory
from moments import World, inverse_probability


def test_a_round_lasts_as_long_as_its_slowest_draw():
    """Latency paper eq. 14 by exact enumeration of all 3⁴ draws, ties included; clients in any order."""
    p = np.array([0.2, 0.5, 0.3])
    for latency in ([3.0, 1.0, 2.0], [2.0, 2.0, 5.0], [1.0, 1.0, 1.0], [0.0, 1.0, 4.0]):
        delta = np.array(latency)
        for draws in (1, 2, 4):
            exact = sum(np.prod(p[list(who)]) * delta[list(who)].max() for who in product(range(3), repeat=draws))
            assert theory.expected_round_seconds(p, delta, draws) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize(("clients", "draws"), [(10, 1), (10, 5), (100, 10), (300, 100)])
def test_a_round_is_as_long_as_in_a_simulation(clients, draws):
    """Monte-Carlo mean of the maximum within three standard errors."""
    rng = np.random.default_rng(clients + draws)
    p, delta = rng.dirichlet(np.ones(clients)), rng.lognormal(0, 1, clients)
    longest = delta[rng.choice(clients, (20_000, draws), p=p)].max(1)
    error = longest.std(ddof=1) / np.sqrt(longest.size)
    assert abs(theory.expected_round_seconds(p, delta, draws) - longest.mean()) < 3 * error


def test_a_straggler_that_is_hardly_ever_drawn_is_still_counted():
    """δ = (1, 10⁹) and p₂ = 10⁻¹⁶: the wait is 1 + (10⁹ − 1) M p₂ to first order; eq. 14 as printed would lose it."""
    p = np.array([1.0, 1e-16])
    assert theory.expected_round_seconds(p, np.array([1.0, 1e9]), 5) == pytest.approx(1 + 5e-7, rel=1e-12)


def test_rounds_needed_by_hand():
    """R = 1 + ½ (1/0.5 + 1/0.5) = 3 and ε = 0.1: T = 900 exactly, for M = 1 R = 5 and T = 2500."""
    half, one = np.array([0.5, 0.5]), np.array([1.0, 1.0])
    assert theory.rounds_needed(half, one, 2, 1.0, 0.1) == 900
    assert theory.rounds_needed(half, one, 1, 1.0, 0.1) == 2500
    assert theory.rounds_needed(half, one, 1, 1.0, 0.10001) == 2500
    assert theory.rounds_needed(half, one, 1, 1.0, 100.0) == 1
    assert theory.rounds_needed(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 1, 0.0, 0.5) == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.expected_round_seconds([0.5, 0.6], [1, 2], 1), "sum to 1"),
        (lambda: theory.expected_round_seconds([1.5, -0.5], [1, 2], 1), "probability .* client 1"),
        (lambda: theory.expected_round_seconds([0.5, 0.5], [1, -2], 1), "latency .* client 1"),
        (lambda: theory.expected_round_seconds([1.0], [1, 2], 1), "one number per client"),
        (lambda: theory.rounds_needed([1.0, 0.0], [1, 1], 1, 1.0, 1.0), "probability must be > 0 .* client 1"),
        (lambda: theory.rounds_needed([0.5, 0.5], [1, -1], 1, 1.0, 1.0), "data_factor .* client 1"),
        (lambda: theory.rounds_needed([1.0], [1, 1], 1, 1.0, 1.0), "one number per client"),
    ],
)
def test_nonsense_about_rounds_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def instances(count):
    """Yield random worlds, laws and settings that Theorem 1 allows, with the exact moments of all rounds."""
    rng = np.random.default_rng(11)
    for _ in range(count):
        n, M, steps, T = int(rng.integers(1, 6)), int(rng.integers(1, 7)), int(rng.integers(1, 6)), 80
        world, d, p = World.random(rng, n), rng.dirichlet(np.ones(n)), rng.dirichlet(2 * np.ones(n)) * 0.9 + 0.1 / n
        L, sigma, x = world.h.max(), rng.choice([0.0, 3.0]), 2 * rng.standard_normal(2)
        lr = rng.uniform(0.05, 0.5 if n > 1 and (d**2 / p).sum() > 3 * M else 1) / (L * steps)
        path = world.path(x, T, inverse_probability(p, d, M), np.full(n, steps), lr, sigma)
        yield world, d, p, M, steps, lr, sigma, path


def largest_norms(world, path, steps, lr, sigma):
    """Return G (N,): the largest root of E ‖g_i‖² at any round and local step."""
    largest = np.zeros(world.h.size)
    for moments in path:
        own = world.own_gradients(*moments)
        for j in range(steps):
            noise = world.noise(np.full(world.h.size, j), lr, sigma) * world.h**2 if j else 0.0
            largest = np.maximum(largest, (1 - lr * world.h) ** (2 * j) * own + noise + sigma**2)
    return np.sqrt(largest)


def test_theorem_1_bounds_the_exact_mean_over_rounds():
    for world, d, p, M, steps, lr, sigma, path in instances(60):
        gap = world.value(d, *path[0]) - world.lowest(d)
        G, L = largest_norms(world, path, steps, lr, sigma), world.h.max()
        bound = theory.selection_bound(gap, len(path), p, d, G, M, steps, lr, L, sigma)
        assert np.mean([world.gradient(d, *m) for m in path]) <= bound


def test_theorem_1_as_printed_forgets_the_noise():
    """One client, f = x²/2 with gradient noise 1, M = 4: the iterates start as they settle, E x² = γ/(2 − γ)."""
    lr, M, T, one = 0.1, 4, 10_000, np.ones(1)
    v = lr / (2 - lr)
    alone = World(np.zeros((1, 1)), one)
    after = alone.next((np.zeros(1), v), inverse_probability(one, one, M), np.ones(1, int), lr, 1.0)
    assert after[1] == pytest.approx(v)
    G = np.sqrt([v + 1])
    printed = theory.selection_bound(v / 2, T, one, one, G, M, 1, lr, 1.0)
    assert printed < 0.6 * v
    assert v < theory.selection_bound(v / 2, T, one, one, G, M, 1, lr, 1.0, 1.0) < 2.1 * v


def test_theorem_1_in_its_limits():
    """T → ∞ and γ → 0 leaves nothing; one step has no drift; M → ∞ no selection; a fixed γ does not give O(1/T)."""
    d, p, G = np.array([0.3, 0.7]), np.array([0.6, 0.4]), np.array([2.0, 1.0])
    assert theory.selection_bound(1.0, 10**12, p, d, G, 2, 3, 1e-5, 1.0) == pytest.approx(0, abs=1e-3)
    assert theory.selection_bound(0.0, 1, p, d, G, 10**9, 1, 0.1, 1.0) == pytest.approx(0, abs=1e-9)
    drift = theory.selection_bound(0.0, 1, p, d, G, 10**12, 3, 0.1, 2.0)
    assert drift == pytest.approx(2 * 5 / 6 * 0.04 * (0.3 * 4 + 0.7))
    late = [theory.selection_bound(1.0, T, p, d, G, 2, 3, 0.1, 1.0) for T in (10**6, 10**9)]
    assert late[0] == pytest.approx(late[1], rel=1e-3)


def test_corollary_1_is_theorem_1_at_its_step():
    """(1/√T)(2LΓ + (1/M) Σ d²G²/p) + (1/T)(I−1)(2I−1)/(6I²) Σ dG², written out for T = 100."""
    d, p, G = np.array([0.3, 0.7]), np.array([0.6, 0.4]), np.array([2.0, 1.0])
    first = (2 * 1.5 * 4.0 + (0.09 * 4 / 0.6 + 0.49 / 0.4) / 2) / 10
    second = 2 * 5 / 54 * (0.3 * 4 + 0.7) / 100
    assert theory.selection_rate_bound(4.0, 100, p, d, G, 2, 3, 1.5) == pytest.approx(first + second)


def test_norm_selection_minimises_the_bound_over_all_laws():
    rng = np.random.default_rng(2)
    d, G = rng.dirichlet(np.ones(5)), rng.uniform(0.5, 3, 5)
    ours = theory.selection_rate_bound(1.0, 50, d * G / (d @ G), d, G, 3, 4, 1.0)
    for p in rng.dirichlet(np.ones(5), 300):
        assert theory.selection_rate_bound(1.0, 50, p, d, G, 3, 4, 1.0) >= ours


def test_corollary_2_holds_with_its_printed_ratio_for_every_law():
    """The law of smallest first term is norm selection, (Σ dG)²/M; the printed ρ is enough for it, and never above the
    appendix's; without a gap the printed eq. 22 is below eq. 21, twice it is above."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        n, M, steps = int(rng.integers(1, 7)), int(rng.integers(1, 20)), int(rng.integers(2, 60))
        d, G = rng.dirichlet(np.ones(n)), rng.exponential(1, n) * (rng.random(n) < 0.7)
        if not (d * G).any():
            continue
        T = theory.dominance_rounds(d, G, M)
        first = (d @ G) ** 2 / M / np.sqrt(T)
        assert first >= (steps - 1) * (2 * steps - 1) / (6 * steps**2) * (d @ G**2) / T * (1 - 1e-9)
        with np.errstate(divide="ignore"):
            assert np.ceil((M * (G**2).max() / (d * G**2).min()) ** 2 / 9) >= T
        law = np.maximum(d * G, 1e-12) / np.maximum(d * G, 1e-12).sum()
        whole = theory.selection_rate_bound(0.0, T, law, d, G, M, steps, 1.0)
        twice = theory.dominant_bound(0.0, T, law, d, G, M, 1.0)
        assert twice / 2 < whole <= twice * (1 + 1e-9)


def test_corollary_2_by_hand():
    """N = 2 equal clients: ρ = 2, M = 6: T_d = 16; (2/√16)(2·3 + (1/6) · 1)."""
    half, one = np.full(2, 0.5), np.ones(2)
    assert theory.dominance_rounds(half, one, 6) == 16
    assert theory.dominant_bound(3.0, 16, half, half, one, 6, 1.0) == pytest.approx(0.5 * (6 + 1 / 6))
    with pytest.raises(ValueError, match="at least 16"):
        theory.dominant_bound(3.0, 15, half, half, one, 6, 1.0)
    with pytest.raises(ValueError, match="nothing to learn"):
        theory.dominance_rounds(half, 0 * one, 6)
    with pytest.raises(ValueError, match=r"1/\(L I\)"):
        theory.selection_bound(1.0, 1, half, half, one, 1, 3, 0.5, 1.0)


def test_the_noise_of_several_steps_by_hand():
    """M = 2, L I γ = ½: v = ½/(1 − ¼) = 2/3; L γ v Σ d² σ² with γ = ¼, I = 2, d = ½, σ = (1, 3)."""
    half, one = np.full(2, 0.5), np.ones(2)
    noisy, quiet = (
        theory.selection_bound(1.0, 5, half, half, one, 2, 2, 0.25, 1.0, sigma) for sigma in (np.array([1.0, 3.0]), 0.0)
    )
    assert noisy - quiet == pytest.approx(0.25 * 2 / 3 * (1 + 9) / 4)
