"""FedACS: the objective minimised when links fail and compute differs, and its distance from the true objective.

Symbols: ω weights, p sampling probabilities, q loss rates, ‖a‖₁ effort (see ``Solver.effort``), η learning rate.

The convergence bounds (Lemmas 1 and 2, Theorems 1 to 3, Corollary 2.1) are in the form that can be proved.
Assumptions: every F_m is L-smooth (``smoothness``), Σ Ω_m ‖∇F_m‖² ≤ β² ‖∇F̃‖² + κ² everywhere (``beta``, ``kappa``),
stochastic gradients have variance σ² (``sigma``). Local solvers are SGD, also with a decaying step: before its step t a
client has moved by −η Σ_{s<t} a_s g_s. Notation: A = max ‖a_m‖₁, z = η L A, h = z²/(1 − 2 z²), b = h + z (1 + 2 h), and
s = η_eff τ_eff, the length of a round's step. None of the bounds gets smaller with the number of draws.

Where the printed bounds fail:

- (73e) and (8) multiply the whole gradient term by β², also its −½. For identical clients, β² = 100 is allowed and (8)
  promises fifty times the descent of gradient descent.
- (10) and (17) have η_eff τ_eff κ²/β² where the stated condition on η gives 4 b κ². Two clients with optima ±e and
  curvature L, one draw, one step: E ‖∇F‖² settles at κ² z/(2 − z), more than the printed z κ²/L for L > 2.
- (50b) leaves out the noise of the local steps and (66b) the dependence of gradients on earlier noise. By Jensen's
  inequality the printed ½ η η_eff L A² σ² holds, plus s (h/2) (1 + 2 z) σ² for the drift.
- (109a) takes the largest 1/s_r out of Σ (F_{r−1} − F_r)/s_r, which is wrong where F rises for a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedweave.core.records import Array
from fedweave.theory.checks import check_clients, check_values


def acs_probability(weight: Array, loss_rate: Array, effort: Array) -> Array:
    """FedACS eq. 15: p_m ∝ ω_m / ((1 − q_m) ‖a_m‖₁), the law under which the surrogate is the true objective."""
    weight, loss_rate, effort = check_clients(weight, loss_rate, effort)
    score = weight / ((1 - loss_rate) * effort)
    return score / score.sum()


def link_weight(probability: Array, loss_rate: Array) -> Array:
    """γ of eq. 5: p_m (1 − q_m), normalised; the weights under unreliable links alone."""
    probability, loss_rate, _ = check_clients(probability, loss_rate, np.ones_like(np.asarray(loss_rate, float)))
    arrival = probability * (1 - loss_rate)
    return arrival / arrival.sum()


def surrogate_weight(probability: Array, loss_rate: Array, effort: Array) -> Array:
    """Ω of eq. 6: p_m (1 − q_m) ‖a_m‖₁, normalised; an anonymous sum minimises Σ Ω_m F_m."""
    probability, loss_rate, effort = check_clients(probability, loss_rate, effort)
    share = probability * (1 - loss_rate) * effort
    return share / share.sum()


def effective_rate(probability: Array, loss_rate: Array) -> float:
    """η_eff / η of eq. 5: Σ p_m (1 − q_m)."""
    probability, loss_rate, _ = check_clients(probability, loss_rate, np.ones_like(np.asarray(loss_rate, float)))
    return float(probability @ (1 - loss_rate))


def effective_steps(probability: Array, loss_rate: Array, effort: Array) -> float:
    """T_eff of eq. 6: Σ γ_m ‖a_m‖₁."""
    return float(link_weight(probability, loss_rate) @ np.asarray(effort, float))


def effective_step(probability: Array, loss_rate: Array, effort: Array) -> float:
    """η_eff T_eff / η: Σ p_m (1 − q_m) ‖a_m‖₁, the length of a round's step per unit of learning rate and gradient."""
    probability, loss_rate, effort = check_clients(probability, loss_rate, effort)
    return float(probability @ ((1 - loss_rate) * effort))


def chi_square(target: Array, actual: Array) -> float:
    """χ²(target ‖ actual) = Σ (target − actual)² / actual (eq. 76c); infinite if actual is zero where target is not."""
    target, actual = np.asarray(target, float), np.asarray(actual, float)
    check_values("target", target, (target >= 0) & np.isfinite(target), "numbers >= 0")
    check_values("actual", actual, (actual >= 0) & np.isfinite(actual), "numbers >= 0")
    if ((actual == 0) & (target > 0)).any():
        return float("inf")
    present = actual > 0
    return float(((target - actual)[present] ** 2 / actual[present]).sum())


def is_consistent(loss_rate: Array, effort: Array, tolerance: float = 1e-9) -> bool:
    """Eq. 13: sampling by weight is consistent if and only if (1 − q_m) ‖a_m‖₁ is the same for every client."""
    reach = (1 - np.asarray(loss_rate, float)) * np.asarray(effort, float)
    return bool(np.ptp(reach) <= tolerance * abs(reach).max())


def gradient_bound(
    weight: Array, probability: Array, loss_rate: Array, effort: Array, kappa: float, sigma: float = 0.0
) -> float:
    """Eq. 11: in the limit, the mean squared gradient of the true objective is at most χ²(ω ‖ Ω) κ².

    With ``sigma`` eq. 12, χ² κ² + σ²: the same for its stochastic gradient, of variance Σ ω_m² σ_m² ≤ σ².
    """
    return chi_square(weight, surrogate_weight(probability, loss_rate, effort)) * kappa**2 + sigma**2


