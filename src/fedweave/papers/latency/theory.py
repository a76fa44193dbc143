"""The latency paper's Corollary 1 on quadratics: the gradient under selection probabilities, measured and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedweave import theory
from fedweave.aggregate import InverseProbability
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.papers.common.bounds import MeasuredAgainstBound, initial_gap, models_on, population_of, squared_gradients
from fedweave.sample import Fixed

CLIENTS, DRAWS, STEPS = 10, 5, 5


def measure_bound(seeds: int = 3, rounds: Sequence[int] = (16, 64, 256, 1024)) -> MeasuredAgainstBound:
    """Mean squared gradient over T rounds with γ = 1/(L I √T), draws uniform, data of uneven clients.

    G_i is the largest gradient of client i on the way: no domain is bounded here, and the proof needs no other points.
    """
    problem = Quadratics(Quadratics.random(CLIENTS, 10).optimum + 1.0)
    d, p = np.arange(1, CLIENTS + 1) / np.arange(1, CLIENTS + 1).sum(), np.full(CLIENTS, 1 / CLIENTS)
    method, clients = Method(Fixed(tuple(p), DRAWS), aggregator=InverseProbability()), population_of(d, STEPS)
    gap = initial_gap(problem, d)
    measured, bound = np.empty((seeds, len(rounds))), np.empty(len(rounds))
    for i, T in enumerate(rounds):
        lr, largest = 1 / (STEPS * np.sqrt(T)), np.zeros(CLIENTS)
        for seed in range(seeds):
            path = models_on(method, problem, clients, lr, T, seed)
            measured[seed, i] = squared_gradients(problem, d, path).mean()
            away = np.linalg.norm(path[:, None] - problem.optimum, axis=2)  # local steps only shorten it
            largest = np.maximum(largest, away.max(0))
        bound[i] = theory.selection_rate_bound(gap, T, p, d, largest, DRAWS, STEPS, 1.0)
    return MeasuredAgainstBound(
        "rounds T (learning rate 1/(L I √T))",
        "mean ‖∇f‖² over T rounds",
        np.array(rounds),
        measured,
        bound,
        f"Corollary 1 of the latency paper; {DRAWS} uniform draws of {CLIENTS} clients, {STEPS} local steps.",
    )
