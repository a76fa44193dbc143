"""Aggregators for clients with memories: SCAFFOLD and FedDyn."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedweave.aggregate.linear import weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings


@settings
class Scaffold(Aggregator):
    """The mean of the received updates, and c ← c + (1/N) Σ_received Δc_i, sent with the model (SCAFFOLD).

    So c is always the mean of the c_i: a client whose answer is lost keeps its c_i. With weights "data" both means are
    weighted by ω; the fixed point, where c_i = ∇f_i and c = 0, is then that of Σ ω_i f_i instead of the plain mean.
    """

    weights: Literal["equal", "data"] = "equal"
    memory_kind: ClassVar[str] = "control variates"

    def init(self, population: Population, dim: int) -> State:
        return {"c": np.zeros(dim, np.float32)}

    def broadcast(self, state: State) -> Array:
        return state["c"]

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        p = view.population
        share = p.weight[cohort.ids] if self.weights == "data" else np.full(cohort.ids.size, 1 / p.size)
        w = share * cohort.count * replies.received
        assert replies.memory_change is not None
        c = state["c"] + weigh(share, replies._replace(updates=replies.memory_change))
        return weigh(w / max(w.sum(), np.finfo(float).tiny), replies), {"c": c}


@settings
class DynMean(Aggregator):
    """x ← mean_received y_i − h/α with h ← h − (α/N) Σ_received (y_i − x) (FedDyn); goes with a plain server step.

    The state is −h/α, the mean over all clients of their total displacement: α cancels, so only the clients need it.
    Buffers are not optimised: they follow the mean.
    """

    memory_kind: ClassVar[str] = "local gradients"

    def init(self, population: Population, dim: int) -> State:
        return {"moved": np.zeros(dim, np.float32)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = cohort.count * replies.received
        if not w.any():  # no answers: the model stays
            return np.zeros_like(view.x), state
        fresh = weigh(np.full(w.size, 1 / view.population.size), replies)
        fresh[view.layout.parameters :] = 0
        moved = state["moved"] + fresh
        return weigh(w / w.sum(), replies) + moved, {"moved": moved}
