"""The shortest convex combination of given points: FedAWARE eq. 8, and FedMGDA+ with bounded weights.

min λ'Qλ over Σλ = 1 and lo ≤ λ ≤ hi, where Q is the points' Gram matrix. It is solved exactly from Q alone, whatever
the dimension of the points. Three ideas make this fast and robust:

- Points are scaled to unit vectors and the weights carry their lengths, so lengths from 1e-12 to 1e12 can be mixed.
- Each step is proximal, + ε/2 ‖λ − λ_before‖²: equal or dependent points then leave no singular system, and the steps
  converge to an exact solution, usually at once. Among weights with the same point it finds some near ``prior``.
- A proximal step exchanges whole blocks of variables between "free" and "at a bound" (Júdice and Pires), which takes a
  few Cholesky factorisations even for a thousand points. Where the blocks cycle, as happens when few points carry the
  solution, it moves from face to face as Wolfe's algorithm does, which always terminates and is cheap in that case.

The certificate of optimality is ⟨d, p_i⟩ ≥ ‖d‖² for every point: the gap ‖d‖² − min_i ⟨d, p_i⟩ bounds ‖d − d*‖².
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedweave.core.records import Array

ROUNDING = np.finfo(float).eps
ACCURACY = 1e-13  # of a reduced cost, relative to ‖d‖²
PROXIMAL = 1e-9  # ε, relative to unit vectors: far above rounding, far below the needed accuracy
LARGEST_RIDGE = 1e-3
MOST_STEPS = 40
FREE, LOW, HIGH = 0, -1, 1


def min_norm_weights(gram: ArrayLike, prior: ArrayLike | None = None, deviation: float | None = None) -> Array:
    """Return the simplex weights (n,) of the shortest convex combination of n points, from their Gram matrix (n, n).

    ``deviation`` ε keeps every weight within ε of ``prior`` (uniform, unless given): 1 is no bound, 0 is the prior.
    """
    Q = _gram(gram)
    n = len(Q)
    prior = _prior(prior, n)
    if deviation is not None and not 0 <= deviation <= 1:
        raise ValueError(f"deviation must be in [0, 1], how far a weight may be from its prior. Got {deviation!r}.")
    size = np.sqrt(np.diag(Q))
    zero = size == 0
    if zero.all() or deviation == 0:
        return prior
    if deviation is None and zero.any():  # a zero vector is the shortest
        return _normalise(np.where(zero, np.maximum(prior, ROUNDING), 0.0))
    size = np.where(zero, size[~zero].min(), size)
    scale = size.min() / size
    H = Q / size / size[:, None]
    if np.abs(H).max() > 1.001:
        i, j = np.unravel_index(np.abs(H).argmax(), H.shape)
        raise ValueError(f"gram must be a Gram matrix, |Q_ij| ≤ √(Q_ii Q_jj). It is not for i, j = {i}, {j}.")
    room = 1.0 if deviation is None else deviation
    lo, hi = np.maximum(prior - room, 0) / scale, np.minimum(prior + room, 1) / scale
    if deviation is None:
        lo, hi = np.zeros(n), np.full(n, np.inf)
    weights = scale * _proximal(_Problem(H, scale, lo, hi), prior.copy())
    return _normalise(np.maximum(weights, 0))


def min_norm_point(
    points: ArrayLike, prior: ArrayLike | None = None, deviation: float | None = None
) -> tuple[Array, Array]:
    """Return weights (n,) and the shortest convex combination (d,) of ``points`` (n, d); see ``min_norm_weights``."""
    P = np.asarray(points, float)
    if P.ndim != 2 or not P.size:
        raise ValueError(f"points must be a matrix, one point per row. Got shape {P.shape}.")
    if not np.isfinite(P).all():
        raise ValueError(f"points must be finite. Row {int(np.argwhere(~np.isfinite(P))[0][0])} is not.")
    unit = max(np.abs(P).max(), np.finfo(float).tiny)  # so that squares neither overflow nor underflow
    weights = min_norm_weights((P / unit) @ (P / unit).T, prior, deviation)
    return weights, weights @ P


class _Problem(NamedTuple):
    """min ½ y'Hy with scale'y = 1 and lo ≤ y ≤ hi: unit points, and weights times lengths."""

    H: Array  # (n, n) with unit diagonal
    scale: Array  # (n,) in (0, 1]: shortest length over length
    lo: Array
    hi: Array


class _Step(NamedTuple):
    """A proximal step: the problem with ridge ε and centre x."""

    problem: _Problem
    A: Array  # H + εI
    pull: Array  # ε x

    def on_face(self, side: Array) -> tuple[Array, Array]:
        """Return the best y with the variables of ``side`` at their bounds, and all reduced costs Ay − εx − t·scale."""
        _, scale, lo, hi = self.problem
        y = np.where(side == LOW, lo, np.where(side == HIGH, hi, 0.0))
        free = np.flatnonzero(side == FREE)
        rest = self.pull[free] - (self.A[free] @ y if y.any() else 0.0)
        block = self.A if free.size == y.size else self.A[np.ix_(free, free)]
        from scipy.linalg import (
            cho_factor,
            cho_solve,
        )  # imported here because it takes a third of the import time of fedweave

        factor = cho_factor(block, lower=True, check_finite=False)
        along, base = cho_solve(factor, np.column_stack([scale[free], rest]), check_finite=False).T
        t = (1 - scale @ y - scale[free] @ base) / (scale[free] @ along)
        y[free] = base + t * along
        cost = self.A @ y - self.pull - t * scale
        cost[free] = 0.0
        return y, cost

    def misplaced(self, side: Array, y: Array, cost: Array) -> tuple[Array, Array, Array]:
        """Return which free variables are below or above their bounds, and which bounded ones should be released."""
        _, _, lo, hi = self.problem
        slack, noise = 4 * ROUNDING * np.abs(y).max(), 4 * ROUNDING * max(np.abs(y).sum(), np.abs(self.pull).max())
        free = side == FREE
        leaves = ((side == LOW) & (cost < -noise)) | ((side == HIGH) & (cost > noise))
        return free & (y < lo - slack), free & (y > hi + slack), leaves

    def by_blocks(self, side: Array) -> tuple[Array, Array] | None:
        """Exchange all misplaced variables at once until there are none; None if the exchange cycles."""
        fewest, patience = side.size + 1, 3
        while (side == FREE).any():
            y, cost = self.on_face(side)
            below, above, leaves = self.misplaced(side, y, cost)
            wrong = np.count_nonzero(below | above | leaves)
            if not wrong:
                return y, side
            fewest, patience = (wrong, 3) if wrong < fewest else (fewest, patience - 1)
            if not patience:
                return None
            side = np.where(below, LOW, np.where(above, HIGH, np.where(leaves, FREE, side)))
        return None

    def face_by_face(self, x: Array) -> tuple[Array, Array]:
        """Walk from the best vertex, releasing one variable at a time and stopping at every bound (Wolfe)."""
        _, _, lo, hi = self.problem
        y, side = _vertex(self.problem, self.problem.H @ x)
        released = -1
        for _ in range(50 * y.size):
            best, cost = self.on_face(side)
            below, above, leaves = self.misplaced(side, best, cost)
            blocked = np.flatnonzero(below | above)
            if (
                not blocked.size or np.count_nonzero(side == FREE) == 1
            ):  # a single free variable is determined by the sum
                y = best
                if not leaves.any():
                    break
                released = int(np.argmax(np.where(leaves, np.abs(cost), -1.0)))
                side[released] = FREE
                continue
            bound = np.where(below, lo, hi)[blocked]
            ways = (bound - y[blocked]) / (best - y)[blocked]
            first = int(ways.argmin())
            if blocked[first] == released and ways[first] <= 0:  # it was released only because of rounding
                side[released] = LOW if below[released] else HIGH
                break
            y = y + max(ways[first], 0.0) * (best - y)
            y[blocked[first]] = bound[first]
            side[blocked[first]] = LOW if below[blocked[first]] else HIGH
        return y, side


def _proximal(problem: _Problem, x: Array) -> Array:
    """Take proximal steps from the centre ``x`` until the certificate holds or nothing improves any more."""
    H, scale, lo, hi = problem
    side, ridge, least, noise = np.zeros(x.size, int), PROXIMAL, ROUNDING * x.size, 4 * ROUNDING
    best, found = np.inf, x
    for step in range(MOST_STEPS):
        now = _Step(problem, H + ridge * np.eye(x.size), ridge * x)
        try:
            y, side = now.by_blocks(side) or now.face_by_face(x)
        except np.linalg.LinAlgError:  # a Gram matrix from float32 sums has small negative eigenvalues
            if ridge > LARGEST_RIDGE:
                raise ValueError("gram must be positive semi-definite, as products of points are. It is not.") from None
            noise, ridge = ridge, 100 * ridge
            least = ridge
            continue
        x = np.clip(y, lo, hi)
        x /= scale @ x
        missed = _shortfall(problem, x, noise)
        if missed < best / 2:
            best, found = missed, x
        elif step > 2:
            break
        if missed <= 1:
            break
        if step > 2:  # nearly dependent points: a smaller ridge avoids tiny steps
            ridge = max(ridge / 10, least)
    return found


def _shortfall(problem: _Problem, x: Array, noise: float) -> float:
    """Return the violation of the certificate ⟨d, p⟩ ≥ ‖d‖² for all points p of the feasible hull, in tolerances.

    ``noise`` is the accuracy of the entries of H.
    """
    d = problem.H @ x
    norm2 = max(float(x @ d), 0.0)
    error = noise * np.abs(x).sum()  # of each ⟨d, p⟩
    if not np.isinf(problem.hi).all():
        y, _ = _vertex(problem, d)
        return float((x - y) @ d / (ACCURACY * norm2 + error * np.abs(x).sum()))
    missed = (norm2 * problem.scale - d) / (ACCURACY * norm2 * problem.scale + error)
    return float(missed.max())


def _vertex(problem: _Problem, cost: Array) -> tuple[Array, Array]:
    """Return the feasible point of least linear cost: all at ``lo``, then ``hi`` by cost until the sum is 1."""
    _, scale, lo, hi = problem
    order = np.argsort(cost / scale, kind="stable")
    left = 1 - scale @ lo
    room = np.cumsum((scale * (hi - lo))[order])
    last = min(int(np.searchsorted(room, left)), order.size - 1)
    y, side = lo.copy(), np.full(lo.size, LOW)
    full, marginal = order[:last], order[last]
    y[full], side[full] = hi[full], HIGH
    y[marginal] = lo[marginal] + (left - (room[last - 1] if last else 0.0)) / scale[marginal]
    side[marginal] = FREE
    return y, side


def _gram(gram: ArrayLike) -> Array:
    Q = np.asarray(gram, float)
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1] or not Q.size:
        raise ValueError(f"gram must be a square matrix, one row per point. Got shape {Q.shape}.")
    if not np.isfinite(Q).all():
        i, j = np.argwhere(~np.isfinite(Q))[0]
        raise ValueError(f"gram must be finite. Got {float(Q[i, j])} at {i}, {j}.")
    if (np.diag(Q) < 0).any():
        i = int(np.diag(Q).argmin())
        raise ValueError(f"gram must have a diagonal >= 0, squared lengths. Got {float(Q[i, i])} at {i}.")
    top = np.diag(Q).max()
    if np.abs(Q - Q.T).max() > 1e-5 * max(top, np.finfo(float).tiny):
        raise ValueError("gram must be symmetric: entry i, j is the product of points i and j.")
    return (Q + Q.T) / (2 * top) if top > 0 else Q


def _prior(prior: ArrayLike | None, n: int) -> Array:
    if prior is None:
        return np.full(n, 1 / n)
    p = np.asarray(prior, float)
    if p.shape != (n,):
        raise ValueError(f"prior must be one weight per point, {n}. Got shape {p.shape}.")
    if not np.isfinite(p).all() or (p < 0).any() or not abs(p.sum() - 1) < 1e-6:
        raise ValueError(f"prior must be weights >= 0 that sum to 1. The sum is {float(p.sum())}.")
    return _normalise(p)


def _normalise(weights: Any) -> Array:
    return weights / weights.sum()
