"""FedAWARE: the diversity of the clients' gradients under weights λ and λ̃, local drift, and convergence."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array
from fedweave.theory.checks import check_simplex, check_values
from fedweave.theory.fedacs import chi_square


def gradient_diversity(gradients: Array, weight: Array) -> float:
    """FedAWARE eq. 3: D = √(Σ λ_i ‖g_i‖² / ‖Σ λ_i g_i‖²) of the rows g_i, at least 1; infinite where they cancel."""
    return surrogate_diversity(gradients, weight, weight)


def surrogate_diversity(gradients: Array, weight: Array, surrogate: Array) -> float:
    """FedAWARE eq. 6: D̃ = √(Σ λ_i ‖g_i‖² / ‖Σ λ̃_i g_i‖²), λ the objective's weights and λ̃ those of the step.

    The paper says D̃ ≥ 1. That holds where Σ λ̃ g is no longer than Σ λ g, as for the λ̃ that FedAWARE chooses (then D̃
    is even at least D), but not for every λ̃. The diversity of zero gradients is NaN.
    """
    g = np.asarray(gradients)
    g = g if g.dtype.kind == "f" else g.astype(float)
    if g.ndim != 2 or not g.size:
        raise ValueError(f"gradients must be a matrix, one row per client. Got shape {g.shape}.")
    if not np.isfinite(g).all():
        raise ValueError(f"gradients must be finite. Client {int(np.argwhere(~np.isfinite(g))[0][0])}'s is not.")
    weight, surrogate = (check_simplex(name, w, len(g)) for name, w in (("weight", weight), ("surrogate", surrogate)))
    squares = np.array([float(row @ row) for row in g])  # row by row, to avoid a second matrix
    step = surrogate.astype(g.dtype) @ g
    return diversity_ratio(float(weight @ squares), float(step @ step))


def diversity_ratio(mean_square: float, square_of_mean: float) -> float:
    """√(Σ λ_i ‖g_i‖² / ‖Σ λ̃_i g_i‖²) from its two parts."""
    if square_of_mean > 0:
        return float(np.sqrt(mean_square / square_of_mean))
    return float("inf") if mean_square > 0 else float("nan")


def diversity_bound(gradient_norm: float, dissimilarity: float) -> float:
    """FedAWARE, Corollary 3.1: D ≤ √(1 + σ_g²/‖∇f‖²), σ_g² = ``dissimilarity`` ≥ Σ λ_i ‖∇f_i − ∇f‖²; equal if exact."""
    return float(np.sqrt(1 + dissimilarity / gradient_norm**2)) if gradient_norm > 0 else float("inf")


def heterogeneity_term(weight: Array, steps: Array, lr: float, dissimilarity: Array) -> float:
    """Φ_Hetero of FedAWARE eq. 5: 30 η Σ λ_i (K_i − K_min) ζ_i, ζ_i = ‖∇f_i − ∇f‖². (The paper forgets λ_i.)"""
    K = np.asarray(steps, float)
    return float(30 * lr * np.asarray(weight, float) @ ((K - K.min()) * np.asarray(dissimilarity, float)))


def local_drift_bound(
    weight: Array,
    steps: Array,
    lr: float,
    smoothness: float,
    dissimilarity: Array,
    gradient_norm: float,
    sigma: float = 0.0,
) -> float:
    """FedAWARE eqs 4 and 5: Σ λ_i E ‖x_i^k − x‖² ≤ 5 η (σ² + 6 K_min σ_g² + 6 K̃ ‖∇f‖²) + Φ_Hetero for all k ≤ K_i.

    σ_g² = Σ λ_i ζ_i, K̃ = Σ λ_i K_i, and Φ_Hetero = 0 for equal steps, eq. 4. (Eq. 5 prints K_min², larger than need
    be.) The paper asks for η ≤ 1/K_i only. Lemma A.1 needs η ≤ 1/(L √(6 (K_i − 1)(2 K_i − 1))) as well: for f = L x²/2
    with L = 100, K = 2 and η = 1/2 the drift is 2400² x², the printed bound 3·10⁵ x².
    """
    K, weight, zeta = (np.asarray(a, float) for a in (steps, weight, dissimilarity))
    limit = np.minimum(1 / K, 1 / (smoothness * np.sqrt(np.maximum(6 * (K - 1) * (2 * K - 1), 1e-300))))
    check_values("lr", np.full(K.size, lr), lr <= limit * (1 + 1e-9), "<= 1/K and 1/(L √(6 (K − 1)(2 K − 1)))")
    even = sigma**2 + 6 * K.min() * (weight @ zeta) + 6 * (weight @ K) * gradient_norm**2
    return float(5 * lr * even) + heterogeneity_term(weight, steps, lr, zeta)


def update_error_bound(steps: int, lr: float, smoothness: float, drift: float, sigma: float = 0.0) -> float:
    """FedAWARE eq. 17: E ‖g_i − η K ∇f_i(x)‖² ≤ (η K L √drift + η √K σ)², g_i the update of K steps.

    ``drift`` bounds E ‖x^k − x‖² for all k < K. (The printed bound lacks a factor of K, drops the noise, and takes the
    last drift for the largest.)
    """
    return (lr * steps * smoothness * np.sqrt(drift) + lr * np.sqrt(steps) * sigma) ** 2


def momentum_error_bound(
    previous: float, beta: float, unit: float, smoothness: float, movement: float, update_error: float
) -> float:
    """FedAWARE, Lemma 4.1 for one round: how far momenta are from the gradients, E ‖m_i^t − c_i ∇f_i(x^t)‖².

    (1 − β/2) previous + (1 − β)(2 − β)/β c² L² E ‖x^t − x^{t−1}‖² + β update_error, with β = (1 − α) p the weight of
    news, p the probability to take part and c_i = η K_i = ``unit``; ``movement`` is E ‖x^t − x^{t−1}‖².

    The printed lemma compares m_i with ∇f_i, though m_i is an average of updates and c_i times as long, and omits the
    movement. Counterexample: everybody takes part with α = 0 and one step, m_i = η ∇f_i: the left side is
    (1 − η)² ‖∇f_i‖², the right side L² η² ‖∇f_i‖².
    """
    stale = (1 - beta) * (2 - beta) / beta * (unit * smoothness) ** 2 * movement
    return (1 - beta / 2) * previous + stale + beta * update_error


def aware_bound(
    gap: float,
    rounds: int,
    weight: Array,
    unit: Array,
    lr: float,
    smoothness: float,
    beta: float = 1.0,
    update_error: float = 0.0,
    start_error: float = 0.0,
) -> float:
    """FedAWARE, Theorem 4.1 corrected: a bound of (1/T) Σ E ‖d^t‖², the squared directions of Algorithm 1.

    [4 c gap/(η T) + 8 start/(β T) + 8 R]/(1 − 4 μ) with μ = 2 (1 − β)(2 − β)/β² (c_max L η)² < 1/4, η ≤ 1/(c L) the
    server's learning rate and 1/c = Σ λ_i/c_i, c_i = ``unit``; R bounds the ``update_error_bound``, ``start_error`` is
    the error of the first momenta. Half of the first term suffices where momenta are exact (R = start = 0, β = 1).
    Proof: the shortest vector of the hull has ⟨d, m_i⟩ ≥ ‖d‖² for all i, so a step along it decreases every f_i by
    ‖d‖²/c_i, up to errors. For exact momenta of equal units ‖d‖ = c √(Σ λ ‖∇f_i‖²)/D̃, so it is D̃ that grows as d
    vanishes.

    The printed theorem bounds ‖∇f‖² and is false or void. f_{1,2} = (x ∓ 1)²/2 with λ = 1/2 at x = 0.1: λ̃ = (.55, .45)
    makes d = 0 and D̃ = ∞, ρ = .84 > 0, and the right side vanishes with T, while x stays and ‖∇f‖² = .01. Its proof
    assumes ‖∇f‖ ≤ ‖∇f̃‖, of which the choice of λ̃ makes the opposite true; and ρ < 0 unless λ̃ is close to λ.
    """
    weight, c = check_simplex("weight", weight, np.size(unit)), np.asarray(unit, float)
    mean = 1 / float(weight @ (1 / c))
    stale = 8 * (1 - beta) * (2 - beta) / beta**2 * (float(c.max()) * smoothness * lr) ** 2
    if lr * mean * smoothness > 1 + 1e-9 or stale >= 1:
        raise ValueError(
            f"lr={lr!r} is too large: η c L = {lr * mean * smoothness:.3g} <= 1 and 4 μ = {stale:.3g} < 1."
        )
    exact = beta == 1 and not update_error and not start_error
    first = (2 if exact else 4) * mean * gap / (lr * rounds)
    return (first + 8 * start_error / (beta * rounds) + 8 * update_error) / (1 - stale)


def surrogate_gradient_bound(weight: Array, surrogate: Array, gradient_norm: float, dissimilarity: float) -> float:
    """FedAWARE, Theorem 4.2: ‖∇f̃‖² ≤ 2 χ² σ_g² + 2 (1 + χ²) ‖∇f‖² at any point, and so in the mean over rounds.

    χ² = Σ (λ̃_i − λ_i)²/λ_i. The paper has N + Σ λ̃²/λ² − 2 Σ λ̃/λ = Σ (λ̃_i − λ_i)²/λ_i², which is larger, and gets
    there by taking weights out of the norm of a sum, which is no inequality: Σ λ g = 0 does not make Σ λ̃ g zero.
    """
    chi = chi_square(surrogate, weight)
    return 2 * chi * dissimilarity + 2 * (1 + chi) * gradient_norm**2
