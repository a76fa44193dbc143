"""Aggregators that remember each client's last update: FedVARP in three variants, and MIFA."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedweave.aggregate.linear import Mean, weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings
from fedweave.tables.rows import Precision, Rows


def _refresh(last: Rows, cohort: Cohort, replies: Replies) -> State:
    return {"last": last.replaced(cohort.ids[replies.received], replies.updates[replies.received])}


@settings
class Varp(Aggregator):
    """Σ_j ω_j y_j + (K/|R|) Σ_R (ω_i c_i / E[c_i]) (u_i − y_i), then y_i ← u_i for the received R (FedVARP).

    With full participation this is the mean of the new updates, whatever is remembered.
    """

    precision: Precision = "float32"  # of the remembered updates
    needs_law: ClassVar[bool] = True

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}  # y_i: each client's last update

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        weight, last = view.population.weight, state["last"]
        scale = cohort.count.sum() / max(cohort.count[replies.received].sum(), 1)
        w = scale * weight[cohort.ids] * cohort.count / cohort.expected
        fresh = replies._replace(updates=replies.updates - last[cohort.ids])
        return last.combine(weight) + weigh(w, fresh), _refresh(last, cohort, replies)

    def coefficients(self, view: View, law: Array) -> Array:
        return view.population.weight


@settings
class VarpRefreshed(Aggregator):
    """Σ_j ω_j y_j after y_i ← u_i for the received: the mean of all clients' last updates.

    This is how DELTA combines FedVARP with a sampler: the sampler chooses which updates to refresh, and no weight
    corrects for the choice (MIFA of Gu et al. with chosen clients). It is biased during training, more so the longer
    clients wait; at a fixed point, with constant links and work, it is the mean of all updates. ``Varp`` under the same
    sampler is unbiased.
    """

    precision: Precision = "float32"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        after = _refresh(state["last"], cohort, replies)
        return after["last"].combine(view.population.weight), after

    def coefficients(self, view: View, law: Array) -> Array:
        """The coefficients once every client that is ever asked has answered."""
        return view.population.weight * (law > 0)


@settings
class VarpReuse(Aggregator):
    """(1/K) [Σ_received c_i u_i + Σ_lost c_i y_i]: a lost answer is replaced by the client's last one (FedACS eq. 114).

    The paper says that this corrects nothing; its own eq. 115 and simulation show that it corrects for lossy links if
    links and work are constant over time.
    """

    precision: Precision = "float32"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        filled = np.where(replies.received[:, None], replies.updates, state["last"][cohort.ids])
        w = cohort.count / max(cohort.count.sum(), 1)
        return w.astype(filled.dtype) @ filled, _refresh(state["last"], cohort, replies)

    def coefficients(self, view: View, law: Array) -> Array:
        return law / law.sum()


@settings
class MIFA(Aggregator):
    """η Σ_j ω_j G_j, where G_j = u_j/η of the last round in which client j answered (MIFA, Gu et al. 2021).

    ``VarpRefreshed`` in units of the gradient: where the learning rate changes, what is remembered follows the new one.
    The paper assumes that every client takes part in the first round; one that was never heard counts as zero, as in
    the authors' variant that does not wait (hmgxr128/MIFA_code, where the formula was read). Buffers are not
    remembered: they follow the mean.
    """

    precision: Precision = "float32"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision)}  # G_j

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        lr, parameters = replies.updates.dtype.type(view.lr), view.layout.parameters
        own = lr if replies.lr is None else replies.lr.astype(lr.dtype)[:, None]
        after = _refresh(state["last"], cohort, replies._replace(updates=replies.updates / own))
        direction = lr * after["last"].combine(view.population.weight)
        if parameters < direction.size:
            direction[parameters:] = Mean().combine({}, view, cohort, replies)[0][parameters:]
        return direction, after

    def coefficients(self, view: View, law: Array) -> Array:
        """The coefficients once every client that is ever asked has answered."""
        return view.population.weight * (law > 0)
