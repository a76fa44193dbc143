"""Aggregators for clients with memories: SCAFFOLD, FedDyn and FOCUS."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedweave.aggregate.linear import Mean, weigh
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

    @property
    def keeps_sum(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weights of its mean of the c_i."""
        return self.weights

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
    memory_from_updates: ClassVar[bool] = True
    keeps_sum: ClassVar[str] = "equal"

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


@settings
class PushPull(Aggregator):
    """−η s Σ_i ω_i m_i, where m_i is the gradient that client i sent last, zero before its first (FOCUS, Ying et al.).

    The server keeps the sum alone, y ← y + Σ_received ω_i (m_i^new − m_i), and steps along it, so that a client counts
    between its answers too, whoever takes part and however often: it rests where Σ ω_i ∇f_i = 0. The paper has s = N
    ("clients"): its learning rate must shrink as clients are added. With "steps", s is the mean number of local steps,
    so that a round is as long as one of FedAvg with the same learning rate. A round without answers makes no step, as
    in the authors' code.
    """

    step: Literal["steps", "clients"] = "steps"
    memory_kind: ClassVar[str] = "tracked gradients"
    memory_from_updates: ClassVar[bool] = True
    keeps_sum: ClassVar[str] = "data"

    def init(self, population: Population, dim: int) -> State:
        return {"tracked": np.zeros(dim, np.float32)}  # y

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        mean, _ = Mean().combine({}, view, cohort, replies)
        if not replies.received.any():
            return mean, state
        parameters = view.layout.parameters
        tracked = state["tracked"] - weigh(view.population.weight[cohort.ids] / view.lr, replies)
        tracked[parameters:] = 0
        direction = (-view.lr * self.step_length(view, view.population.weight)) * tracked
        direction[parameters:] = mean[parameters:]  # buffers are not trained: they follow the mean
        return direction, {"tracked": tracked}

    def step_length(self, view: View, law: Array) -> float:
        p = view.population
        return float(p.size if self.step == "clients" else p.weight @ p.steps)
