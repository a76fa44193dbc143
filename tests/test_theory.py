"""FedACS's theory against its exact rational example, brute force and simulation."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave import theory
from fedweave.solve import min_norm_weights

W, Q, A = np.array([1 / 2, 3 / 10, 1 / 5]), np.array([0, 1 / 2, 1 / 5]), np.array([2.0, 4.0, 10.0])


def test_the_rational_example():
    """ω = (1/2, 3/10, 1/5), q = (0, 1/2, 1/5), ‖a‖₁ = (2, 4, 10), worked out by hand."""
    omega = theory.surrogate_weight(W, Q, A)
    assert omega == pytest.approx([5 / 16, 3 / 16, 1 / 2])
    assert theory.chi_square(W, omega) == pytest.approx(9 / 25)
    assert theory.effective_step(W, Q, A) == pytest.approx(16 / 5)
    p = theory.acs_probability(W, Q, A)
    assert p == pytest.approx([10 / 17, 6 / 17, 1 / 17])
    assert theory.effective_step(p, Q, A) == pytest.approx(40 / 17)
    assert theory.effective_steps(p, Q, A) == pytest.approx(200 / 69)
    assert theory.effective_rate(p, Q) == pytest.approx(69 / 85)
    assert theory.surrogate_weight(p, Q, A) == pytest.approx(W)


def test_the_rational_example_again_in_exact_arithmetic():
    w = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]
    reach = [Fraction(2), Fraction(2), Fraction(8)]
    score = [a / b for a, b in zip(w, reach, strict=True)]
    p = [s / sum(score) for s in score]
    assert p == [Fraction(10, 17), Fraction(6, 17), Fraction(1, 17)]
    assert theory.acs_probability(W, Q, A) == pytest.approx([float(v) for v in p])


numbers = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 0.99), st.floats(0.1, 100)), min_size=1, max_size=8)


@given(numbers)
def test_acs_makes_the_surrogate_the_objective(rows):
    w, q, a = (np.array(column) for column in zip(*rows, strict=True))
    w = w / w.sum()
    p = theory.acs_probability(w, q, a)
    assert p.sum() == pytest.approx(1)
    assert np.allclose(theory.surrogate_weight(p, q, a), w, rtol=1e-9)
    assert theory.chi_square(w, theory.surrogate_weight(p, q, a)) == pytest.approx(0, abs=1e-12)
    harmonic = 1 / (w / ((1 - q) * a)).sum()
    assert theory.effective_step(p, q, a) == pytest.approx(harmonic)
    assert harmonic <= theory.effective_step(w, q, a) * (1 + 1e-9)  # never longer than FedAvg's arithmetic mean


@given(numbers)
def test_step_is_rate_times_steps(rows):
    w, q, a = (np.array(column) for column in zip(*rows, strict=True))
    w = w / w.sum()
    product = theory.effective_rate(w, q) * theory.effective_steps(w, q, a)
    assert product == pytest.approx(theory.effective_step(w, q, a))
    assert theory.chi_square(w, theory.surrogate_weight(w, q, a)) >= 0


def test_consistency_condition_13():
    assert theory.is_consistent([0.5, 0.0], [4.0, 2.0])
    assert not theory.is_consistent([0.5, 0.1], [4.0, 2.0])
    half = np.array([0.5, 0.5])
    assert theory.chi_square(half, theory.surrogate_weight(half, [0.5, 0.0], [4.0, 2.0])) == pytest.approx(0, abs=1e-15)


def test_two_clients_chi_square_and_the_bound_that_is_reached():
    """G.3: targets ∓e in one dimension; χ² = ((1−q₂)T₂ − (1−q₁)T₁)²/(4(1−q₁)(1−q₂)T₁T₂) and the gradient that remains
    at the surrogate's optimum is exactly χ²κ² with κ² = 4Ω₁Ω₂e²."""
    q, T, e, half = np.array([0.3, 0.05]), np.array([3.0, 17.0]), 1.7, np.array([0.5, 0.5])
    omega = theory.surrogate_weight(half, q, T)
    reach = (1 - q) * T
    assert theory.chi_square(half, omega) == pytest.approx((reach[1] - reach[0]) ** 2 / (4 * reach[0] * reach[1]))
    gradient = omega @ np.array([-e, e])  # of F at the surrogate's optimum Σ Ω x*, for F = ½ mean (x − x*)²
    kappa = 2 * e * np.sqrt(omega[0] * omega[1])
    assert gradient**2 == pytest.approx(theory.gradient_bound(half, half, q, T, kappa))


def test_chi_square_edges():
    assert theory.chi_square([0.5, 0.5], [0.5, 0.5]) == 0
    assert theory.chi_square([0.5, 0.5], [1.0, 0.0]) == float("inf")
    assert theory.chi_square([1.0, 0.0], [1.0, 0.0]) == 0


def test_fixed_point_is_where_the_mean_recursion_settles():
    """Arbitrary curvatures and a proximal pull: iterate x ← x + Σ c_m u_m, each u_m from T plain local steps."""
    rng = np.random.default_rng(0)
    n, d, lr, mu = 5, 3, 0.02, 0.7
    roots = rng.standard_normal((n, d, d))
    H = roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(d)
    best, steps, c = rng.standard_normal((n, d)), [1, 4, 9, 2, 20], rng.uniform(0.1, 1, n)
    x = np.zeros(d)
    for _ in range(4000):
        moved = []
        for m in range(n):
            y = x.copy()
            for _ in range(steps[m]):
                y = y - lr * (H[m] @ (y - best[m]) + mu * (y - x))
            moved.append(y - x)
        x = x + 0.1 * c @ np.array(moved)
    assert np.allclose(theory.fixed_point(c, list(H), best, steps, lr, mu), x, atol=1e-9)


def test_unit_curvature_limit_is_the_weighted_mean():
    """H = I: x∞ = Σ c κ x*/Σ c κ with κ = 1 − (1 − η)^T (eq. 39)."""
    best, c, T, lr = np.array([[1.0], [5.0], [-2.0]]), np.array([0.2, 0.5, 0.3]), np.array([1, 7, 30]), 0.05
    kappa = c * (1 - (1 - lr) ** T)
    found = theory.fixed_point(c, [np.eye(1)] * 3, best, T.tolist(), lr)
    assert found[0] == pytest.approx((kappa @ best / kappa.sum())[0])


@pytest.mark.parametrize(
    ("w", "q", "a", "words"),
    [
        ([0.5, 0.5], [0.0, 1.0], [1, 1], ["loss_rate", "client 1", "1.0"]),
        ([0.5, 0.5], [0.0, np.nan], [1, 1], ["loss_rate", "client 1", "nan"]),
        ([0.5, 0.5], [0.0, 0.1], [0, 1], ["effort", "client 0"]),
        ([0.5, 0.6], [0.0, 0.1], [1, 1], ["sum to 1", "1.1"]),
        ([1.5, -0.5], [0.0, 0.1], [1, 1], ["weight", "client 1"]),
        ([0.5, 0.5], [0.0, 0.1], [1, 1, 1], ["one number per client", "(3,)"]),
        ([], [], [], ["one number per client"]),
    ],
)
def test_nonsense_is_refused_by_name(w, q, a, words):
    with pytest.raises(ValueError, match=r".") as caught:
        theory.acs_probability(np.array(w), np.array(q), np.array(a))
    assert all(word in str(caught.value) for word in words)


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
