"""The shortest convex combination: against another solver, exact arithmetic, closed forms, and its own certificate."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog, nnls

from fedweave.solve import min_norm_point, min_norm_weights

KINDS = ("cloud", "shifted", "low rank", "repeated", "lengths", "collinear", "nearly collinear", "positive", "bundle")


def clouds(count, seed=0):
    """Yield point sets of every kind, up to 60 points, at scales from 1e-12 to 1e12."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n, d, kind = int(rng.integers(1, 61)), int(rng.integers(1, 80)), KINDS[i % len(KINDS)]
        X, centre = rng.standard_normal((n, d)), rng.standard_normal(d)
        ray = np.outer(rng.uniform(0.1, 3, n), centre)
        X = {
            "cloud": X,
            "shifted": X + centre,
            "low rank": rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) + centre,
            "repeated": (X + 2)[rng.integers(0, n, n)],
            "lengths": (X + centre) * np.exp(3 * rng.standard_normal((n, 1))),
            "collinear": ray,
            "nearly collinear": ray + 1e-4 * X,
            "positive": np.abs(X),
            "bundle": 0.01 * X + centre,
        }[kind]
        yield kind, X * 10.0 ** rng.uniform(-12, 12)


def by_nnls(X):
    """Lawson and Hanson on the points themselves: min ‖X'u‖² + (1'u − 1)² over u ≥ 0, then u over its sum."""
    u, _ = nnls(np.vstack([X.T, np.ones(len(X))]), np.r_[np.zeros(X.shape[1]), 1.0])
    return u / u.sum()


def test_as_short_as_another_solver_finds_on_1000_random_sets():
    for kind, X in clouds(1000):
        X = X / np.linalg.norm(X, axis=1).min()  # what nnls needs; ours does not: see the scale test
        ours, theirs = min_norm_weights(X @ X.T), by_nnls(X)
        best, rounding = (theirs @ X) @ (theirs @ X), 1e-14 * (ours @ np.linalg.norm(X, axis=1)) ** 2
        assert abs((ours @ X) @ (ours @ X) - best) <= 1e-9 * best + rounding, kind
        assert ours.min() >= 0
        assert ours.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_certificate_holds_at_every_scale(seed):
    """⟨d, p⟩ ≥ ‖d‖² for all points, with equality on those that carry weight (KKT)."""
    for kind, X in clouds(60, seed):
        weights, d = min_norm_point(X)
        product, length = X @ d, np.linalg.norm(X, axis=1)
        tolerance = 1e-10 * (d @ d) + 1e-13 * length * (weights @ length)
        assert (product >= d @ d - tolerance).all(), kind
        carried = weights > 1e-6
        assert (np.abs(product - d @ d) <= 1e-6 * length * (weights @ length))[carried].all(), kind


def solved(A, b):
    """Return the exact solution of a linear system, None when it is singular."""
    rows = [[*row, value] for row, value in zip(A, b, strict=True)]
    for i in range(len(rows)):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(len(rows)):
            if r != i and rows[r][i]:
                q = rows[r][i] / rows[i][i]
                rows[r] = [a - q * c for a, c in zip(rows[r], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def exact_square(X):
    """Return the least ‖d‖² by trying every face in rational arithmetic."""
    P = [[Fraction(float(v)) for v in row] for row in X]
    Q = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in P] for p in P]
    values = []
    for k in range(1, len(P) + 1):
        for face in combinations(range(len(P)), k):
            z = solved([[Q[i][j] for j in face] for i in face], [Fraction(1)] * k)
            if z is not None and sum(z) > 0 and min(z) >= 0:
                values.append(1 / sum(z))
    return float(min(values))


