"""Optimal sampling (Chen, Horváth, Richtárik): ask those whose updates are large."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.records import Array, Cohort, Population, Replies, State, View
from fedweave.roles import Sampler
from fedweave.sample.laws import draw_with_replacement, mean_count
from fedweave.settings import settings

SMALLEST = 1e-12  # of the mean norm: nobody's chance is zero, or its weight 1/p would not exist


@settings
class Optimal(Sampler):
    """``per_round`` draws with replacement, p_m ∝ ω_m ‖u_m‖ (the OS baseline of FedACS, with InverseProbability).

    ``form``: "multinomial" is FedACS eq. 20. "poisson" is the original: everyone decides alone, with chances π that sum
    to ``per_round`` and minimise the variance, π_m = min(1, ω_m ‖u_m‖/c). E[count] = π: the same aggregator fits.
    ``norms``: "last" uses the norm each client sent last, and the mean of those for clients never heard from. "oracle"
    has everybody train first, which costs N trainings a round and no server could do.
    """

    per_round: PositiveInt
    norms: Literal["last", "oracle"] = "last"
    form: Literal["multinomial", "poisson"] = "multinomial"

    def init(self, population: Population) -> State:
        return {"norm": np.full(population.size, np.nan)} if self.norms == "last" else {}

    def law(self, state: State, view: View) -> Array:
        p = view.population
        if self.norms == "oracle":
            norm = np.linalg.norm(view.rehearse(np.arange(p.size)), axis=1)
        else:
            seen = np.isfinite(state["norm"])
            norm = np.where(seen, state["norm"], state["norm"][seen].mean() if seen.any() else 1.0)
        score = p.weight * np.maximum(norm, SMALLEST * max(norm.mean(), 1e-30)) * p.available
        return (mean_count if self.form == "multinomial" else capped)(score, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        law = self.law_once(state, view)
        if self.form == "multinomial":
            return draw_with_replacement(law, self.per_round, rng)
        ids = np.flatnonzero(rng.random(law.size) < law)
        return Cohort(ids, np.ones(ids.size, np.int64), law[ids])

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        if self.norms == "oracle":
            return state
        norm, ok = state["norm"].copy(), replies.received
        norm[cohort.ids[ok]] = np.linalg.norm(replies.updates[ok], axis=1)
        return {"norm": norm}


def capped(score: Array, total: int) -> Array:
    """Return π_m = min(1, score_m/c) with c such that they sum to ``total``, or to all that have a score if fewer."""
    ascending = np.sort(score[score > 0])
    if ascending.size <= total:
        return (score > 0).astype(float)
    # With the l smallest below 1 the others take M − l of the total: c = Σ_l / (total − (M − l)), for the largest l
    # that keeps the l-th at most 1.
    sums, left = ascending.cumsum(), total - np.arange(ascending.size - 1, -1, -1)
    level = np.divide(sums, left, out=np.full(sums.size, np.inf), where=left > 0)
    fits = np.flatnonzero((left > 0) & (ascending <= level * (1 + 1e-12)))
    return np.minimum(score / level[fits[-1]], 1.0)