def local_reach(curvature: Array, steps: int, lr: float, mu: float = 0.0) -> Array:
    """K_m of eq. 32: u_m = K_m H_m (x_m* − x) after T steps of (proximal) gradient descent on a quadratic, exactly."""
    H = np.asarray(curvature, float)
    eye = np.eye(len(H))
    return (eye - np.linalg.matrix_power(eye - lr * (mu * eye + H), steps)) @ np.linalg.inv(H + mu * eye)


def fixed_point(
    coefficient: Array, curvature: Sequence[Array], optimum: Array, steps: Sequence[int], lr: float, mu: float = 0.0
) -> Array:
    """The fixed point of a method on quadratics F_m = ½ (x − x_m*)' H_m (x − x_m*), at finite η (appendix C).

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


def surrogate_descent(
    gradient_norm: float,
    probability: Array,
    loss_rate: Array,
    effort: Array,
    lr: float,
    smoothness: float,
    kappa: float,
    beta: float = 1.0,
    sigma: float = 0.0,
) -> float:
    """Lemma 1 (eq. 8): E F̃(X_r) − F̃(X_{r−1}) ≤ s [(β² b − ½) ‖∇F̃‖² + b κ²] + noise, ∇F̃ at X_{r−1}.

    ``gradient_norm`` is ‖∇F̃‖. For the noise and for what differs from the printed lemma see the module.
    """
    step, b, error = _round_terms(probability, loss_rate, effort, lr, smoothness, kappa, sigma)
    return step * ((beta**2 * b - 0.5) * gradient_norm**2 + error)


def true_gradient_bound(surrogate_norm: float, chi_square: float, kappa: float, beta: float = 1.0) -> float:
    """Lemma 2 (eq. 9): ‖∇F‖ ≤ (β √χ² + 1) ‖∇F̃‖ + κ √χ², at any point, with χ² = χ²(ω ‖ Ω)."""
    return (beta * math.sqrt(chi_square) + 1) * surrogate_norm + kappa * math.sqrt(chi_square)


def surrogate_error_bound(
    gap: float,
    rounds: int,
    probability: Array,
    loss_rate: Array,
    effort: Array,
    lr: float,
    smoothness: float,
    kappa: float,
    beta: float = 1.0,
    sigma: float = 0.0,
) -> float:
    """ε_opt of Theorem 1 (eq. 10): a bound of (1/R) Σ E ‖∇F̃(X_{r−1})‖² after R rounds, if β² b ≤ 1/4.

    4 gap/(s R) + 4 b κ² + (2 η L A²/τ_eff + 2 h (1 + 2 z)) σ², gap = F̃(X_0) − F̃*; O(1/√R) for η ∝ 1/√R.
    """
    step, b, error = _round_terms(probability, loss_rate, effort, lr, smoothness, kappa, sigma)
    _check_step(beta**2 * b)
    return 4 * gap / (step * rounds) + 4 * error


def true_error_bound(surrogate_error: float, chi_square: float, kappa: float, beta: float = 1.0) -> float:
    """Theorem 2 after finitely many rounds (from eq. 81): (1/R) Σ E ‖∇F‖² ≤ (√ε + √(χ² (β² ε + κ²)))².

    ε = ``surrogate_error`` bounds the same mean for ∇F̃, see ``surrogate_error_bound``; ε → 0 gives eq. 11, χ² κ².
    """
    return (math.sqrt(surrogate_error) + math.sqrt(chi_square * (beta**2 * surrogate_error + kappa**2))) ** 2


def least_distance(gradient_norm: float, smoothness: float) -> float:
    """Corollary 2.1: ‖X̃* − X*‖ ≥ ‖∇F(X̃*)‖/L, where ‖∇F(X̃*)‖ is at most √χ² κ and may be zero."""
    return gradient_norm / smoothness


def acs_error_bound(
    gap: float,
    weight: Array,
    loss_rate: Array,
    effort: Array,
    lr: float,
    smoothness: float,
    kappa: float,
    beta: float = 1.0,
    sigma: float = 0.0,
) -> float:
    """Theorem 3 (eq. 17): a bound of (1/R) Σ E ‖∇F(X_{r−1})‖² for FedACS; ``loss_rate`` and ``effort`` are (R, M).

    4/(R min s_r) [gap + Σ s_r (b_r κ² + noise_r)], gap = F(X_0) − F*, if β² b_r ≤ 1/4 in every round. In a static world
    this is Theorem 1 for FedACS's law.
    """
    loss_rate, effort = np.atleast_2d(loss_rate), np.atleast_2d(effort)
    steps, lost = [], gap
    for q, a in zip(loss_rate, effort, strict=True):
        step, b, error = _round_terms(acs_probability(weight, q, a), q, a, lr, smoothness, kappa, sigma)
        _check_step(beta**2 * b)
        steps.append(step)
        lost += step * error
    return 4 * lost / (len(steps) * min(steps))


def _round_terms(
    probability: Array, loss_rate: Array, effort: Array, lr: float, smoothness: float, kappa: float, sigma: float
) -> tuple[float, float, float]:
    """Return s, b, and the part of a round's bound that the gradient does not shrink, per unit of s."""
    step, longest = lr * effective_step(probability, loss_rate, effort), float(np.max(effort))
    z = lr * smoothness * longest
    if 2 * z**2 >= 1:
        raise ValueError(f"η L max ‖a‖₁ must be below 0.707. It is {z:.3g}: the learning rate is too large.")
    h = z**2 / (1 - 2 * z**2)
    b = h + z * (1 + 2 * h)
    noise = h / 2 * (1 + 2 * z) + lr**2 * effective_rate(probability, loss_rate) * smoothness * longest**2 / (2 * step)
    return step, b, b * kappa**2 + noise * sigma**2


def _check_step(b: float) -> None:
    if b > 0.25:
        raise ValueError(f"β² b must be at most 1/4. It is {b:.3g}: the learning rate is too large.")
