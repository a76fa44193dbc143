"""Latency paper: the duration of a round of M draws with replacement, the convergence bound and the rounds needed."""

from __future__ import annotations

import math

import numpy as np

from fedweave.core.records import Array
from fedweave.theory.checks import check_values


def some_draw(chance: Array, draws: int) -> Array:
    """Return 1 − (1 − chance)^draws, the probability of at least one hit, accurate also where it is small."""
    with np.errstate(divide="ignore"):  # for chance 1, log 0 = −∞ gives the right result
        return -np.expm1(draws * np.log1p(-np.asarray(chance, float)))


def expected_round_seconds(probability: Array, latency: Array, cohort_size: int) -> float:
    """Latency paper, eq. 14: E max δ over ``cohort_size`` draws with replacement, for constant latencies.

    Written as Σ_k (δ_k − δ_{k−1}) P(a client as slow as k is drawn), latencies sorted from δ_0 = 0. This is eq. 14
    summed from the other end, which avoids cancellation where a slow client is hardly ever drawn. For random latencies
    the mean maximum is larger than this formula applied to their means (Jensen).
    """
    p, delta = np.asarray(probability, float), np.asarray(latency, float)
    if p.shape != delta.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"probability and latency must be one number per client. Got {p.shape} and {delta.shape}.")
    check_values("probability", p, (p >= 0) & np.isfinite(p), "numbers >= 0")
    check_values("latency", delta, (delta >= 0) & np.isfinite(delta), "numbers >= 0")
    if abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"probability must sum to 1. The sum is {p.sum()!r}.")
    order = np.argsort(delta, kind="stable")
    late = np.minimum(np.cumsum(p[order][::-1])[::-1], 1.0)
    return float(np.diff(delta[order], prepend=0.0) @ some_draw(late, cohort_size))


def rounds_needed(probability: Array, data_factor: Array, cohort_size: int, alpha: float, epsilon: float) -> int:
    """Latency paper, eq. 25: T = ⌈R²/ε²⌉ with R = α + (1/M) Σ B_i/p_i, and B_i = (d_i G_i)².

    By the bound (22) the smallest squared gradient of T rounds is then at most ε; T is at least one. (The appendix
    proves (22) up to a factor of two: the first term of (21) dominates, so the sum is at most twice that term.)
    """
    needed = ((alpha + _data_term(probability, data_factor) / cohort_size) / epsilon) ** 2
    return max(math.ceil(needed * (1 - 1e-12)), 1)  # so that rounding errors do not add a round


def _data_term(probability: Array, data_factor: Array) -> float:
    """Return Σ B_i/p_i; a client without a data factor may have probability zero."""
    p, B = np.asarray(probability, float), np.asarray(data_factor, float)
    if p.shape != B.shape:
        raise ValueError(f"probability and data_factor must be one number per client. Got {p.shape} and {B.shape}.")
    check_values("data_factor", B, (B >= 0) & np.isfinite(B), "numbers >= 0")
    check_values("probability", p, np.isfinite(p) & ((p > 0) | (B == 0)), "> 0 where data_factor is")
    return float(np.divide(B, p, out=np.zeros(p.shape), where=B > 0).sum())


