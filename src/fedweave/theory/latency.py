"""Latency paper: the duration of a round of M draws with replacement, and the number of rounds needed."""

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
    p, B = np.asarray(probability, float), np.asarray(data_factor, float)
    if p.shape != B.shape:
        raise ValueError(f"probability and data_factor must be one number per client. Got {p.shape} and {B.shape}.")
    check_values("data_factor", B, (B >= 0) & np.isfinite(B), "numbers >= 0")
    check_values("probability", p, np.isfinite(p) & ((p > 0) | (B == 0)), "> 0 where data_factor is")
    ratio = np.divide(B, p, out=np.zeros(p.shape), where=B > 0)
    needed = ((alpha + float(ratio.sum()) / cohort_size) / epsilon) ** 2
    return max(math.ceil(needed * (1 - 1e-12)), 1)  # so that rounding errors do not add a round
