"""Samplers with a fixed law: everyone, uniform, by data size, by given probabilities."""

from __future__ import annotations

import math

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Array, Cohort, Population, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import BadInput, settings


def mean_count(score: Array, draws: int) -> Array:
    """Return E[count] = K·p of ``draws`` draws with replacement, p ∝ ``score``; all zero if all scores are."""
    total = float(score.sum())
    return score * (draws / total) if total > 0 else score


def draw_with_replacement(law: Array, draws: int, rng: np.random.Generator) -> Cohort:
    """Draw ``draws`` times with replacement so that E[count] is ``law`` (N,)."""
    cumulative = law.cumsum()
    if not cumulative.size or cumulative[-1] == 0:
        return empty_cohort()
    last = cumulative.searchsorted(cumulative[-1])  # the last client with p > 0, in case rounding exceeds the sum
    where = np.minimum(cumulative.searchsorted(rng.random(draws) * cumulative[-1], side="right"), last)
    where.sort()
    return counted(where, law)


def draw_on_line(ids: Array, length: Array, law: Array, draws: int, rng: np.random.Generator) -> Cohort:
    """Draw one point in each of ``draws`` equal cells of a line on which clients ``ids`` (s,) have these pieces (s,).

    A client may have several pieces. With pieces of ``law`` in total, E[count] is ``law`` (N,).
    """
    if not ids.size:
        return empty_cohort()
    ends = length.cumsum()
    points = (np.arange(draws) + rng.random(draws)) * (ends[-1] / draws)
    return counted(np.sort(ids[np.minimum(ends.searchsorted(points, side="right"), ids.size - 1)]), law)


def counted(drawn: Array, law: Array) -> Cohort:
    """Return the cohort of these draws, clients in ascending order, each as often as it was drawn."""
    new = np.ones(drawn.size + 1, bool)  # whether a client's run of draws begins here; the extra entry ends the last
    np.not_equal(drawn[1:], drawn[:-1], out=new[1:-1])
    starts = new.nonzero()[0]
    ids = drawn[starts[:-1]]
    return Cohort(ids=ids, count=starts[1:] - starts[:-1], expected=law[ids])


def inclusion_probability(score: Array, total: int) -> Array:
    """Return π_m = min(1, score_m/c) with Σ π = ``total``, or all 1 where fewer clients have a positive score."""
    ascending = np.sort(score[score > 0])
    if ascending.size <= total:
        return (score > 0).astype(float)
    # With the l smallest below 1 the others take M − l of the total: c = Σ_l / (total − (M − l)), for the largest l
    # that keeps the l-th at most 1.
    sums, left = ascending.cumsum(), total - np.arange(ascending.size - 1, -1, -1)
    level = np.divide(sums, left, out=np.full(sums.size, np.inf), where=left > 0)
    fits = np.flatnonzero((left > 0) & (ascending <= level * (1 + 1e-12)))
    return np.minimum(score / level[fits[-1]], 1.0)


def draw_without_replacement(law: Array, rng: np.random.Generator) -> Cohort:
    """Draw distinct clients with the inclusion probabilities ``law`` (N,), at most 1 each; as many as they sum to.

    Systematic sampling in random order: the probabilities are laid end to end, and points one apart with a random
    offset hit each client with exactly its probability. (Drawing one after the other among the clients left, as
    ``rng.choice`` does, gives inclusion probabilities other than K·p, without a closed form.)
    """
    order = rng.permutation(law.size)
    ends = law[order].cumsum()
    k = round(float(ends[-1])) if ends.size else 0
    if not k:
        return empty_cohort()
    teeth = (rng.random() + np.arange(k)) * (ends[-1] / k)
    last = ends.searchsorted(ends[-1])  # the last client with a chance, in case rounding exceeds the sum
    ids = np.unique(order[np.minimum(ends.searchsorted(teeth, side="right"), last)])
    return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=law[ids])


def law_of(score: Array, draws: int, replacement: bool) -> Array:
    """Return E[count] ∝ ``score`` for draws with replacement; without replacement, capped at 1."""
    return mean_count(score, draws) if replacement else inclusion_probability(score, draws)


def draw_from(law: Array, draws: int, replacement: bool, rng: np.random.Generator) -> Cohort:
    """Draw a cohort from a law returned by ``law_of``."""
    return draw_with_replacement(law, draws, rng) if replacement else draw_without_replacement(law, rng)


def proportional(score: Array, mass: float, least: float) -> Array:
    """Return max(``least``, c·score) with c such that it sums to ``mass``; equal shares if all scores are zero.

    No probability vanishes: its weight 1/p would not exist, and the client could never be drawn again.
    """
    n, score = score.size, np.asarray(score, float)
    low, top = np.zeros(n, bool), float(score.max(initial=0.0))
    if top <= 0 or mass <= n * least * (1 + 1e-12):
        return np.full(n, mass / max(n, 1))
    share = score / top  # keeps sums of very large or small numbers finite
    while True:  # each turn lifts at least one client to the floor
        p = np.where(low, least, share * ((mass - least * low.sum()) / share[~low].sum()))
        lifted = low | (p < least)
        if lifted.sum() == low.sum():
            return p
        low = lifted


def empty_cohort() -> Cohort:
    """Return the empty cohort."""
    return Cohort(ids=np.empty(0, np.int64), count=np.empty(0, np.int64), expected=np.empty(0))


@settings
class Everyone(Sampler):
    """Full participation of all available clients."""

    def law(self, state: State, view: View) -> Array:
        return view.population.available.astype(float)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        ids = np.flatnonzero(view.population.available)
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=np.ones(ids.size))


@settings
class Uniform(Sampler):
    """``per_round`` distinct clients, all equally likely (all available ones if fewer): E[count] = K/N."""

    per_round: PositiveInt

    def init(self, population: Population) -> State:
        if self.per_round > population.size and not population.growing:
            way = "Lower per_round (--per-round), or with a buffered pacing its concurrency."
            raise BadInput(f"{self} asks for more clients than there are: {population.size}. {way}")
        return {}

    def law(self, state: State, view: View) -> Array:
        available = view.population.available
        return available * min(self.per_round / max(available.sum(), 1), 1.0)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        available = view.population.available.nonzero()[0]
        if not available.size:
            return empty_cohort()
        k = min(self.per_round, available.size)
        ids = rng.choice(available, k, replace=False)
        ids.sort()
        return Cohort(ids=ids, count=np.ones(k, np.int64), expected=np.full(k, k / available.size))


@settings
class Weighted(Sampler):
    """``per_round`` draws with replacement, p = ω: by data size under the default weights (MD sampling)."""

    per_round: PositiveInt

    def law(self, state: State, view: View) -> Array:
        return mean_count(view.population.weight * view.population.available, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)


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

    def law(self, state: State, view: View) -> Array:
        return mean_count(np.asarray(self.probability) * view.population.available, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)
