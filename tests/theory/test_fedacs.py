"""FedACS's theory against its exact rational example, brute force, exact moments and simulation."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave import theory
from moments import World, anonymous

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


def draws_and_links(p, q, draws):
    """Yield the probability and the weights c Z/K of every way to draw and of every state of the links."""
    n = p.size
    for who in product(range(n), repeat=draws):
        count = np.bincount(who, minlength=n)
        for up in product((0, 1), repeat=n):
            up = np.array(up)
            yield np.prod(p[list(who)]) * np.prod(np.where(up, 1 - q, q)), count * up / draws


def test_moments_of_a_round_are_those_of_all_draws_and_links():
    """The exact recursion behind the bounds' tests, by enumeration of 3² draws × 2³ links."""
    rng = np.random.default_rng(1)
    world, p, q, T, lr = (
        World.random(rng, 3),
        np.array([0.2, 0.5, 0.3]),
        np.array([0.1, 0.4, 0.0]),
        np.array([2, 1, 5]),
        0.1,
    )
    x, k, mean, square = np.array([1.0, -2.0]), world.reach(T, 0.1), 0.0, 0.0
    for chance, w in draws_and_links(p, q, 2):
        after = x + (w * k) @ (world.optimum - x)
        mean, square = mean + chance * after, square + chance * (after @ after)
    found = world.next((x, x @ x), anonymous(p, q, 2), T, lr)
    assert found[0] == pytest.approx(mean)
    assert found[1] == pytest.approx(square)


def instances(count, equal=None, reach=0.09):
    """Yield random worlds with links, steps and a learning rate that Theorem 1 allows for β near 1."""
    rng = np.random.default_rng(7)
    for i in range(count):
        n = int(rng.integers(2, 7))
        world = World.random(rng, n, equal=bool(i % 2) if equal is None else equal)
        w, q, T = rng.dirichlet(np.ones(n)), rng.uniform(0, 0.9, n), rng.integers(1, 12, n)
        omega = theory.surrogate_weight(w, q, T)
        beta, kappa = world.dissimilarity(omega)
        lr = rng.uniform(0.1, 1) * reach / beta**2 / (world.h.max() * T.max())
        facts = {"lr": lr, "smoothness": world.h.max(), "kappa": kappa, "beta": beta, "sigma": rng.choice([0.0, 2.0])}
        yield rng, world, w, q, T, int(rng.integers(1, 4)), omega, facts


def test_lemma_1_bounds_the_exact_change_of_a_round():
    for rng, world, p, q, T, K, omega, facts in instances(60, reach=0.5):
        x = 3 * rng.standard_normal(2)
        norm = np.sqrt(world.gradient(omega, x, x @ x))
        after = world.next((x, x @ x), anonymous(p, q, K), T, facts["lr"], facts["sigma"])
        change = world.value(omega, *after) - world.value(omega, x, x @ x)
        assert change <= theory.surrogate_descent(norm, p, q, T, **facts) + 1e-12


def test_lemma_1_is_the_descent_of_gradient_descent_in_the_limit():
    """η → 0: −½ s ‖∇F̃‖²; and the printed β² (−½ …) promises more than a round of identical clients can give."""
    p, q, T = np.array([0.5, 0.5]), np.array([0.2, 0.4]), np.array([3, 1])
    s = 1e-6 * theory.effective_step(p, q, T)
    assert theory.surrogate_descent(2.0, p, q, T, 1e-6, 1.0, 0.0) == pytest.approx(-0.5 * s * 4, rel=1e-4)
    same = World(np.zeros((2, 1)), np.ones(2))
    x, lr, beta = np.ones(1), 0.01, 10.0
    after = same.next((x, 1.0), anonymous(p, 0 * q, 5), np.ones(2, int), lr)
    change, z = same.value(p, *after) - same.value(p, x, 1.0), lr
    h = z**2 / (1 - 2 * z**2)
    printed = lr * beta**2 * (-1 + (2 * z + 1) * (h + 0.5))
    assert printed < 4 * change < 0, "the printed lemma is violated"
    assert change <= theory.surrogate_descent(1.0, p, 0 * q, np.ones(2), lr, 1.0, 0.0, beta)


def test_lemma_2_everywhere_and_reached_at_the_surrogates_optimum():
    for rng, world, w, *_, omega, facts in instances(40):
        chi = theory.chi_square(w, omega)
        for x in 5 * rng.standard_normal((5, 2)):
            ours, theirs = (np.sqrt(world.gradient(v, x, x @ x)) for v in (omega, w))
            assert theirs <= theory.true_gradient_bound(ours, chi, facts["kappa"], facts["beta"]) * (1 + 1e-9)
    two, half, omega = World(np.array([[-1.7], [1.7]]), np.ones(2)), np.full(2, 0.5), np.array([0.2, 0.8])
    _, kappa = two.dissimilarity(omega)
    _, x = two.centre(omega)
    chi = theory.chi_square(half, omega)
    assert np.sqrt(two.gradient(half, x, x @ x)) == pytest.approx(theory.true_gradient_bound(0.0, chi, kappa))


