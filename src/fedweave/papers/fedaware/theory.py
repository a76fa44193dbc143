"""FedAWARE's Theorem 4.1, corrected, on quadratics: the length of the directions, measured and bounded."""

from __future__ import annotations

import numpy as np

from fedweave import theory
from fedweave.aggregate import Aware
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.papers.common.bounds import (
    MeasuredAgainstBound,
    initial_gap,
    points_up_to,
    population_of,
    rounds_on,
    running_mean,
)
from fedweave.sample import FirstEveryone, Uniform
from fedweave.server import Descent

CLIENTS, PER_ROUND, ALPHA, LR, SERVER_LR = 10, 5, 0.5, 0.01, 1.0


def measure_bound(seeds: int = 3, rounds: int = 512, first_seed: int = 0) -> MeasuredAgainstBound:
    """Mean squared length of FedAWARE's direction over T rounds, ten clients with 1 to 3 local steps, five per round.

    The optima lie around a point at distance 10 from the start: their hull has to be reached before d can vanish. The
    update error of the bound is the largest on the way; it is small, and the floor under the bound.
    """
    problem = Quadratics(Quadratics.random(CLIENTS, 10).optimum + np.sqrt(10.0))
    weight, steps = np.full(CLIENTS, 1 / CLIENTS), np.arange(CLIENTS) % 3 + 1
    sampler, aggregator = FirstEveryone(Uniform(PER_ROUND)), Aware(ALPHA, precision="float64")
    method = Method(sampler, aggregator=aggregator, server=Descent(SERVER_LR))
    points, clients = points_up_to(rounds), population_of(weight, steps)
    measured, miss, first = np.empty((seeds, points.size)), 0.0, 0.0
    for seed in range(seeds):
        lengths = np.empty(rounds)
        for t, (x, happened) in enumerate(rounds_on(method, problem, clients, LR, rounds, first_seed + seed)):
            lengths[t] = happened.direction @ happened.direction
            away = ((x - problem.optimum) ** 2).sum(1)
            errors = (1 - (1 - LR) ** steps - LR * steps) ** 2 * away
            miss, first = max(miss, errors.max()), errors.max() if t == 0 else first
        measured[seed] = running_mean(lengths, points)
    beta, gap = (1 - ALPHA) * PER_ROUND / CLIENTS, initial_gap(problem, weight)
    bound = [theory.aware_bound(gap, T, weight, LR * steps, SERVER_LR, 1.0, beta, miss, first) for T in points]
    return MeasuredAgainstBound(
        "rounds T",
        "mean ‖d‖² over T rounds",
        points,
        measured,
        np.array(bound),
        f"Theorem 4.1 of FedAWARE, corrected; {PER_ROUND} of {CLIENTS} clients, α = {ALPHA}, β = {beta}.",
    )
