"""Independent sides for the latency planner: the objective as printed, the paper's random instances, and SLSQP."""

import numpy as np
from scipy.optimize import minimize


def objective(p, delta, B, alpha, M):
    """P4 as the paper prints it (eq. 13 for the round), for one p (N,) or several (S, N); ``delta`` ascending."""
    reached = np.cumsum(p, -1) ** M
    seconds = np.diff(reached, axis=-1, prepend=0.0) @ delta
    return seconds * (alpha + (B / p).sum(-1) / M) ** 2


def instance(rng, n):
    """Draw B and the gaps C from the paper's orders of magnitude."""
    B_order, C_order = rng.choice([1.0, 10.0, 1e3], 2)
    return np.cumsum(C_order * (1 - rng.random(n))), B_order * (1 - rng.random(n))


def slsqp_best(delta, B, alpha, M, starts, rng):
    """Return the least objective that SLSQP finds from so many random points; its gradient is by hand, of eq. 14."""
    n, C = delta.size, np.diff(delta)

    def log_cost(p):
        s = np.cumsum(p)[:-1]
        A, R = delta[-1] - C @ s**M, alpha + (B / p).sum() / M
        by_p = -M * np.append(np.cumsum((C * s ** (M - 1))[::-1])[::-1], 0.0)  # of A: client k moves all s from k on
        with np.errstate(invalid="ignore"):  # SLSQP may look outside the simplex, and then looks elsewhere
            value = np.log(A) + 2 * np.log(R)
        return value, by_p / A - 2 * B / (M * p**2 * R)

    one = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(n)}
    best = np.inf
    for _ in range(starts):
        start = 0.999 * rng.dirichlet(np.ones(n)) + 0.001 / n
        options = {"ftol": 1e-14, "maxiter": 500}
        found = minimize(
            log_cost, start, jac=True, method="SLSQP", bounds=[(1e-9, 1)] * n, constraints=one, options=options
        )
        p = np.maximum(found.x, 1e-12)
        best = min(best, float(objective(p / p.sum(), delta, B, alpha, M)))
    return best
