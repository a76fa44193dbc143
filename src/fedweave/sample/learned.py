"""Practical importance sampling and practical DELTA: probabilities learned from the clients that took part.

Both start with equal probabilities. After a round the clients that answered redistribute their combined probability in
proportion to a score, and all others keep their p (eqs 15 and 16), so Σ p stays 1. In the paper p vanishes with its
score; then the client is never drawn again, and where p nearly vanishes the weight ω/(K p) explodes. So every p has a
floor, paid for by the clients that redistribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.core.vectors import lengths, row_blocks
from fedweave.sample.delta import Floor, probability_with_floor
from fedweave.sample.fixed import draw_from, law_of, proportional
from fedweave.theory import delta_score

Start = Literal["equal", "weights"]


def initial_state(population: Population, start: Start, floor: float) -> State:
    """Return the probabilities before the first round: 1/N, or the weights ω."""
    score = np.ones(population.size) if start == "equal" else population.weight
    return {"probability": probability_with_floor(score, np.ones(population.size, bool), floor)}


def redistribute(state: State, ids: Array, score: Array, floor: float) -> State:
    """Return the probabilities after these clients redistribute theirs by score, at least ``floor``/N each."""
    good = np.isfinite(score)
    ids, score = ids[good], score[good]
    if ids.size < 2 or not score.any():  # a single client keeps its share, and zero scores carry no information
        return state
    p = state["probability"].copy()
    p[ids] = proportional(score, float(p[ids].sum()), floor / p.size)
    return {**state, "probability": p}


Gradients = Literal["sum", "mean"]


def local_gradients(view: View, replies: Replies, kind: Gradients) -> Iterator[tuple[Array, Array]]:
    """Yield rows and the mean local gradient of each, −u_i/(η ‖a_i‖₁), or their sum, K_i times that.

    Both are exact for plain SGD. Of the received updates, a block at a time; those that are not finite are left out.
    """
    updates, lr = replies.updates[:, : view.layout.parameters], view.lr_of(replies)
    for some in row_blocks(updates):
        rows = np.arange(some.start, some.stop)[replies.received[some]]
        steps = replies.steps[rows]
        with np.errstate(divide="ignore", invalid="ignore"):  # no steps, no gradient
            reach = lr[rows] * view.effort_of(steps) / (1 if kind == "mean" else steps)
            g = updates[rows] / -reach[:, None].astype(updates.dtype)
        finite = np.isfinite(g).all(axis=1)
        yield rows[finite], g[finite]


@settings
class PracticalIS(Sampler):
    """``per_round`` draws by learned p: clients that answered share theirs in proportion to ω_i ‖ĝ_i‖ (eq. 15).

    FedPracIS. ĝ_i = −u_i/η is the sum of the local gradients. ``start``: p = 1/N as in the paper, or ω. ``floor``: the
    least p as a share of 1/N, so that no weight ω/(K p) exceeds N ω/(K·floor). ``replacement`` as in ``IS``.
    """

    per_round: PositiveInt
    replacement: bool = True
    floor: Floor = 1e-3
    start: Start = "equal"

    def init(self, population: Population) -> State:
        return initial_state(population, self.start, self.floor)

    def law(self, state: State, view: View) -> Array:
        return law_of(state["probability"] * view.population.available, self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_from(self.law(state, view), self.per_round, self.replacement, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        answered = cohort.ids[replies.received]
        norm = lengths(replies.updates[:, : view.layout.parameters])[replies.received]
        return redistribute(state, answered, view.population.weight[answered] * norm, self.floor)


@settings
class PracticalDelta(Sampler):
    """``per_round`` draws by learned p: clients that answered share theirs ∝ ω_i √(α₁ ζ_i² + α₂ σ_i²) (eq. 16).

    ζ_i is the distance of ĝ_i from the mean over all answers; σ_i² is the variance of a client's stochastic gradients,
    measured during training. The paper's α is ½ for both.
    ``gradients``: ĝ_i is the "sum" Σ_k g_{i,k} of the local gradients, as in the paper, while σ_i² is of one batch: so
    diversity decides, the more so the more steps there are. With "mean", ĝ_i/K_i, both are on one scale, and once
    clients agree σ decides. K_i times the mean is the sum exactly for plain SGD, else with the solver's own weights.
    ``variance``: the paper's σ is the spread over batches b of ĝ_i^b, with the hat of a sum: "batch" reads it as the
    gradient of one batch, "epochs" as that batch's gradients summed over the E passes that visit it, which is E times
    as long: E² σ².
    ``variant`` "code" follows the authors' code instead, without σ: α₁ ζ_i + α₂ ‖ĝ_i‖, by default of mean gradients.
    Other settings as in ``PracticalIS``.
    """

    per_round: PositiveInt
    alpha1: NonNegativeFloat = 0.5
    alpha2: NonNegativeFloat = 0.5
    variant: Literal["paper", "code"] = "paper"
    replacement: bool = True
    floor: Floor = 1e-3
    start: Start = "equal"
    gradients: Gradients | None = None  # None: "sum" for the paper, "mean" for the code
    variance: Literal["batch", "epochs"] = "batch"

    def __post_init__(self) -> None:
        if not self.alpha1 and not self.alpha2:
            raise ValueError("PracticalDelta needs alpha1 or alpha2 > 0. Got alpha1=0.0 and alpha2=0.0.")

    def required_fields(self) -> tuple[str, ...]:
        return ("variance",) if self.variant == "paper" and self.alpha2 else ()

    def init(self, population: Population) -> State:
        return initial_state(population, self.start, self.floor)

    def law(self, state: State, view: View) -> Array:
        return law_of(state["probability"] * view.population.available, self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_from(self.law(state, view), self.per_round, self.replacement, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        kind = self.gradients or ("mean" if self.variant == "code" else "sum")
        gradients = partial(local_gradients, view, replies, kind)
        rows, total = np.zeros(0, np.int64), 0.0
        for some, g in gradients():
            rows, total = np.append(rows, some), total + g.sum(0)
        if rows.size < 2:  # no other answer to differ from
            return state
        mean = total / rows.size
        zeta = np.concatenate([np.linalg.norm(g - mean, axis=1) for _, g in gradients()])
        if self.variant == "code":
            length = np.concatenate([np.linalg.norm(g, axis=1) for _, g in gradients()])
            score = self.alpha1 * zeta + self.alpha2 * length
        else:
            score = delta_score(zeta, self._variance(view, cohort, replies)[rows], self.alpha1, self.alpha2)
        answered = cohort.ids[rows]
        return redistribute(state, answered, view.population.weight[answered] * score, self.floor)

    def _variance(self, view: View, cohort: Cohort, replies: Replies) -> Array:
        """Return σ² of all answers; refuse an engine that did not measure it, which would count as zero."""
        if replies.variance is None:
            if self.required_fields():
                raise ValueError("PracticalDelta needs the variance of gradients, but this engine did not measure it.")
            return np.zeros(replies.received.size)
        if self.variance == "batch":
            return replies.variance
        batches = -(-view.population.samples[cohort.ids] // view.population.batch_size[cohort.ids])
        passes = np.maximum(replies.steps / batches, 1)  # a batch that was visited was visited once
        return passes**2 * replies.variance
