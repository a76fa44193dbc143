"""Practical importance sampling and practical DELTA: probabilities learned from the clients that took part.

Both start with equal shares. After a round those who were heard share what they had together anew, in proportion to a
score, and all others keep their p (eqs 15 and 16): Σ p stays 1, and who was never asked keeps its share. The paper lets
a p vanish with its score; then the client is never drawn again, and where it nearly vanishes its weight ω/(K p)
explodes. So every p has a floor, taken out of the shares of those who share anew.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.delta import Floor, bounded
from fedweave.sample.fixed import drawn, law_of, proportional
from fedweave.theory import delta_score

Start = Literal["equal", "weights"]


def begun(population: Population, start: Start, floor: float) -> State:
    """Return the probabilities before the first round: 1/N, or the weights ω."""
    score = np.ones(population.size) if start == "equal" else population.weight
    return {"probability": bounded(score, np.ones(population.size, bool), floor)}


def reassigned(state: State, ids: Array, score: Array, floor: float) -> State:
    """Return the probabilities after these clients shared theirs anew by score, at least ``floor``/N each."""
    good = np.isfinite(score)
    ids, score = ids[good], score[good]
    if ids.size < 2 or not score.any():  # one alone has nothing to share, and no score tells nothing
        return state
    p = state["probability"].copy()
    p[ids] = proportional(score, float(p[ids].sum()), floor / p.size)
    return {**state, "probability": p}


def mean_gradients(view: View, cohort: Cohort, replies: Replies) -> Array:
    """Return ĝ_i/K_i of the heard, the mean gradient along each one's way: −u_i/(η ‖a_i‖₁), exact for plain SGD.

    The paper's ζ has sums over K steps and its σ single batches. Means put both on one scale, whatever each one's K.
    """
    heard = replies.received
    reach = view.lr * view.effort[cohort.ids[heard]]
    with np.errstate(divide="ignore", invalid="ignore"):  # who took no step has no gradient: not finite, left out
        return replies.updates[heard, : view.layout.parameters] / -reach[:, None].astype(replies.updates.dtype)


@settings
class PracticalIS(Sampler):
    """``per_round`` draws by learned p: those heard share theirs in proportion to ω_i ‖ĝ_i‖ (FedPracIS, eq. 15).

    ĝ_i = −u_i/η is the sum of the local gradients. ``start``: p = 1/N as in the paper, or ω. ``floor``: no p is less
    than this share of 1/N, so no weight ω/(K p) is more than N ω/(K·floor). ``replacement`` as in ``IS``.
    """

    per_round: PositiveInt
    replacement: bool = True
    floor: Floor = 1e-3
    start: Start = "equal"

    def init(self, population: Population) -> State:
        return begun(population, self.start, self.floor)

    def law(self, state: State, view: View) -> Array:
        return law_of(state["probability"] * view.population.available, self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return drawn(self.law(state, view), self.per_round, self.replacement, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        heard = cohort.ids[replies.received]
        norm = np.linalg.norm(replies.updates[replies.received, : view.layout.parameters], axis=1)
        return reassigned(state, heard, view.population.weight[heard] * norm, self.floor)


@settings
class PracticalDelta(Sampler):
    """``per_round`` draws by learned p: those heard share theirs in proportion to ω_i √(α₁ ζ_i² + α₂ σ_i²) (eq. 16).

    ζ_i = ‖ĝ_i − mean of ĝ over the heard‖, with mean gradients ĝ (``mean_gradients``); σ_i² the variance of a client's
    stochastic gradients, which it measures while it trains. The paper's α is ½ for both. ``variant`` "code" is what the
    authors' code does instead, without σ: α₁ ζ_i + α₂ ‖ĝ_i‖. Other settings as in ``PracticalIS``.
    """

    per_round: PositiveInt
    alpha1: NonNegativeFloat = 0.5
    alpha2: NonNegativeFloat = 0.5
    variant: Literal["paper", "code"] = "paper"
    replacement: bool = True
    floor: Floor = 1e-3
    start: Start = "equal"

    def __post_init__(self) -> None:
        if not self.alpha1 and not self.alpha2:
            raise ValueError("PracticalDelta needs alpha1 or alpha2 > 0. Got alpha1=0.0 and alpha2=0.0.")

    def required_fields(self) -> tuple[str, ...]:
        return ("variance",) if self.variant == "paper" and self.alpha2 else ()

    def init(self, population: Population) -> State:
        return begun(population, self.start, self.floor)

    def law(self, state: State, view: View) -> Array:
        return law_of(state["probability"] * view.population.available, self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return drawn(self.law(state, view), self.per_round, self.replacement, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        heard, g = cohort.ids[replies.received], mean_gradients(view, cohort, replies)
        finite = np.isfinite(g).all(axis=1)
        heard, g = heard[finite], g[finite]
        if heard.size < 2:  # nobody to differ from
            return state
        zeta = np.linalg.norm(g - g.mean(0), axis=1)
        if self.variant == "code":
            score = self.alpha1 * zeta + self.alpha2 * np.linalg.norm(g, axis=1)
        else:
            score = delta_score(zeta, self._variance(replies)[finite], self.alpha1, self.alpha2)
        return reassigned(state, heard, view.population.weight[heard] * score, self.floor)

    def _variance(self, replies: Replies) -> Array:
        """Return σ² of those heard; an engine that did not measure what it was asked for must not pass for zero."""
        if replies.variance is not None:
            return replies.variance[replies.received]
        if self.required_fields():
            raise ValueError("PracticalDelta counts the variance of gradients, but this engine did not measure it.")
        return np.zeros(np.count_nonzero(replies.received))
