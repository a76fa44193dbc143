"""FedDD's Theorem 2, corrected, on quadratics: the gradient under dropout, measured and bounded."""

from __future__ import annotations

import numpy as np

from fedweave import theory
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.papers.common.bounds import (
    MeasuredAgainstBound,
    initial_gap,
    points_up_to,
    population_of,
    rounds_on,
    running_mean,
    spread,
    squared_gradients,
)
from fedweave.sample import Everyone
from fedweave.upload import DifferentialDropout

CLIENTS, KEEP, LR = 20, 0.6, 0.1


def measure_bound(refresh: int = 1, seeds: int = 3, rounds: int = 256) -> MeasuredAgainstBound:
    """Mean squared gradient over T rounds, twenty clients that send 60 % of their entries at random, one local step.

    The bound is the one for random masks; ε of a round is that of the entry which the fewest clients sent.
    """
    problem, weight = Quadratics(Quadratics.random(CLIENTS, 10).optimum + 1.0), np.full(CLIENTS, 1 / CLIENTS)
    upload = DifferentialDropout(KEEP, max_rate=1 - KEEP, choose="random", refresh=refresh)
    method, points = Method(Everyone(), upload=upload), points_up_to(rounds)
    measured, errors = np.empty((seeds, points.size)), np.zeros(rounds)
    for seed in range(seeds):
        path = np.empty((rounds, 10))
        for t, (x, happened) in enumerate(rounds_on(method, problem, population_of(weight, 1), LR, rounds, seed)):
            mask, path[t] = happened.replies.mask, x
            uploaders = np.full(10, CLIENTS) if mask is None else mask.sum(0)
            errors[t] = max(errors[t], theory.mask_error(uploaders, CLIENTS))
        measured[seed] = running_mean(squared_gradients(problem, weight, path), points)
    gap, sigma = initial_gap(problem, weight), np.sqrt(spread(problem, weight))
    bound = [theory.dropout_bound(gap, T, LR, 1.0, errors[:T], sigma, refresh, CLIENTS) for T in points.tolist()]
    return MeasuredAgainstBound(
        "rounds T",
        "mean ‖∇F‖² over T rounds",
        points,
        measured,
        np.array(bound),
        f"Theorem 2 of FedDD, corrected; {CLIENTS} clients, {KEEP:.0%} of the entries sent, h = {refresh}.",
    )