@pytest.mark.parametrize("seed", range(12))
def test_lengths_from_1e_minus_12_to_1e12_in_one_set(seed):
    """Exact to rounding even then; float32 as clients send it."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((4, 9)) * 10.0 ** rng.uniform(-12, 12, (4, 1))).astype(np.float32)
    _, d = min_norm_point(X)
    assert d @ d == pytest.approx(exact_square(X), rel=1e-9)


def test_two_points_in_closed_form():
    rng = np.random.default_rng(0)
    for _ in range(100):
        a, b = rng.standard_normal((2, 3)) + rng.standard_normal(3)
        share = np.clip((b @ b - a @ b) / (a @ a + b @ b - 2 * a @ b), 0, 1)
        weights, d = min_norm_point([a, b])
        assert weights == pytest.approx([share, 1 - share], abs=1e-9)
        assert d == pytest.approx(share * a + (1 - share) * b, abs=1e-9)


def test_orthogonal_points_weigh_by_inverse_squares():
    length = np.array([1.0, 2.0, 5.0])
    assert min_norm_weights(np.diag(length**2)) == pytest.approx(length**-2 / (length**-2).sum())


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_one_point_is_itself(scale):
    weights, d = min_norm_point([[3 * scale, 4 * scale]])
    assert weights.tolist() == [1]
    assert d.tolist() == [3 * scale, 4 * scale]


def test_a_zero_vector_is_the_shortest_there_is():
    weights, d = min_norm_point([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    assert weights.tolist() == [0, 1, 0]
    assert not d.any()
    assert min_norm_weights(np.zeros((3, 3)), [0.5, 0.25, 0.25]).tolist() == [0.5, 0.25, 0.25]


def test_equal_points_keep_the_prior():
    prior = np.array([0.5, 0.3, 0.2])
    weights, d = min_norm_point(np.tile([1.0, 2.0], (3, 1)), prior)
    assert weights == pytest.approx(prior, abs=1e-6)
    assert d == pytest.approx([1, 2], rel=1e-12)


def test_the_point_does_not_change_when_points_are_repeated_turned_or_stretched():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((7, 5)) + 0.8
    turn, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    _, d = min_norm_point(X)
    assert min_norm_point(np.vstack([X, X[:3], X[:1]]))[1] == pytest.approx(d, abs=1e-9)
    assert min_norm_point(X @ turn)[1] == pytest.approx(d @ turn, abs=1e-9)
    assert min_norm_point(1e7 * X)[1] == pytest.approx(1e7 * d, rel=1e-9)
    assert min_norm_point(X[::-1])[1] == pytest.approx(d, abs=1e-9)


def test_never_longer_than_any_other_combination():
    rng = np.random.default_rng(4)
    for _, X in clouds(45, 5):
        _, d = min_norm_point(X)
        others = rng.dirichlet(np.ones(len(X)), 20) @ X
        assert np.linalg.norm(d) <= np.linalg.norm(others, axis=1).min() * (1 + 1e-9)


def test_bounded_weights_are_optimal_by_linear_programming():
    """f − min over the feasible weights of the linear model is a gap that bounds the error, whoever solved it."""
    for i, (kind, X) in enumerate(clouds(180, 6)):
        X, n = X / np.linalg.norm(X, axis=1).min(), len(X)
        prior = np.random.default_rng(i).dirichlet(np.ones(n))
        room = (0.01, 0.1, 0.5, 1.0)[i % 4]
        weights = min_norm_weights(X @ X.T, prior, room)
        d = weights @ X
        lo, hi = np.maximum(prior - room, 0), np.minimum(prior + room, 1)
        assert (weights >= lo - 1e-12).all()
        assert (weights <= hi + 1e-12).all()
        unit = np.abs(X @ d).max()
        best = unit * linprog(X @ d / unit, A_eq=np.ones((1, n)), b_eq=[1], bounds=np.c_[lo, hi]).fun
        assert d @ d - best <= 1e-9 * d @ d + 1e-12 * (weights @ np.linalg.norm(X, axis=1)) ** 2, kind


def test_bounds_go_from_the_prior_to_no_bound():
    X, prior = np.random.default_rng(7).standard_normal((6, 20)) + 0.3, np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    assert min_norm_weights(X @ X.T, prior, 0.0) == pytest.approx(prior)
    assert min_norm_weights(X @ X.T, prior, 1.0) == pytest.approx(min_norm_weights(X @ X.T, prior), abs=1e-8)
    lengths = [np.linalg.norm(min_norm_point(X, prior, room)[1]) for room in (0.0, 0.02, 0.1, 0.3, 1.0)]
    assert lengths == sorted(lengths, reverse=True)


def test_bounded_weights_with_a_zero_vector():
    weights, d = min_norm_point([[2.0], [0.0]], [0.5, 0.5], 0.2)
    assert weights == pytest.approx([0.3, 0.7])
    assert d == pytest.approx([0.6])


def test_a_gram_matrix_of_float32_sums_is_good_enough():
    X = np.random.default_rng(8).standard_normal((80, 30)).astype(np.float32)
    for shift in (0.0, 0.5):
        P = X + np.float32(shift)
        weights, exact = min_norm_weights(P @ P.T), min_norm_point(P)[1]
        assert np.linalg.norm(weights @ P.astype(float) - exact) <= 1e-4 * np.linalg.norm(P, axis=1).max()


BAD = {
    "square": [[1.0, 2.0, 3.0]],
    r"finite\. Got .*nan.* at 0, 1": [[1.0, np.nan], [0.0, 1.0]],
    "diagonal >= 0": [[-1.0]],
    "symmetric": [[1.0, 0.5], [0.0, 1.0]],
    "Gram matrix": [[1.0, 2.0], [2.0, 1.0]],
    "positive semi-definite": [[1.0, -0.9, -0.9], [-0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]],
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_gram_matrix_is_refused(message):
    with pytest.raises(ValueError, match=message):
        min_norm_weights(BAD[message])


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"deviation must be in \[0, 1\].*Got 1.5"):
        min_norm_weights(np.eye(2), deviation=1.5)
    with pytest.raises(ValueError, match="one weight per point, 2"):
        min_norm_weights(np.eye(2), [1.0])
    with pytest.raises(ValueError, match="sum to 1"):
        min_norm_weights(np.eye(2), [0.5, 0.4])
    with pytest.raises(ValueError, match="one point per row"):
        min_norm_point([1.0, 2.0])
    with pytest.raises(ValueError, match="Row 1 is not"):
        min_norm_point([[1.0], [np.inf]])
