"""What the papers prove, as functions of NumPy arrays; client order as given.

FedACS: which objective is really minimised when links fail and compute differs, and how far it is from the wanted one.
Symbols: ω weights, p sampling probabilities, q loss rates, ‖a‖₁ effort (see ``Solver.effort``), η learning rate.
FedAWARE: how much the clients' gradients disagree, and how much more so for other weights λ̃.
Latency paper: how long a round of M draws with replacement lasts, and how many rounds are needed.
DELTA: which probabilities make the update's variance, or the bound Φ̃ of the surrogate, as small as can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedweave.core.records import Array


def acs_probability(weight: Array, loss_rate: Array, effort: Array) -> Array:
    """FedACS eq. 15: p_m ∝ ω_m / ((1 − q_m) ‖a_m‖₁), the law that makes the surrogate the wanted objective."""
    weight, loss_rate, effort = _checked(weight, loss_rate, effort)
    score = weight / ((1 - loss_rate) * effort)
    return score / score.sum()


def link_weight(probability: Array, loss_rate: Array) -> Array:
    """γ of eq. 5: p_m (1 − q_m), normalised; what unreliable links alone make of the weights."""
    probability, loss_rate, _ = _checked(probability, loss_rate, np.ones_like(np.asarray(loss_rate, float)))
    heard = probability * (1 - loss_rate)
    return heard / heard.sum()


def surrogate_weight(probability: Array, loss_rate: Array, effort: Array) -> Array:
    """Ω of eq. 6: p_m (1 − q_m) ‖a_m‖₁, normalised; Σ Ω_m F_m is what an anonymous sum really minimises."""
    probability, loss_rate, effort = _checked(probability, loss_rate, effort)
    share = probability * (1 - loss_rate) * effort
    return share / share.sum()


def effective_rate(probability: Array, loss_rate: Array) -> float:
    """η_eff / η of eq. 5: Σ p_m (1 − q_m)."""
    probability, loss_rate, _ = _checked(probability, loss_rate, np.ones_like(np.asarray(loss_rate, float)))
    return float(probability @ (1 - loss_rate))


def effective_steps(probability: Array, loss_rate: Array, effort: Array) -> float:
    """T_eff of eq. 6: Σ γ_m ‖a_m‖₁."""
    return float(link_weight(probability, loss_rate) @ np.asarray(effort, float))


def effective_step(probability: Array, loss_rate: Array, effort: Array) -> float:
    """η_eff T_eff / η: Σ p_m (1 − q_m) ‖a_m‖₁, how far a round moves per unit of learning rate and gradient."""
    probability, loss_rate, effort = _checked(probability, loss_rate, effort)
    return float(probability @ ((1 - loss_rate) * effort))


def chi_square(target: Array, actual: Array) -> float:
    """χ²(target ‖ actual) = Σ (target − actual)² / actual (eq. 76c); infinite if actual leaves a wanted client out."""
    target, actual = np.asarray(target, float), np.asarray(actual, float)
    _refuse("target", target, (target >= 0) & np.isfinite(target), "numbers >= 0")
    _refuse("actual", actual, (actual >= 0) & np.isfinite(actual), "numbers >= 0")
    if ((actual == 0) & (target > 0)).any():
        return float("inf")
    there = actual > 0
    return float(((target - actual)[there] ** 2 / actual[there]).sum())


def is_consistent(loss_rate: Array, effort: Array, tolerance: float = 1e-9) -> bool:
    """Eq. 13: sampling by weight is consistent if and only if (1 − q_m) ‖a_m‖₁ is the same for every client."""
    reach = (1 - np.asarray(loss_rate, float)) * np.asarray(effort, float)
    return bool(np.ptp(reach) <= tolerance * abs(reach).max())


def gradient_bound(weight: Array, probability: Array, loss_rate: Array, effort: Array, kappa: float) -> float:
    """Eq. 11: the mean squared gradient of the true objective that remains for ever is at most χ²(ω ‖ Ω) κ²."""
    return chi_square(weight, surrogate_weight(probability, loss_rate, effort)) * kappa**2


def local_reach(curvature: Array, steps: int, lr: float, mu: float = 0.0) -> Array:
    """K_m of eq. 32: u_m = K_m H_m (x_m* − x) after T steps of (proximal) gradient descent on a quadratic, exactly."""
    H = np.asarray(curvature, float)
    eye = np.eye(len(H))
    return (eye - np.linalg.matrix_power(eye - lr * (mu * eye + H), steps)) @ np.linalg.inv(H + mu * eye)


def fixed_point(
    coefficient: Array, curvature: Sequence[Array], optimum: Array, steps: Sequence[int], lr: float, mu: float = 0.0
) -> Array:
    """Where a method settles on quadratics F_m = ½ (x − x_m*)' H_m (x − x_m*), at finite η (appendix C).

    ``coefficient`` c_m is the mean weight of u_m in the direction (``Aggregator.coefficients``): ω(1 − q) for FedAvg,
    ω/‖a‖₁ for FedACS, ω for c-a-FedAvg. The mean iterate is affine, x∞ = (Σ c K H)⁻¹ Σ c K H x*. (Eqs 36 and 38 print
    I − Σ(…) where Σ(…) is meant; eq. 39 is right.)
    """
    pulls = [
        c * local_reach(H, int(T), lr, mu) @ np.asarray(H, float)
        for c, H, T in zip(coefficient, curvature, steps, strict=True)
    ]
    pulled = sum(pull @ x for pull, x in zip(pulls, np.asarray(optimum, float), strict=True))
    return np.linalg.solve(sum(pulls), pulled)


def gradient_diversity(gradients: Array, weight: Array) -> float:
    """FedAWARE eq. 3: D = √(Σ λ_i ‖g_i‖² / ‖Σ λ_i g_i‖²) of the rows g_i, at least 1; infinite where they cancel."""
    return surrogate_diversity(gradients, weight, weight)


def surrogate_diversity(gradients: Array, weight: Array, surrogate: Array) -> float:
    """FedAWARE eq. 6: D̃ = √(Σ λ_i ‖g_i‖² / ‖Σ λ̃_i g_i‖²), λ the objective's weights and λ̃ those of the step.

    The paper says D̃ ≥ 1. That holds where Σ λ̃ g is no longer than Σ λ g, as for the λ̃ that FedAWARE chooses (then D̃ is
    even at least D), not for every λ̃. Zero gradients have no diversity: nan.
    """
    g = np.asarray(gradients)
    g = g if g.dtype.kind == "f" else g.astype(float)
    if g.ndim != 2 or not g.size:
        raise ValueError(f"gradients must be a matrix, one row per client. Got shape {g.shape}.")
    if not np.isfinite(g).all():
        raise ValueError(f"gradients must be finite. Client {int(np.argwhere(~np.isfinite(g))[0][0])}'s is not.")
    weight, surrogate = (_simplex(name, w, len(g)) for name, w in (("weight", weight), ("surrogate", surrogate)))
    squares = np.array([float(row @ row) for row in g])  # row by row: no second matrix
    step = surrogate.astype(g.dtype) @ g
    return diversity_ratio(float(weight @ squares), float(step @ step))


def diversity_ratio(mean_square: float, square_of_mean: float) -> float:
    """√(Σ λ_i ‖g_i‖² / ‖Σ λ̃_i g_i‖²) from its two parts."""
    if square_of_mean > 0:
        return float(np.sqrt(mean_square / square_of_mean))
    return float("inf") if mean_square > 0 else float("nan")


def some_draw(chance: Array, draws: int) -> Array:
    """Return 1 − (1 − chance)^draws, the chance that at least one of ``draws`` hits, exact also where it is small."""
    with np.errstate(divide="ignore"):  # a sure hit: log 0 is −∞, and that is right
        return -np.expm1(draws * np.log1p(-np.asarray(chance, float)))


def expected_round_seconds(probability: Array, latency: Array, cohort_size: int) -> float:
    """Latency paper, eq. 14: E max δ over ``cohort_size`` draws with replacement, for latencies that stay as they are.

    Written as Σ_k (δ_k − δ_{k−1}) P(somebody as slow as k is drawn), latencies sorted from δ_0 = 0. This is eq. 14
    summed from the other end: it does not cancel where a slow client is hardly ever drawn. The draws of a client that
    answers in random time have a larger mean maximum than this formula of their means (Jensen).
    """
    p, delta = np.asarray(probability, float), np.asarray(latency, float)
    if p.shape != delta.shape or p.ndim != 1 or not p.size:
        raise ValueError(f"probability and latency must be one number per client. Got {p.shape} and {delta.shape}.")
    _refuse("probability", p, (p >= 0) & np.isfinite(p), "numbers >= 0")
    _refuse("latency", delta, (delta >= 0) & np.isfinite(delta), "numbers >= 0")
    if abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"probability must sum to 1. The sum is {p.sum()!r}.")
    order = np.argsort(delta, kind="stable")
    late = np.minimum(np.cumsum(p[order][::-1])[::-1], 1.0)
    return float(np.diff(delta[order], prepend=0.0) @ some_draw(late, cohort_size))


def rounds_needed(probability: Array, data_factor: Array, cohort_size: int, alpha: float, epsilon: float) -> int:
    """Latency paper, eq. 25: T = ⌈R²/ε²⌉ with R = α + (1/M) Σ B_i/p_i, and B_i = (d_i G_i)².

    By the bound (22) the smallest squared gradient of T rounds is then at most ε; T is never less than one. (The
    appendix proves (22) up to a factor of two: that the first term of (21) dominates makes the sum at most twice it.)
    """
    p, B = np.asarray(probability, float), np.asarray(data_factor, float)
    if p.shape != B.shape:
        raise ValueError(f"probability and data_factor must be one number per client. Got {p.shape} and {B.shape}.")
    _refuse("data_factor", B, (B >= 0) & np.isfinite(B), "numbers >= 0")
    _refuse("probability", p, np.isfinite(p) & ((p > 0) | (B == 0)), "> 0 where data_factor is")
    ratio = np.divide(B, p, out=np.zeros(p.shape), where=B > 0)
    needed = ((alpha + float(ratio.sum()) / cohort_size) / epsilon) ** 2
    return max(math.ceil(needed * (1 - 1e-12)), 1)  # a whole number is not rounded up for its last bit


def importance_probability(weight: Array, norm: Array) -> Array:
    """DELTA eq. 5: p_i ∝ ω_i ‖u_i‖, the law of draws with replacement whose unbiased update varies least."""
    weight, norm = np.asarray(weight, float), np.asarray(norm, float)
    _refuse("norm", norm, (norm >= 0) & np.isfinite(norm), "numbers >= 0")
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
    """DELTA eq. 13 before it is normalised: √(α₁ ζ_i² + α₂ σ_i²) of diversities ζ_i and variances σ_i²."""
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
    _refuse("score", score, (score >= 0) & np.isfinite(score), "numbers >= 0")
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
    _refuse("probability", p, np.isfinite(p) & ((p > 0) | (squares == 0)), "> 0 where anything is to be learned")
    return float(smoothness * lr / 2 * np.divide(squares, p, out=np.zeros(p.size), where=squares > 0).sum())


def _checked(weight: Array, loss_rate: Array, effort: Array) -> tuple[Array, Array, Array]:
    """Return the three as float arrays of one length, or say which client is wrong."""
    weight, loss_rate, effort = (np.asarray(a, float) for a in (weight, loss_rate, effort))
    if not weight.shape == loss_rate.shape == effort.shape or weight.ndim != 1 or not weight.size:
        shapes = f"{weight.shape}, {loss_rate.shape}, {effort.shape}"
        raise ValueError(f"weight, loss_rate and effort must be one number per client each. Got shapes {shapes}.")
    _refuse("weight", weight, (weight >= 0) & np.isfinite(weight), "numbers >= 0")
    _refuse("loss_rate", loss_rate, (loss_rate >= 0) & (loss_rate < 1), "in [0, 1), or nothing is ever heard")
    _refuse("effort", effort, (effort > 0) & np.isfinite(effort), "numbers > 0, or nothing is ever done")
    if abs(weight.sum() - 1) > 1e-6:
        raise ValueError(f"weight must sum to 1. The sum is {weight.sum()!r}.")
    return weight, loss_rate, effort


def _refuse(name: str, values: Array, good: Array, rule: str) -> None:
    if not good.all():
        client = int(np.flatnonzero(~good)[0])
        raise ValueError(f"{name} must be {rule}. Got {values[client]!r} for client {client}.")


def _simplex(name: str, weight: Array, n: int) -> Array:
    weight = np.asarray(weight, float)
    if weight.shape != (n,):
        raise ValueError(f"{name} must be one number per client, {n}. Got shape {weight.shape}.")
    _refuse(name, weight, (weight >= 0) & np.isfinite(weight), "numbers >= 0")
    if abs(weight.sum() - 1) > 1e-6:
        raise ValueError(f"{name} must sum to 1. The sum is {weight.sum()!r}.")
    return weight
