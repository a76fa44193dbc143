"""FedACS: the objective minimised when links fail and compute differs, and its distance from the true objective.

Symbols: ω weights, p sampling probabilities, q loss rates, ‖a‖₁ effort (see ``Solver.effort``), η learning rate.
"""

from __future__ import annotations

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


def gradient_bound(weight: Array, probability: Array, loss_rate: Array, effort: Array, kappa: float) -> float:
    """Eq. 11: in the limit, the mean squared gradient of the true objective is at most χ²(ω ‖ Ω) κ²."""
    return chi_square(weight, surrogate_weight(probability, loss_rate, effort)) * kappa**2


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