def test_theorems_1_and_2_bound_the_exact_means_over_rounds():
    for rng, world, w, q, T, K, omega, facts in instances(30):
        x = 2 * rng.standard_normal(2)
        path = world.path(x, 150, anonymous(w, q, K), T, facts["lr"], facts["sigma"])
        gap = world.value(omega, x, x @ x) - world.lowest(omega)
        error = theory.surrogate_error_bound(gap, 150, w, q, T, **facts)
        assert np.mean([world.gradient(omega, *m) for m in path]) <= error
        chi = theory.chi_square(w, omega)
        assert np.mean([world.gradient(w, *m) for m in path]) <= theory.true_error_bound(
            error, chi, facts["kappa"], facts["beta"]
        )


def settled(curvature, lr, e=1.3):
    """Return E ‖∇F‖² of two clients at ±e, one draw and one step, by 10⁴ rounds of the exact recursion, and κ²."""
    two, half, one = World(np.array([[-e], [e]]), np.full(2, curvature)), np.full(2, 0.5), np.ones(2, int)
    path = two.path(np.zeros(1), 10_000, anonymous(half, np.zeros(2), 1), one, lr)
    return two.gradient(half, *path[-1]), (curvature * e) ** 2


def test_theorem_1_as_printed_is_violated_and_ours_is_eight_times_the_truth():
    """L = 10 and z = η L = 0.02: κ² z/(2 − z) settles, the printed residual is η κ² = z κ²/L."""
    found, kappa2 = settled(10.0, 0.002)
    assert found == pytest.approx(kappa2 * 0.02 / 1.98)
    assert found > 4 * 0.002 * kappa2
    half, zero, one = np.full(2, 0.5), np.zeros(2), np.ones(2)
    ours = theory.surrogate_error_bound(0.0, 1, half, zero, one, 0.002, 10.0, np.sqrt(kappa2))
    assert 8 < ours / found < 9
    tiny = theory.surrogate_error_bound(0.0, 1, half, zero, one, 1e-6, 10.0, 1.0)
    assert tiny == pytest.approx(4 * 1e-5, rel=1e-3)  # 4 z κ² to first order, where the truth is z κ²/2
    alone = World(np.zeros((1, 1)), np.ones(1))  # one client with noise σ = 1: η σ²/(2 − η) remains
    last = alone.path(np.zeros(1), 3000, anonymous(np.ones(1), np.zeros(1), 1), np.ones(1, int), 0.01, 1.0)[-1]
    noisy = theory.surrogate_error_bound(0.0, 1, np.ones(1), np.zeros(1), np.ones(1), 0.01, 1.0, 0.0, 1.0, 1.0)
    assert 4 < noisy / alone.gradient(np.ones(1), *last) < 4.1


def test_theorem_1_falls_like_one_over_the_root_of_the_rounds():
    arguments = np.full(2, 0.5), np.array([0.3, 0.1]), np.array([4, 2])
    at = [
        theory.surrogate_error_bound(1.0, R, *arguments, 0.1 / np.sqrt(R), 1.0, 1.0, 1.0, 1.0) for R in (10**6, 10**8)
    ]
    assert at[0] / at[1] == pytest.approx(10, rel=0.02)


def test_theorem_2_in_the_limit_and_for_stochastic_gradients():
    omega, kappa = theory.surrogate_weight(W, Q, A), 1.4
    chi = theory.chi_square(W, omega)
    assert theory.true_error_bound(0.0, chi, kappa) == pytest.approx(theory.gradient_bound(W, W, Q, A, kappa))
    assert theory.gradient_bound(W, W, Q, A, kappa, 0.5) == pytest.approx(9 / 25 * 1.96 + 0.25)  # eq. 12
    # ‖∇F + Σ ω n‖² over all signs of noise ±σ: one client has all of σ², three of them less
    for weight in (np.ones(1), W):
        signs = np.array(list(product((-0.5, 0.5), repeat=weight.size)))
        assert ((2.0 + signs @ weight) ** 2).mean() <= 4 + 0.25 + 1e-12
    assert ((2.0 + np.array([-0.5, 0.5])) ** 2).mean() == pytest.approx(4 + 0.25)


