"""Aggregators that are one row of weights times the updates."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedweave.records import Array, Cohort, Replies, State, View
from fedweave.roles import Aggregator
from fedweave.settings import settings


def weigh(weights: Array, replies: Replies) -> Array:
    """Return Σ_i weights_i u_i over the received rows; nothing heard gives a zero direction."""
    return np.where(replies.received, weights, 0.0).astype(np.float32) @ replies.updates


@settings
class Mean(Aggregator):
    """Σ ω_i c_i u_i / Σ ω_i c_i over what was received: FedAvg's data-weighted mean of the heard."""

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = view.population.weight[cohort.ids] * cohort.count * replies.received
        return weigh(w / max(w.sum(), np.finfo(float).tiny), replies), state


@settings
class Anonymous(Aggregator):
    """(1/K) Σ c_i u_i over what was received, K the number of draws (FedACS eq. 18).

    Only the sum of what arrives is needed: neither identities nor how many arrived.
    """

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        return weigh(cohort.count / max(cohort.count.sum(), 1), replies), state


@settings
class InverseProbability(Aggregator):
    """Σ (ω_i c_i / E[c_i]) u_i over what was received: unbiased for every sampler with a known law.

    This one rule is FedACS eq. 19 under Uniform (E = K/N), eq. 20 under any draw with replacement (E = K p) and eq. 21
    under Everyone (E = 1). Eq. 19 prints the number *received* where eq. 24 has the number *sampled*: ``normalise``
    chooses. "sampled" needs no counting and keeps one surrogate objective for all rules; "received" undoes the
    shrinkage by lost links, exactly when all links are equally bad.
    """

    normalise: Literal["sampled", "received"] = "sampled"
    needs_law: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = view.population.weight[cohort.ids] * cohort.count / cohort.expected
        if self.normalise == "received":
            w = w * cohort.count.sum() / max(cohort.count[replies.received].sum(), 1)
        return weigh(w, replies), state
