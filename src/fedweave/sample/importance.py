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

    ``norms``: "last" uses the norm each client sent last, and the mean of those for clients never heard from. "oracle"
    has everybody train first, which costs N trainings a round and no server could do.
    """

    per_round: PositiveInt
    norms: Literal["last", "oracle"] = "last"

    def init(self, population: Population) -> State:
        return {"norm": np.full(population.size, np.nan)} if self.norms == "last" else {}

    def law(self, state: State, view: View) -> Array:
        p = view.population
        if self.norms == "oracle":
            norm = np.linalg.norm(view.rehearse(np.arange(p.size)), axis=1)
        else:
            seen = np.isfinite(state["norm"])
            norm = np.where(seen, state["norm"], state["norm"][seen].mean() if seen.any() else 1.0)
        return mean_count(p.weight * np.maximum(norm, SMALLEST * max(norm.mean(), 1e-30)) * p.available, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        if self.norms == "oracle":
            return state
        norm, ok = state["norm"].copy(), replies.received
        norm[cohort.ids[ok]] = np.linalg.norm(replies.updates[ok], axis=1)
        return {"norm": norm}