def selection_bound(
    gap: float,
    rounds: int,
    probability: Array,
    fraction: Array,
    norm: Array,
    cohort_size: int,
    steps: int,
    lr: float,
    smoothness: float,
    sigma: Array | float = 0.0,
) -> float:
    """Latency paper, Theorem 1 (eq. 20): a bound of (1/T) Σ E ‖∇f(x_t)‖², and so of the smallest, for γ ≤ 1/(L I).

    2 Γ/(T γ I) + (I − 1)(2 I − 1) L² γ²/6 Σ d_i G_i² + (L I γ/M) Σ d_i² G_i²/p_i + noise. Γ = ``gap`` is f(x_0) − f*,
    d the ``fraction`` of the data, G the ``norm``: E ‖g_i‖² ≤ G_i² for all local gradients on the way; I the ``steps``,
    γ the ``lr``. It is the bound of x + Σ c_i d_i/(M p_i) (y_i − x); the printed sum of models, eq. 19, has a variance
    with ‖x‖² in it, and Lemma 3 is false for it.

    Noise: with full gradients (``sigma`` 0) it is zero, as printed. Step (b) of eq. 35 takes ‖E[ȳ] − x‖² for
    E ‖ȳ − x‖², which drops the variance σ_i² of the stochastic gradients; then the bound needs
    L γ v Σ d_i² σ_i², v = 1 − 1/M for one local step and (1 − 1/M)/(1 − (1 − 1/M) L I γ) for more. Counterexample to
    the printed form: one client, f = x²/2, M = 4, one step with noise σ: E ‖∇f‖² settles at γ σ²/(2 − γ), the printed
    bound at γ (σ² + E ‖∇f‖²)/4.

    The paper calls this O(1/T). For a fixed γ it does not fall below a constant, for γ ∝ 1/√T it is O(1/√T).
    """
    reach = lr * smoothness * steps
    if not 0 < reach <= 1:
        raise ValueError(f"lr must be in (0, 1/(L I)]. Got {lr!r} for L I = {smoothness * steps!r}.")
    d, G2 = np.asarray(fraction, float), np.asarray(norm, float) ** 2
    many = 1 - 1 / cohort_size
    noise = many / (1 - many * reach if steps > 1 else 1.0) * float(d**2 @ (np.ones(d.size) * sigma) ** 2)
    drift = (steps - 1) * (2 * steps - 1) / 6 * (smoothness * lr) ** 2 * float(d @ G2)
    selection = reach / cohort_size * _data_term(probability, d**2 * G2)
    return 2 * gap / (rounds * lr * steps) + drift + selection + smoothness * lr * noise


def selection_rate_bound(
    gap: float,
    rounds: int,
    probability: Array,
    fraction: Array,
    norm: Array,
    cohort_size: int,
    steps: int,
    smoothness: float,
) -> float:
    """Latency paper, Corollary 1 (eq. 21): ``selection_bound`` for γ = 1/(L I √T) and full gradients, O(1/√T).

    (1/√T) (2 L Γ + (1/M) Σ d_i² G_i²/p_i) + (1/T) (I − 1)(2 I − 1)/(6 I²) Σ d_i G_i². (Remark 1 says that G_i = 0 for
    IID data. G_i bounds gradients, not their differences: IID data makes them equal, not zero.)
    """
    lr = 1 / (smoothness * steps * math.sqrt(rounds))
    return selection_bound(gap, rounds, probability, fraction, norm, cohort_size, steps, lr, smoothness)


def dominance_rounds(fraction: Array, norm: Array, cohort_size: int) -> int:
    """Latency paper, Corollary 2: from T_d = ⌈M² ρ²/9⌉ rounds on the first term of eq. 21 is the larger one, for any p.

    ρ = max G_i² / max d_i G_i², as printed. (The appendix proves it with min d_i G_i² in the denominator: that ρ is
    never smaller, and infinite where a G_i is zero. The printed one holds as well: Σ d² G²/p ≥ (Σ d G)² for every p,
    and Σ d G²/(Σ d G)² ≤ max G/Σ d G ≤ ρ.)
    """
    d, G2 = np.asarray(fraction, float), np.asarray(norm, float) ** 2
    check_values("norm", G2, np.isfinite(G2), "finite numbers")
    if not (d * G2).any():
        raise ValueError("norm must be positive for a client with data, otherwise there is nothing to learn.")
    return math.ceil((cohort_size * G2.max() / (d * G2).max()) ** 2 / 9 * (1 - 1e-12))


def dominant_bound(
    gap: float,
    rounds: int,
    probability: Array,
    fraction: Array,
    norm: Array,
    cohort_size: int,
    smoothness: float,
) -> float:
    """Latency paper, Corollary 2 (eq. 22) for T ≥ T_d rounds: (2/√T) (2 L Γ + (1/M) Σ d_i² G_i²/p_i).

    Twice the printed value: that the second term of eq. 21 is the smaller one does not make it zero.
    """
    least = dominance_rounds(fraction, norm, cohort_size)
    if rounds < least:
        raise ValueError(f"rounds must be at least {least}, the T_d of Corollary 2. Got {rounds}.")
    B = (np.asarray(fraction, float) * np.asarray(norm, float)) ** 2
    return 2 * (2 * smoothness * gap + _data_term(probability, B) / cohort_size) / math.sqrt(rounds)
