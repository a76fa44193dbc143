"""Samplers with a fixed law: everyone, uniform, by data size, by given probabilities."""

from __future__ import annotations

import math

import numpy as np
from pydantic import PositiveInt

from fedweave.records import Array, Cohort, Population, State, View
from fedweave.roles import Sampler
from fedweave.settings import BadInput, settings


def draw_with_replacement(probability: Array, draws: int, rng: np.random.Generator) -> Cohort:
    """Draw ``draws`` times from ``probability`` (N,), which need not be normalised: E[count] = K·p."""
    cumulative = np.cumsum(probability)
    if not cumulative.size or cumulative[-1] == 0:
        return nobody()
    where = np.searchsorted(cumulative, rng.random(draws) * cumulative[-1], side="right")
    ids, count = np.unique(where, return_counts=True)
    return Cohort(ids, count, draws * probability[ids] / cumulative[-1])


def nobody() -> Cohort:
    """Return the empty cohort."""
    return Cohort(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


@settings
class Everyone(Sampler):
    """Full participation of whoever is available."""

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        ids = np.flatnonzero(view.population.available)
        return Cohort(ids, np.ones(ids.size, np.int64), np.ones(ids.size))


@settings
class Uniform(Sampler):
    """``per_round`` distinct clients, all equally likely (all who are available, if fewer): E[count] = K/N."""

    per_round: PositiveInt

    def init(self, population: Population) -> State:
        if self.per_round > population.size:
            raise BadInput(f"{self} asks for more clients than there are: {population.size}. Lower per_round.")
        return {}

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        there = np.flatnonzero(view.population.available)
        if not there.size:
            return nobody()
        k = min(self.per_round, there.size)
        ids = np.sort(rng.choice(there, k, replace=False))
        return Cohort(ids, np.ones(k, np.int64), np.full(k, k / there.size))


@settings
class Weighted(Sampler):
    """``per_round`` draws with replacement, p = ω: by data size under the default weights (MD sampling)."""

    per_round: PositiveInt

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        there = view.population
        return draw_with_replacement(there.weight * there.available, self.per_round, rng)


@settings
class Fixed(Sampler):
    """``per_round`` draws with replacement from given probabilities, one per client in client order."""

    probability: tuple[float, ...]
    per_round: PositiveInt

    def __post_init__(self) -> None:
        total = math.fsum(self.probability)
        if not self.probability or min(self.probability) < 0 or not abs(total - 1) < 1e-6:
            raise ValueError(
                f"The 'probability' parameter of Fixed must be non-negative and sum to 1. The sum is {total!r}."
            )

    def init(self, population: Population) -> State:
        if len(self.probability) != population.size:
            raise BadInput(f"Fixed has {len(self.probability)} probabilities, but there are {population.size} clients.")
        return {}

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        there = view.population
        return draw_with_replacement(np.asarray(self.probability) * there.available, self.per_round, rng)
