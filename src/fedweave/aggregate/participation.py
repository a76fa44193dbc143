"""FedAU (Wang and Ji): weigh a client by how long it usually stays away, learned as it goes."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from fedweave.aggregate.linear import weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings


@settings
class AU(Aggregator):
    """Σ ω_i m_i u_i over what was received, m_i the mean of its past intervals between answers (1 before any).

    An interval is closed when the client is heard, or at ``cutoff`` rounds of silence. To be heard is to take part:
    drawn and delivered. With Bernoulli(p) participation the mean interval is (1 − (1 − p)^cutoff)/p, so ω m p → ω.
    """

    cutoff: PositiveInt = 50

    def init(self, population: Population, dim: int) -> State:
        return {name: np.zeros(population.size) for name in ("since", "closed", "mean")}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        interval = np.where(state["closed"] > 0, state["mean"], 1.0)
        direction = weigh(view.population.weight[cohort.ids] * interval[cohort.ids], replies)
        heard = np.zeros(view.population.size, bool)
        heard[cohort.ids[replies.received]] = True
        since = state["since"] + 1
        closes = heard | (since >= self.cutoff)
        closed = state["closed"] + closes
        mean = np.where(closes, state["mean"] + (since - state["mean"]) / np.maximum(closed, 1), state["mean"])
        return direction, {"since": np.where(closes, 0.0, since), "closed": closed, "mean": mean}

    def coefficients(self, view: View, law: Array) -> Array:
        """After the intervals are learned; clients that are never asked stay out."""
        return view.population.weight * (law > 0)

    def step_length(self, view: View, law: Array) -> float:
        """As the paper does, who finds the true one hard to compute: FedAvg's."""
        return float(view.population.weight @ (view.population.arrival_rate * view.effort))
