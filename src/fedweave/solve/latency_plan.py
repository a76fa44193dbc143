"""Probabilities and cohort size that minimise the expected training time (latency paper, problems P2 to P4).

With draws p, cohort size M, latencies δ and data factors B_i = (d_i G_i)², a round lasts A(p, M) = E max δ seconds and
T = R(p, M)²/ε² rounds are needed, R = α + (1/M) Σ B_i/p_i. We minimise A·T over the simplex, for each allowed M.

A is concave in p, so log A lies below its tangent in p; log R lies below its tangent in R, which is convex in p. With
both,

    Σ_k g_k p_k + b_k/p_k,   g = ∇A/A,   b = 2B/(M R),

is, up to a constant, a separable convex function that touches log(A R²) at the current p and lies above it elsewhere.
Its minimiser p_k = √(b_k/(ν + g_k)) is never worse: the iteration is monotone, without line search, O(N) per step. The
problem is not convex and has distinct local minima: where α outweighs the data factors, a good plan either ignores
latencies or hardly ever asks any client slower than some cut, and no small steps lead from one to the other. So the
search starts from one point per such cut as well as from norm and uniform selection.

Of many clients, neighbours in latency are searched as one. Within a group of equal latency the best p is ∝ √B, so the
group is one client with data factor (Σ √B)². The best plan of the groups is then the only start of the steps above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.theory import expected_round_seconds, rounds_needed, some_draw

CUTS = 64  # most starting points that hardly ask slow clients; every cut is tried for up to twice as many clients
TAILS = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)  # mean number of clients beyond the cut asked in a round
STEPS, SETTLED = 5000, 1e-13  # most steps, and the relative decrease at which they end earlier
HEATS = ((6, 12), (40, 4), (STEPS, 1))  # (steps, number of starting points that continue after them)
ENTRIES = 2**18  # largest matrix of starting points
GROUPS = 2**12  # about how many groups; four times as many clients or fewer are searched as they are
COARSE = 14  # cohort sizes solved first
WORTH = 2e-4  # another cohort size is solved if it is predicted to be better by this share


class LatencyPlan(NamedTuple):
    """Sampling probabilities and cohort size, with their expected cost."""

    probability: Array  # (N,) of each of the M draws, with replacement; client order as given
    cohort_size: int  # M
    rounds: int  # T (eq. 25)
    round_seconds: float  # expected (eq. 14)
    total_seconds: float  # rounds × round_seconds

    @property
    def largest_weight(self) -> float:
        """The largest 1/(M p) of the clients that are ever asked: how many times its data share an answer counts."""
        return float(1 / (self.cohort_size * self.probability[self.probability > 0].min()))


def latency_plan(
    latency: Array,
    data_factor: Array,
    alpha: float,
    epsilon: float,
    cohort_sizes: Iterable[int] | None = None,
    *,
    floor: float | Array = 0.0,
    exhaustive: bool = False,
) -> LatencyPlan:
    """Return the plan with the least expected training time (problem P2 of the latency paper).

    ``latency`` δ_i > 0 in seconds, ``data_factor`` B_i = (d_i G_i)² >= 0, ``alpha`` = 2LΓ >= 0, ``epsilon`` > 0 the
    squared gradient to reach. ``cohort_sizes`` are the allowed M, [M] for a given one, by default 1 … N: of many, a
    coarse grid is solved and then the sizes predicted to be better, or all of them with ``exhaustive``. ``floor`` is a
    least probability, common or per client: it caps the weights d/(M p). A client with B = 0 does not affect the bound
    and is never asked. The probabilities are a stationary point, the best from many starts; it is not proved to be the
    global minimum.
    """
    delta, B, sizes, least = _check(latency, data_factor, alpha, epsilon, cohort_sizes, floor)
    useful = np.flatnonzero(B > 0)
    order = useful[np.argsort(delta[useful], kind="stable")]
    fleet = Fleet(delta[order], B[order], float(alpha), least[order])
    if order.size > 4 * GROUPS:
        groups, which = fleet.grouped()
        M, p = _search(groups, sizes, float(epsilon), exhaustive)
        p = fleet.descend(fleet.ungrouped(p, groups, which), M)
    else:
        M, p = _search(fleet, sizes, float(epsilon), exhaustive)
    probability = np.zeros(delta.size)
    probability[order] = p
    return evaluate_plan(probability, delta, B, alpha, epsilon, M)


def evaluate_plan(
    probability: Array, latency: Array, data_factor: Array, alpha: float, epsilon: float, cohort_size: int
) -> LatencyPlan:
    """Return the plan with given probabilities and cohort size and its expected cost."""
    rounds = rounds_needed(probability, data_factor, cohort_size, alpha, epsilon)
    seconds = expected_round_seconds(probability, latency, cohort_size)
    return LatencyPlan(probability, cohort_size, rounds, seconds, rounds * seconds)


@dataclass(frozen=True)
class Fleet:
    """The clients in order of latency, fastest first. Probabilities are rows: (N,), or several at once (S, N)."""

    latency: Array
    data_factor: Array
    alpha: float
    floor: Array

    @cached_property
    def gap(self) -> Array:
        """δ_k − δ_{k−1}, from δ_0 = 0: E max sums these times the probability that a client as slow as k is drawn."""
        return np.diff(self.latency, prepend=0.0)

    def seconds(self, p: Array, M: int) -> Array:
        """A, the expected length of a round."""
        return some_draw(_late(p), M) @ self.gap

    def bound(self, p: Array, M: int) -> Array:
        """R; the rounds needed are proportional to its square."""
        return self.alpha + (self.data_factor / p).sum(-1) / M

    def cost(self, p: Array, M: int) -> Array:
        """log(A R²), the objective."""
        return np.log(self.seconds(p, M)) + 2 * np.log(self.bound(p, M))

    def total(self, p: Array, M: int, epsilon: float) -> float:
        """A T, with a whole number of rounds."""
        return float(self.seconds(p, M)) * rounds_needed(p, self.data_factor, M, self.alpha, epsilon)

    def step(self, p: Array, M: int) -> tuple[Array, Array]:
        """Return the next p and the cost of this one; ∂A/∂p_k = M Σ_{1<j≤k} gap_j (1 − late_j)^(M−1), a running sum."""
        late, R = _late(p), self.bound(p, M)[..., None]
        A = (some_draw(late, M) @ self.gap)[..., None]
        slope = M * self.gap * (1 - late) ** (M - 1)
        slope[..., 0] = 0.0  # some client is always drawn; keeping the term would only lose digits
        after = _tangent_minimiser(2 * self.data_factor / (M * R), np.cumsum(slope, -1) / A, self.floor)
        return after, (np.log(A) + 2 * np.log(R))[..., 0]

    def descend(self, p: Array, M: int, steps: int = STEPS) -> Array:
        """Return the p that the steps reach from ``p``."""
        before = np.inf
        for _ in range(steps):
            after, cost = self.step(p, M)
            if np.max(before - cost) < SETTLED:
                break
            p, before = after, cost
        return p

    def solve(self, M: int, near: Sequence[Array] = ()) -> Array:
        """Return the best p found; ``near`` are solutions for other cohort sizes."""
        if self.latency[0] == self.latency[-1]:  # A is constant: one step is norm selection, the optimum (Corollary 3)
            return self.descend(self.starts[0], M, 2)
        field = [*self.starts, *near, *self._cuts(M)]
        for steps, kept in HEATS:
            rows = max(1, ENTRIES // self.latency.size)
            heats = [np.array(field[i : i + rows]) for i in range(0, len(field), rows)]
            field = [p for heat in heats for p in self.descend(heat, M, steps)]
            field = sorted(field, key=lambda p: self.cost(p, M))[:kept]
        return field[0]

    def grouped(self) -> tuple[Fleet, Array]:
        """Return groups of neighbours as clients, and each one's group: small ones among the fastest and slowest."""
        n, norm = self.latency.size, np.sqrt(self.data_factor)
        ends = np.geomspace(1, n, GROUPS // 3)
        first = np.unique(np.rint([*(ends - 1), *np.linspace(0, n - 1, GROUPS // 3), *(n - ends)]).astype(int))
        total, latency, floor = (np.add.reduceat(a, first) for a in (norm, norm * self.latency, self.floor))
        which = np.repeat(np.arange(first.size), np.diff(first, append=n))
        return Fleet(latency / total, total**2, self.alpha, floor), which

    def ungrouped(self, p: Array, groups: Fleet, which: Array) -> Array:
        """Return the p of the clients whose groups have this one."""
        share = np.sqrt(self.data_factor / groups.data_factor[which])
        return self.floor + (p - groups.floor)[which] * share

    @cached_property
    def starts(self) -> list[Array]:
        """Norm and uniform selection, and two that moderately prefer fast clients."""
        norm = np.sqrt(self.data_factor)
        return [self._feasible(s) for s in (norm, np.ones(norm.size), norm / self.latency, norm / self.latency**0.5)]

    def _feasible(self, score: Array) -> Array:
        return self.floor + (1 - self.floor.sum()) * score / score.sum(-1, keepdims=True)

    def _cuts(self, M: int) -> Iterable[Array]:
        """Yield norm selection per cut, with the slower clients scaled to the best of the frequencies ``TAILS``."""
        norm, n = np.sqrt(self.data_factor), self.latency.size
        late, tail = _late(norm / norm.sum()), np.divide(TAILS, M + 1)[:, None]
        if n > 2 * CUTS:  # evenly, and denser towards the end: there may be a single straggler
            places = np.rint([*np.linspace(1, n - 1, CUTS // 2), *(n - np.geomspace(1, n - 1, CUTS // 2))])
        else:
            places = np.arange(1, n)
        for k in np.unique(places.astype(int)):
            mixed = self._feasible(norm * np.where(np.arange(n) < k, (1 - tail) / (1 - late[k]), tail / late[k]))
            yield mixed[self.cost(mixed, M).argmin()]


def _late(p: Array) -> Array:
    """Return the probability that a draw is this client or a slower one; summed from the end, where it is small."""
    return np.minimum(np.cumsum(p[..., ::-1], -1)[..., ::-1], 1.0)


def _tangent_minimiser(b: Array, g: Array, floor: Array) -> Array:
    """Minimise Σ g p + b/p over Σ p = 1, p >= floor: p = max(floor, √(b/(ν + g))) with ν such that they sum to one.

    Clients below their floor are set to it, which increases ν and decreases all others, so a client at its floor
    stays there.
    """
    if floor.sum() >= 1 - 1e-12:
        return np.broadcast_to(floor, b.shape)
    free = np.ones(b.shape, bool)
    while True:
        mass = 1 - np.where(free, 0.0, floor).sum(-1, keepdims=True)
        p = np.where(free, _scale_to_mass(np.where(free, b, 0.0), g, mass), floor)
        low = p < floor
        if not low.any():
            return p
        free &= ~low


def _scale_to_mass(b: Array, g: Array, mass: Array) -> Array:
    """Return √(b/(ν + g)) with the ν at which it sums to ``mass``.

    h(ν) = Σ √(b/(ν + g)) to the power −2 is a power mean of ν + g: increasing and concave, so Newton's steps from the
    left never pass the root, and they are exact where all g are equal. ν is measured from −min g to avoid cancellation.
    """
    g = np.where(b > 0, g, np.inf)
    g = g - g.min(-1, keepdims=True)
    nu = (b / mass**2 - g).max(-1, keepdims=True)
    for _ in range(100):
        x = nu + g
        p = np.sqrt(b / x)
        h = p.sum(-1, keepdims=True)
        step = (h**2 / mass**2 - 1) * h / (p / x).sum(-1, keepdims=True)
        nu = nu + step
        if np.all(step <= 1e-15 * nu):
            break
    p = np.sqrt(b / (nu + g))
    return p * (mass / p.sum(-1, keepdims=True))


def _search(fleet: Fleet, sizes: Sequence[int], epsilon: float, exhaustive: bool) -> tuple[int, Array]:
    """Return the best M and its p: among all sizes, or among a coarse grid and the sizes predicted to be better."""
    solved, totals = dict[int, Array](), dict[int, float]()
    todo = list(sizes) if exhaustive or len(sizes) <= COARSE else _spread(sizes)
    while todo:
        for M in todo:
            nearest = sorted(solved, key=lambda m: abs(math.log(m / M)))[:2]
            solved[M] = fleet.solve(M, [solved[m] for m in nearest])
        totals = {M: fleet.total(p, M, epsilon) for M, p in solved.items()}
        todo = [] if len(solved) == len(sizes) else _next_sizes(fleet, solved, sizes, epsilon, min(totals.values()))
    best = min(sorted(totals), key=totals.__getitem__)
    return best, solved[best]


def _spread(sizes: Sequence[int]) -> list[int]:
    """Return some of the sizes, a constant factor apart."""
    wanted = np.geomspace(sizes[0], sizes[-1], COARSE)
    return sorted({sizes[int(np.argmin(np.abs(np.asarray(sizes) - M)))] for M in wanted})


def _next_sizes(
    fleet: Fleet, solved: Mapping[int, Array], sizes: Sequence[int], epsilon: float, best: float
) -> list[int]:
    """Return the size with the least predicted total, if it is not solved yet.

    Between solved sizes log A and log R are smooth in log M, but the total with its whole number of rounds is not, so
    those two are interpolated and the total is computed from them.
    """
    from scipy.interpolate import CubicSpline  # imported here because it takes half a second

    known = sorted(solved)
    both = [(math.log(fleet.seconds(solved[M], M)), math.log(fleet.bound(solved[M], M))) for M in known]
    log_A, log_R = CubicSpline(np.log(known), np.array(both))(np.log(sizes)).T
    with np.errstate(over="ignore"):
        total = np.exp(log_A) * np.maximum(np.ceil(np.exp(2 * (log_R - math.log(epsilon)))), 1)
    total[np.isin(sizes, known)] = np.inf
    M = sizes[int(np.argmin(total))]
    return [M] if total.min() < best * (1 - WORTH) else []


def _check(
    latency: Array,
    data_factor: Array,
    alpha: float,
    epsilon: float,
    cohort_sizes: Iterable[int] | None,
    floor: float | Array,
) -> tuple[Array, Array, list[int], Array]:
    """Return the inputs as arrays; report all problems at once."""
    delta, B = np.asarray(latency, float), np.asarray(data_factor, float)
    if delta.ndim != 1 or delta.shape != B.shape or not delta.size:
        raise BadInput(f"latency and data_factor must be one number per client each. Got {delta.shape} and {B.shape}.")
    sizes = list(range(1, delta.size + 1)) if cohort_sizes is None else sorted(set(cohort_sizes))
    least = np.broadcast_to(np.asarray(floor, float), delta.shape)
    rules = [
        ("latency", delta, (delta > 0) & np.isfinite(delta), "numbers > 0"),
        ("data_factor", B, (B >= 0) & np.isfinite(B), "numbers >= 0"),
        ("floor", least, (least >= 0) & (least <= 1), "in [0, 1]"),
    ]
    problems = [
        f"{name} must be {rule}. Got {values[~good][0]} for client {int(np.flatnonzero(~good)[0])}."
        for name, values, good, rule in rules
        if not good.all()
    ]
    if not 0 <= alpha < np.inf:
        problems.append(f"alpha must be a number >= 0. Got {alpha}.")
    if not 0 < epsilon < np.inf:
        problems.append(f"epsilon must be a number > 0. Got {epsilon}.")
    if not sizes or any(int(M) != M or M < 1 for M in sizes):
        problems.append(f"cohort_sizes must be whole numbers >= 1. Got {sizes}.")
    if not problems and not (B > 0).any():
        problems.append("data_factor is 0 for every client: no client contributes to the model.")
    if not problems and least[B > 0].sum() > 1 + 1e-12:
        problems.append(f"floor must leave something to choose: its sum must be at most 1. It is {least[B > 0].sum()}.")
    if problems:
        raise BadInput(*problems)
    return delta, B, [int(M) for M in sizes], least
