"""DELTA: the probabilities that minimise the variance of the update, or the bound Φ̃ of the surrogate; FedIS's bound.

Theorem 3.5 (eq. 9) bounds the gradient by (f_0 − f*)/(c η_g η K T) + Φ̃/c. That is false: its proof lets f̃_S(x_{t+1})
have the mean f(x_{t+1}), though x_{t+1} was made with the same cohort S, and so loses the update variance.
Counterexample: two clients with optima ±e and L = 1, one draw with p = 1/2, one step, no noise. E ‖∇f‖² settles at e²
η/(2 − η), of order η; Φ̃/c ≈ 20 η² e² is of order η², and smaller below η = 1/40. The same holds for eqs 14, 18 and 45
and for the rows of DELTA in table 1. What can be proved for DELTA's law, as for every other, is ``importance_bound``
with that law's update variance. Φ̃ remains what the law minimises.
"""

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
    steps: Array, lr: float, smoothness: float, cohort_size: int, server_lr: float = 1.0, crowding: float = 1.0
) -> tuple[Array, Array]:
    """DELTA, Corollary 3.7: α₁ = 20 K² L η and α₂ = 5 K L η + η_g/n. (Section 3.4 compares with the two exchanged.)

    ``crowding`` multiplies the terms with L η: 1 for eq. 11, m/n for eq. 10, see ``delta_bound``.
    """
    K, drift = np.asarray(steps, float), crowding * smoothness * lr
    return 20 * K**2 * drift, 5 * K * drift + server_lr / cohort_size


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
    replacement: bool = True,
) -> float:
    """Φ̃ of DELTA eq. 11, draws with replacement: (L η/2) Σ (ω_i²/p_i) (α₁ ζ_i² + α₂ σ_i²); the paper's ω is 1/m.

    Without ``replacement`` eq. 10, whose terms with L η are m/n times as large. It presumes inclusion probabilities n
    p_i, and then it is loose: (67) applies Jensen's inequality to all m clients where n are drawn, and eq. 11 holds as
    well.
    """
    crowding = 1.0 if replacement else np.size(probability) / cohort_size
    alphas = delta_alphas(steps, lr, smoothness, cohort_size, server_lr, crowding)
    squares = (np.asarray(weight, float) * delta_score(diversity, variance, *alphas)) ** 2
    p = np.asarray(probability, float)
    check_values("probability", p, np.isfinite(p) & ((p > 0) | (squares == 0)), "> 0 where the score is positive")
    return float(smoothness * lr / 2 * np.divide(squares, p, out=np.zeros(p.size), where=squares > 0).sum())


def importance_variance(
    update_variance: float,
    weight: Array,
    variance: Array,
    dissimilarity: float,
    steps: int,
    lr: float,
    smoothness: float,
    server_lr: float = 1.0,
) -> float:
    """Φ of DELTA eq. 4: (5/2) η² K L² (Σ ω σ² + 4 K σ_G²) + (L η_g η/2) Σ ω² σ² + (L η_g η/(2 K)) V.

    V = ``update_variance`` of the sums of local gradients, the function of that name for the law of the draws (the
    paper's Var/n); σ_G² = ``dissimilarity``: Σ ω_i ‖∇F_i‖² ≤ (A² + 1) ‖∇f‖² + σ_G². (Theorem 3.1 calls M what eq. 4
    calls M².) For K > 1 the middle term is divided by 1 − L K η_g η, because local gradients depend on earlier noise:
    eq. 33 drops that dependence.
    """
    w, own = np.asarray(weight, float), np.asarray(variance, float)
    reach = smoothness * steps * server_lr * lr
    if not 0 < reach < 1 or not 0 < lr * smoothness * steps <= 1 / 8:
        raise ValueError(f"lr must be at most 1/(8 L K), and η_g η below 1/(L K). Got {lr!r} and η_g = {server_lr!r}.")
    noise = float(w**2 @ own) / (1 - reach if steps > 1 else 1.0)
    drift = 5 / 2 * lr**2 * steps * smoothness**2 * (float(w @ own) + 4 * steps * dissimilarity)
    return drift + smoothness * server_lr * lr / 2 * (noise + update_variance / steps)


def importance_bound(
    gap: float,
    rounds: int,
    phi: float,
    steps: int,
    lr: float,
    smoothness: float,
    server_lr: float = 1.0,
    excess: float = 0.0,
) -> float:
    """DELTA, Theorem 3.1 (eq. 28): a bound of (1/T) Σ E ‖∇f(x_t)‖², for any unbiased draws with replacement.

    gap/(c η_g η K T) + Φ/c with c = 1/2 − 10 L² K² (A² + 1) η², gap = f(x_0) − f*, Φ = ``importance_variance``,
    averaged over rounds where the law changes, A² = ``excess``. The condition on the steps is η_g η ≤ 1/(K L), as (35)
    has it (the theorem forgets K), with η ≤ 1/(8 L K).
    """
    c = 0.5 - 10 * (smoothness * steps * lr) ** 2 * (excess + 1)
    if c <= 0:
        raise ValueError(
            f"10 L² K² (A² + 1) η² must be below 1/2. It is {0.5 - c:.3g}: the learning rate is too large."
        )
    return gap / (c * server_lr * lr * steps * rounds) + phi / c


def rounds_order(
    epsilon: float,
    steps: int,
    cohort_size: int,
    clients: int,
    variance: float,
    dissimilarity: float,
    diversity: float,
    change: float = 1.0,
    excess: float = 0.0,
) -> dict[str, float]:
    """DELTA, table 1: the order of the rounds until E ‖∇f‖² ≤ ε, of methods for non-convex objectives, all constants 1.

    σ_L² = ``variance``, σ_G² = ``dissimilarity``, ζ_G = ``diversity``, U = ``change``: how much a client's gradient
    grew since it was drawn. The rows are linear in the variances, as they are when η_g is tuned to them (η_g² ∝ K n
    gap/σ²); for η_g = √(K n), as in eqs 3 and 14, they enter squared. The rows of DELTA are the paper's claim and do
    not hold. Rows for strongly convex objectives, and those with constants of their own, are left out.
    """
    K, n, e = steps, cohort_size, epsilon
    sl, sg, zeta = variance, dissimilarity, diversity**2

    def order(leading: float, drift: float, participants: int = n) -> float:
        return leading / (participants * K * e**2) + drift / (K * e)

    far = sl + 6 * K * sg
    return {
        "sgd": sl / (clients * K * e**2) + 1 / e,
        "feddelta": order(sl, sl + 4 * K * zeta),
        "fedpracdelta": order(change**2 * sl, change**2 * (sl + 4 * K * zeta)),
        "fedis": order(sl + K * sg, sl + 4 * K * sg),
        "fedpracis": order(sl + K * change**2 * sg, sl + 4 * K * sg),
        "fedavg (Yang et al.)": order(sl + 4 * K * sg, far) + (K / n) ** (1 / 3) * far / e ** (2 / 3),
        "fedavg (Karimireddy et al.)": order(sl + K * (1 - n / clients) * sg, K * (excess + 1)) + (sg / e**3) ** 0.5,
        "fedavg (Yang et al.), everyone": order(sl, sl / 4 + K * sg, clients),
    }
