"""FedAWARE: the diversity of the clients' gradients, under the objective's weights λ and under other weights λ̃."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array
from fedweave.theory.checks import check_simplex


def gradient_diversity(gradients: Array, weight: Array) -> float:
    """FedAWARE eq. 3: D = √(Σ λ_i ‖g_i‖² / ‖Σ λ_i g_i‖²) of the rows g_i, at least 1; infinite where they cancel."""
    return surrogate_diversity(gradients, weight, weight)


def surrogate_diversity(gradients: Array, weight: Array, surrogate: Array) -> float:
    """FedAWARE eq. 6: D̃ = √(Σ λ_i ‖g_i‖² / ‖Σ λ̃_i g_i‖²), λ the objective's weights and λ̃ those of the step.

    The paper says D̃ ≥ 1. That holds where Σ λ̃ g is no longer than Σ λ g, as for the λ̃ that FedAWARE chooses (then D̃ is
    even at least D), but not for every λ̃. The diversity of zero gradients is NaN.
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
