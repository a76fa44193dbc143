"""FedAU (Wang and Ji): weigh a client by its mean interval between answers, learned during training."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from fedweave.aggregate.linear import weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings


@settings
class AU(Aggregator):
    """Σ ω_i m_i u_i over the received updates, m_i the mean of a client's past intervals between answers (1 at first).

    An interval ends when an answer is received, or after ``cutoff`` rounds without one. With Bernoulli(p) participation
    (drawn and received) the mean interval is (1 − (1 − p)^cutoff)/p, so ω m p → ω.
    """

    cutoff: PositiveInt = 50

    def init(self, population: Population, dim: int) -> State:
        return {name: np.zeros(population.size) for name in ("since", "closed", "mean")}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        interval = np.where(state["closed"] > 0, state["mean"], 1.0)
        direction = weigh(view.population.weight[cohort.ids] * interval[cohort.ids], replies)
        answered = np.zeros(view.population.size, bool)
        answered[cohort.ids[replies.received]] = True
        since = state["since"] + 1
        closes = answered | (since >= self.cutoff)
        closed = state["closed"] + closes
        mean = np.where(closes, state["mean"] + (since - state["mean"]) / np.maximum(closed, 1), state["mean"])
        return direction, {"since": np.where(closes, 0.0, since), "closed": closed, "mean": mean}

    def coefficients(self, view: View, law: Array) -> Array:
        """The coefficients once the intervals are learned; clients that are never asked are left out."""
        return view.population.weight * (law > 0)

    def step_length(self, view: View, law: Array) -> float:
        """FedAvg's, as in the paper, because the true one is hard to compute."""
        return float(view.population.weight @ (view.population.arrival_rate * view.effort))
