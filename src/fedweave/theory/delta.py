"""DELTA: the probabilities that minimise the variance of the update, or the bound Φ̃ of the surrogate."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array
from fedweave.theory.checks import check_values


def importance_probability(weight: Array, norm: Array) -> Array:
    """DELTA eq. 5: p_i ∝ ω_i ‖u_i‖, the law of draws with replacement of least variance of the unbiased update."""
    weight, norm = np.asarray(weight, float), np.asarray(norm, float)
    check_values("norm", norm, (norm >= 0) & np.isfinite(norm), "numbers >= 0")
    return weight * norm / (weight @ norm)


def update_variance(probability: Array, weight: Array, updates: Array, draws: int) -> float:
    """E ‖Σ (ω_i c_i/(n p_i)) u_i − Σ ω u‖² of n draws with replacement: (1/n) (Σ ω_i² ‖u_i‖²/p_i − ‖Σ ω u‖²).

    At its smallest, under ``importance_probability``, (1/n) ((Σ ω_i ‖u_i‖)² − ‖Σ ω u‖²). (DELTA's eq. 76 bounds that
    by ‖mean‖², which fails where the updates cancel.)
    """
    p, weight, u = (np.asarray(a, float) for a in (probability, weight, updates))
    squares = (u**2).sum(1) * weight**2
    ratio = np.divide(squares, p, out=np.zeros(p.size), where=squares > 0)
    return float(ratio.sum() - ((weight @ u) ** 2).sum()) / draws


def delta_score(diversity: Array, variance: Array, alpha1: Array | float = 0.5, alpha2: Array | float = 0.5) -> Array:
    """DELTA eq. 13 before normalisation: √(α₁ ζ_i² + α₂ σ_i²) of diversities ζ_i and variances σ_i²."""
    return np.sqrt(alpha1 * np.asarray(diversity, float) ** 2 + alpha2 * np.asarray(variance, float))


def delta_alphas(
    steps: Array, lr: float, smoothness: float, cohort_size: int, server_lr: float = 1.0
) -> tuple[Array, Array]:
    """DELTA, Corollary 3.7: α₁ = 20 K² L η and α₂ = 5 K L η + η_g/n. (Section 3.4 compares with the two exchanged.)"""
    K = np.asarray(steps, float)
    return 20 * K**2 * smoothness * lr, 5 * K * smoothness * lr + server_lr / cohort_size


def delta_probability(
    weight: Array, diversity: Array, variance: Array, alpha1: Array | float = 0.5, alpha2: Array | float = 0.5
) -> Array:
    """DELTA eq. 13 for any weights: p_i ∝ ω_i √(α₁ ζ_i² + α₂ σ_i²); minimises ``delta_bound`` of the same α."""
    score = np.asarray(weight, float) * delta_score(diversity, variance, alpha1, alpha2)
    check_values("score", score, (score >= 0) & np.isfinite(score), "numbers >= 0")
    return score / score.sum() if score.any() else np.asarray(weight, float)


def delta_bound(
    probability: Array,
    weight: Array,
    diversity: Array,
    variance: Array,
    steps: Array,
    lr: float,
    smoothness: float,
    cohort_size: int,
    server_lr: float = 1.0,
) -> float:
    """Φ̃ of DELTA eq. 11, draws with replacement: (L η/2) Σ (ω_i²/p_i) (α₁ ζ_i² + α₂ σ_i²); the paper's ω is 1/m."""
    alphas = delta_alphas(steps, lr, smoothness, cohort_size, server_lr)
    squares = (np.asarray(weight, float) * delta_score(diversity, variance, *alphas)) ** 2
    p = np.asarray(probability, float)
    check_values("probability", p, np.isfinite(p) & ((p > 0) | (squares == 0)), "> 0 where the score is positive")
    return float(smoothness * lr / 2 * np.divide(squares, p, out=np.zeros(p.size), where=squares > 0).sum())
