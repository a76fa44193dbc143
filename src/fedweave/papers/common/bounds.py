"""A paper's bound beside what the library measures on quadratics: the record, and the runs that fill it.

All clients have the curvature 1 (L = 1) and exact gradients, so that ∇F_m − ∇F is the same everywhere, and every
constant of a bound is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Population
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.method import Method
from fedweave.round import Round, first_state, run_round


class MeasuredAgainstBound(NamedTuple):
    """A measurement that a theorem bounds in the mean, over seeds, at the points of an axis."""

    x_label: str
    y_label: str
    x: Array  # (P,)
    measured: Array  # (S, P) one row per seed
    bound: Array  # (P,)
    note: str  # which theorem, which setting


def population_of(weight: Array, steps: Array | int, loss_rate: Array | float = 0.0) -> Population:
    """Return clients with these weights, local steps and links, which are always there and equally fast."""
    n, one = weight.size, np.ones(weight.size)
    return Population(
        weight=weight,
        samples=weight * n,
        steps=np.ones(n, int) * steps,
        batch_size=np.ones(n, int),
        loss_rate=one * loss_rate,
        latency=one,
        available=one > 0,
    )


def rounds_on(
    method: Method, problem: Quadratics, population: Population, lr: float, rounds: int, seed: int
) -> Iterator[tuple[Array, Round]]:
    """Yield the model before each round, from zero on, and what happens in the round."""
    dim = problem.optimum.shape[1]
    engine = Simulator(QuadraticTrainer(problem, method.solver, seed, population.weight), method.upload)
    state = first_state(method, np.zeros(dim), population, dim)
    for _ in range(rounds):
        x = state.x
        state, happened = run_round(method, state, population, engine, lr, seed)
        yield x, happened


def models_on(method: Method, problem: Quadratics, population: Population, lr: float, rounds: int, seed: int) -> Array:
    """Return the models (T, d) before each of the rounds."""
    return np.array([x for x, _ in rounds_on(method, problem, population, lr, rounds, seed)])


def initial_gap(problem: Quadratics, weight: Array) -> float:
    """Return F(0) − F* of F = Σ weight F_m, for unit curvature."""
    return float((problem.minimiser(weight) ** 2).sum()) / 2


def squared_gradients(problem: Quadratics, weight: Array, path: Array) -> Array:
    """Return ‖∇F‖² (T,) of F = Σ weight F_m at these models (T, d), for unit curvature."""
    return ((path - problem.minimiser(weight)) ** 2).sum(1)


def running_mean(values: Array, points: Array) -> Array:
    """Return the mean of the first T values for each T of the points."""
    return values.cumsum()[points - 1] / points


def spread(problem: Quadratics, weight: Array) -> float:
    """Return Σ weight ‖∇F_m − ∇F‖², for unit curvature."""
    return float(weight @ ((problem.optimum - problem.minimiser(weight)) ** 2).sum(1))


def points_up_to(rounds: int) -> Array:
    """Return 1, 2, 4, … and ``rounds``."""
    return np.unique(np.append(2 ** np.arange(int(np.log2(rounds)) + 1), rounds))
