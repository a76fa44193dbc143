"""DELTA's Theorem 3.1 on quadratics: the gradient under importance sampling, or DELTA's law, measured and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedweave import theory
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Array
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.papers.common.bounds import (
    MeasuredAgainstBound,
    initial_gap,
    models_on,
    points_up_to,
    population_of,
    running_mean,
    spread,
    squared_gradients,
)
from fedweave.sample import IS, Delta

CLIENTS, DRAWS, STEPS, LR = 20, 4, 3, 0.02
Law = Literal["importance", "delta"]


def measure_bound(law: Law = "importance", seeds: Sequence[int] = range(3), rounds: int = 512) -> MeasuredAgainstBound:
    """Mean squared gradient over T rounds, for FedIS's or DELTA's law with an oracle, and a bound that holds for both.

    The update variance in Φ (eq. 4) is that of the law at every model on the way, averaged over rounds and seeds. The
    bound that the paper states for DELTA, with Φ̃, does not hold: see ``fedweave.theory.delta``.
    """
    problem, weight = Quadratics(Quadratics.random(CLIENTS, 10).optimum + 1.0), np.full(CLIENTS, 1 / CLIENTS)
    sampler = IS(DRAWS, floor=0.0) if law == "importance" else Delta(DRAWS, alpha2=0.0, floor=0.0)
    method, clients = Method(sampler, aggregator=InverseProbability()), population_of(weight, STEPS)
    points = points_up_to(rounds)
    measured, variance = np.empty((len(seeds), points.size)), np.zeros(points.size)
    for i, seed in enumerate(seeds):
        path = models_on(method, problem, clients, LR, rounds, seed)
        measured[i] = running_mean(squared_gradients(problem, weight, path), points)
        on_the_way = np.array([_update_variance(law, problem, weight, x) for x in path])
        variance += running_mean(on_the_way, points) / len(seeds)
    gap, apart, zero = initial_gap(problem, weight), spread(problem, weight), np.zeros(CLIENTS)
    phis = [theory.importance_variance(V, weight, zero, apart, STEPS, LR, 1.0) for V in variance]
    bound = [theory.importance_bound(gap, T, phi, STEPS, LR, 1.0) for T, phi in zip(points, phis, strict=True)]
    return MeasuredAgainstBound(
        "rounds T",
        "mean ‖∇f‖² over T rounds",
        points,
        measured,
        np.array(bound),
        f"Theorem 3.1 of DELTA, law: {law}; {DRAWS} draws of {CLIENTS} clients, {STEPS} local steps of {LR}.",
    )


def _update_variance(law: Law, problem: Quadratics, weight: Array, x: Array) -> float:
    """Return V of the sums of local gradients at a model."""
    sums = (1 - (1 - LR) ** STEPS) / LR * (x - problem.optimum)
    score = sums if law == "importance" else problem.optimum - problem.minimiser(weight)
    p = theory.importance_probability(weight, np.linalg.norm(score, axis=1))
    return theory.update_variance(p, weight, sums, DRAWS)
