"""Aggregators that remember what clients sent: FedVARP in three readings."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedweave.aggregate.linear import weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings
from fedweave.tables.rows import Precision, Rows


def _refreshed(last: Rows, cohort: Cohort, replies: Replies) -> State:
    return {"last": last.replaced(cohort.ids[replies.received], replies.updates[replies.received])}


@settings
class Varp(Aggregator):
    """Σ_j ω_j y_j + (K/|R|) Σ_R (ω_i c_i / E[c_i]) (u_i − y_i), then y_i ← u_i for the received R (FedVARP).

    With full participation this is the mean of the fresh updates, whatever is remembered.
    """

    precision: Precision = "float32"  # of the remembered updates
    needs_law: ClassVar[bool] = True

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}  # y_i: what each client sent last

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        weight, last = view.population.weight, state["last"]
        scale = cohort.count.sum() / max(cohort.count[replies.received].sum(), 1)
        w = scale * weight[cohort.ids] * cohort.count / cohort.expected
        news = replies._replace(updates=replies.updates - last[cohort.ids])
        return last.combine(weight) + weigh(w, news), _refreshed(last, cohort, replies)

    def coefficients(self, view: View, law: Array) -> Array:
        return view.population.weight


@settings
class VarpRefreshed(Aggregator):
    """Σ_j ω_j y_j after y_i ← u_i for the received: the mean of what everyone sent last.

    How DELTA combines FedVARP with a sampler: it chooses whom to refresh, and no weight corrects the choice (MIFA of Gu
    et al. with a chosen refresh). Biased on the way, more so the longer clients wait; where links, work and model rest,
    it is the mean of all updates. ``Varp`` under the same sampler is the unbiased combination.
    """

    precision: Precision = "float32"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        after = _refreshed(state["last"], cohort, replies)
        return after["last"].combine(view.population.weight), after

    def coefficients(self, view: View, law: Array) -> Array:
        """After everyone who is ever asked was heard once."""
        return view.population.weight * (law > 0)


@settings
class VarpReuse(Aggregator):
    """(1/K) [Σ_received c_i u_i + Σ_lost c_i y_i]: a lost answer is replaced by the client's last one (FedACS eq. 114).

    The paper says that this corrects nothing; its own eq. 115 and the simulation say that it corrects the links, where
    links and work do not change over time.
    """

    precision: Precision = "float32"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        filled = np.where(replies.received[:, None], replies.updates, state["last"][cohort.ids])
        w = cohort.count / max(cohort.count.sum(), 1)
        return w.astype(filled.dtype) @ filled, _refreshed(state["last"], cohort, replies)

    def coefficients(self, view: View, law: Array) -> Array:
        return law / law.sum()
