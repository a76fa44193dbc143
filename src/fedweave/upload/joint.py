"""Dropout and selection in one plan: who is asked, and how much each sends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.settings import settings
from fedweave.solve.joint_plan import JointPlan, joint_plan
from fedweave.upload.dropout import DifferentialDropout, contribution, model_bits

GAP = 0.01  # how close to the best plan is close enough: contributions are no better known


@settings
class JointDropout(DifferentialDropout):
    """FedDD's dropout with the shares of ``fedweave.solve.joint_plan``; the sampler ``Planned`` asks whom it says.

    All together send at most the share ``keep`` of ``per_round`` models of mean size, and at most ``per_round`` clients
    are asked. A client is worth its contribution re_n (FedDD eq. 13) × the rounds since its last answer, so that no one
    is left out for ever. ``penalty`` and ``unit`` have no effect: what is planned is the contribution per second.
    """

    per_round: PositiveInt = 10

    def init(self, population: Population) -> State:
        loss, last = np.full(population.size, np.nan), np.zeros(population.size)  # of the last answer, and its round
        return {"loss": loss, "heard": np.zeros(1, bool), "sent": np.full(1, np.nan), "last": last}

    def allocate(self, state: State, view: View, cohort: Cohort) -> Array:
        if not cohort.ids.size:
            return np.zeros(0)
        return 1 - self.plan(state, view, cohort.ids, np.ones(cohort.ids.size, bool)).share

    def plan(self, state: State, view: View, ids: Array, asked: Array | None = None) -> JointPlan:
        """Return the plan for these clients; ``asked`` where it is known who takes part."""
        p, bits = view.population, model_bits(view)
        free = np.full(p.size, np.inf)
        up, down = ((free if rate is None else rate)[ids] for rate in (p.up_rate, p.down_rate))
        worth = (contribution(state["loss"], view) * (view.round - state["last"]))[ids]
        worth = worth if worth.any() else np.ones(ids.size)
        compute = np.maximum(p.latency[ids] - bits[ids] * (1 / up + 1 / down), 0)
        budget = self.keep * self.per_round * float(bits[p.available].mean())
        if asked is not None:  # of a cohort drawn otherwise: each is asked for its least share at least
            budget = max(budget, (1 - self.max_rate) * float(bits[ids].sum()))
        most = self.per_round if asked is None else ids.size
        return joint_plan(bits[ids], compute, up, down, worth, budget, self.max_rate, most, asked=asked, gap=GAP)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        last = state["last"].copy()
        last[cohort.ids[replies.received]] = view.round
        return {**self.remember(state, view, cohort, replies), "last": last}

    def measure(self, state: State) -> Mapping[str, float]:
        """Return the share of the models' bytes that was sent."""
        return {"sent_share": float(state["sent"][0])}