def test_corollary_2_1_on_quadratics_of_any_shape():
    rng = np.random.default_rng(3)
    for _ in range(30):
        roots, best = rng.standard_normal((4, 3, 3)), rng.standard_normal((4, 3))
        H, w, omega = (
            roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3),
            rng.dirichlet(np.ones(4)),
            rng.dirichlet(np.ones(4)),
        )
        at = [np.linalg.solve(np.einsum("n,nij->ij", v, H), np.einsum("n,nij,nj->i", v, H, best)) for v in (w, omega)]
        gradient = np.einsum("n,nij,nj->i", w, H, at[1] - best)
        L = np.linalg.eigvalsh(np.einsum("n,nij->ij", w, H)).max()
        assert np.linalg.norm(at[1] - at[0]) >= theory.least_distance(np.linalg.norm(gradient), L) * (1 - 1e-9)
    assert theory.least_distance(6.0, 3.0) == 2.0  # F = 3 x²/2 at 2: equality


def test_theorem_3_bounds_fedacs_in_a_world_that_changes_every_round():
    rng = np.random.default_rng(4)
    for _ in range(20):
        n, R = int(rng.integers(2, 6)), 60
        world, w = World.random(rng, n), rng.dirichlet(np.ones(n))
        beta, kappa = world.dissimilarity(w)
        q, T, L = rng.uniform(0, 0.8, (R, n)), rng.integers(1, 9, (R, n)), world.h.max()
        lr, sigma, x = 0.1 / beta**2 / (L * T.max()), rng.choice([0.0, 1.0]), 2 * rng.standard_normal(2)
        moments, seen = (x, x @ x), []
        for r in range(R):
            seen.append(world.gradient(w, *moments))
            weights = anonymous(theory.acs_probability(w, q[r], T[r]), q[r], 2)
            moments = world.next(moments, weights, T[r], lr, sigma)
        gap = world.value(w, x, x @ x) - world.lowest(w)
        assert np.mean(seen) <= theory.acs_error_bound(gap, w, q, T, lr, L, kappa, beta, sigma)


def test_theorem_3_is_theorem_1_where_nothing_changes():
    p = theory.acs_probability(W, Q, A)
    facts = {"lr": 0.005, "smoothness": 1.5, "kappa": 2.0, "beta": 1.3, "sigma": 0.7}
    one = theory.surrogate_error_bound(3.0, 9, p, Q, A, **facts)
    assert theory.acs_error_bound(3.0, W, np.tile(Q, (9, 1)), np.tile(A, (9, 1)), **facts) == pytest.approx(one)


def test_steps_too_large_for_a_bound_are_refused():
    with pytest.raises(ValueError, match=r"below 0\.707.*too large"):
        theory.surrogate_descent(1.0, W, Q, A, 0.1, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"1/4.*too large"):
        theory.surrogate_error_bound(1.0, 10, W, Q, A, 0.03, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"1/4.*too large"):
        theory.acs_error_bound(1.0, W, Q, A, 0.001, 1.0, 1.0, beta=10.0)


def test_lemma_1_by_hand():
    """One client, one step of η = ½, L = 1: z = h = ½, b = 3/2, s = ½; ‖∇F̃‖ = 2, κ = 3, β = 2, σ = 2."""
    found = theory.surrogate_descent(2.0, np.ones(1), np.zeros(1), np.ones(1), 0.5, 1.0, 3.0, 2.0, 2.0)
    assert found == pytest.approx(0.5 * ((4 * 1.5 - 0.5) * 4 + 1.5 * 9 + (0.25 * 2 + 0.25) * 4))


def test_lemma_2_and_theorem_2_are_nearly_reached_where_the_curvatures_differ():
    """Gradients 1 + t (ω − Ω)/Ω: κ = 0 and β² = 1 + t² χ², the true gradient is 1 + t χ²."""
    w, omega, t = np.full(2, 0.5), np.array([0.2, 0.8]), 20.0
    chi = theory.chi_square(w, omega)
    g = 1 + t * (w - omega) / omega
    assert omega @ g == pytest.approx(1)
    assert omega @ g**2 == pytest.approx(1 + t**2 * chi)
    beta = np.sqrt(1 + t**2 * chi)
    assert w @ g <= theory.true_gradient_bound(1.0, chi, 0.0, beta) < 1.01 * (w @ g)
    assert (w @ g) ** 2 <= theory.true_error_bound(1.0, chi, 0.0, beta) < 1.01 * (w @ g) ** 2


def test_theorem_3_needs_the_shortest_step():
    """99 rounds in which one answer of a thousand arrives, then one without losses: the gradient stays till then."""
    one, w = World(np.zeros((1, 1)), np.ones(1)), np.ones(1)
    q, lr = np.append(np.full(99, 0.999), 0.0)[:, None], 0.15
    moments, seen = (np.ones(1), 1.0), []
    for lost in q:
        seen.append(one.gradient(w, *moments))
        moments = one.next(moments, anonymous(w, lost, 1), np.ones(1, int), lr)
    assert 4 * 0.5 / (100 * lr) < 0.2 * np.mean(seen) < np.mean(seen)  # with the longest step
    assert np.mean(seen) <= theory.acs_error_bound(0.5, w, q, np.ones((100, 1)), lr, 1.0, 0.0)
