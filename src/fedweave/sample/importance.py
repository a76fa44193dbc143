"""Optimal sampling (Chen, Horváth, Richtárik): prefer clients with large updates."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.core.vectors import lengths
from fedweave.sample.fixed import draw_with_replacement, inclusion_probability, mean_count

SMALLEST = 1e-12  # of the mean norm: with p = 0 the weight 1/p would not exist


@settings
class Optimal(Sampler):
    """``per_round`` draws with replacement, p_m ∝ ω_m ‖u_m‖ (the OS baseline of FedACS, with InverseProbability).

    ``form``: "multinomial" is FedACS eq. 20. "poisson" is the original: independent draws with probabilities π that sum
    to ``per_round`` and minimise the variance, π_m = min(1, ω_m ‖u_m‖/c). E[count] = π, so the same aggregator fits.
    ``norms``: "last" uses the norm of each client's last update, and their mean for clients without one. "oracle" lets
    every client train first, which costs N trainings a round and is impossible on a real server.
    """

    per_round: PositiveInt
    norms: Literal["last", "oracle"] = "last"
    form: Literal["multinomial", "poisson"] = "multinomial"

    def oracle(self) -> bool:
        return self.norms == "oracle"

    def cohort_size(self) -> int | None:
        return self.per_round if self.form == "multinomial" else None

    def init(self, population: Population) -> State:
        return {"norm": np.full(population.size, np.nan)} if self.norms == "last" else {}

    def law(self, state: State, view: View) -> Array:
        p = view.population
        if self.norms == "oracle":
            norm = lengths(view.probes.updates(np.arange(p.size)))
        else:
            norm = fill_unknown(state["norm"])
        score = p.weight * np.maximum(norm, SMALLEST * max(norm.mean(), 1e-30)) * p.available
        return (mean_count if self.form == "multinomial" else inclusion_probability)(score, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        law = self.law(state, view)
        if self.form == "multinomial":
            return draw_with_replacement(law, self.per_round, rng)
        ids = np.flatnonzero(rng.random(law.size) < law)
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=law[ids])

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        if self.norms == "oracle":
            return state
        return {"norm": update_norms(state["norm"], cohort, replies)}


def fill_unknown(norm: Array) -> Array:
    """Return each client's last norm (N,), with their mean for clients without one."""
    seen = np.isfinite(norm)
    return np.where(seen, norm, norm[seen].mean() if seen.any() else 1.0)


def update_norms(norm: Array, cohort: Cohort, replies: Replies) -> Array:
    """Return the last norms (N,) after a round."""
    after, ok = norm.copy(), replies.received
    after[cohort.ids[ok]] = lengths(replies.updates)[ok]
    return after
