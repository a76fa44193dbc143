"""FedACS's Theorems 1 to 3 on quadratics: the gradient that remains, measured and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedweave import methods, theory
from fedweave.local.quadratic import Quadratics
from fedweave.papers.common.bounds import (
    MeasuredAgainstBound,
    initial_gap,
    models_on,
    population_of,
    spread,
    squared_gradients,
)

DRAWS = 2


def measure_bound(
    method: Literal["fedavg", "fedacs"] = "fedavg",
    seeds: Sequence[int] = range(3),
    rounds: Sequence[int] = (100, 400, 1600),
) -> MeasuredAgainstBound:
    """Mean squared gradient of the true objective over R rounds, η ∝ 1/√R: FedAvg's settles at χ² κ², FedACS's at 0.

    Twenty clients as in the paper's example of a tight bound (G.3): half with the optimum 1, two local steps and a
    loss rate of 0.3, half with the optimum 3, ten steps and no losses; runs start at 0, so that every method has a way
    to go. The bound is Theorem 2 with Theorem 1's error
    for this R; for FedACS χ² = 0, and the bound is Theorem 3's.
    """
    problem = Quadratics(np.repeat([[1.0], [3.0]], 10, axis=0))
    weight, steps, lost = np.full(20, 1 / 20), np.repeat([2, 10], 10), np.repeat([0.3, 0.0], 10)
    clients = population_of(weight, steps, lost)
    p = weight if method == "fedavg" else theory.acs_probability(weight, lost, steps)
    omega = theory.surrogate_weight(p, lost, steps)
    chi, kappa = theory.chi_square(weight, omega), np.sqrt(spread(problem, omega))
    gap = initial_gap(problem, omega)
    maker = methods.fedavg_is if method == "fedavg" else methods.fedacs
    measured, bound = np.empty((len(seeds), len(rounds))), np.empty(len(rounds))
    for i, R in enumerate(rounds):
        lr = 0.018 * np.sqrt(rounds[0] / R)
        error = theory.surrogate_error_bound(gap, R, p, lost, steps, lr, 1.0, kappa)
        bound[i] = theory.true_error_bound(error, chi, kappa)
        for row, seed in enumerate(seeds):
            path = models_on(maker(DRAWS), problem, clients, lr, R, seed)
            measured[row, i] = squared_gradients(problem, weight, path).mean()
    return MeasuredAgainstBound(
        "rounds R (learning rate ∝ 1/√R)",
        "mean ‖∇F‖² over R rounds",
        np.array(rounds),
        measured,
        bound,
        f"{method}: Theorems 1 and 2 of FedACS, limit χ² κ² = {chi * kappa**2:.3f}; 20 clients, {DRAWS} draws.",
    )
