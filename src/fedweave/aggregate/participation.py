"""Aggregators that go by how long a client was absent: FedAU and FedAWE."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from fedweave.aggregate.linear import TINY, weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import PositiveFactor, settings
from fedweave.tables.rows import Precision, Rows


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


@settings
class AWE(Aggregator):
    """x ← Σ ω_i (x_i + η_g (t − τ_i) u_i) / Σ ω_i over the received updates (FedAWE, Xiang et al. 2024).

    A client begins at its own model x_i: the global one after the round τ_i in which it last answered, the initial one
    before. Its update u_i from there counts once for each round since, which makes up for its absence, and the mean
    over the models x_i of whoever takes part is gossip: it keeps Σ ω_i x_i, so that no law of participation must be
    known. (The paper has equal weights; with ω the objective is Σ ω_i f_i.) With everyone there it is FedAvg.

    The server keeps the x_i, N × D numbers, and sends each client its own; the paper's clients receive the new model at
    the end of the round and keep it themselves. Buffers are not multiplied. (The formulas were read in the authors'
    code, mingxiang12/FedAWE.)
    """

    lr: PositiveFactor = 1.0  # η_g
    precision: Precision = "float32"  # of the models of absent clients
    sends_own_models: ClassVar[bool] = True

    def init(self, population: Population, dim: int) -> State:
        n = population.size
        return {
            "own": Rows.zeros(n, dim, self.precision),  # x_i, of clients that were heard but not in the last round
            "first": np.zeros(dim, np.float32),  # the initial model, once somebody was heard
            "current": np.zeros(n, bool),  # who was heard in the last round: its model is the global one
            "last": np.zeros(n, np.int64),  # τ_i, 0: never heard
        }

    def joined(self, state: State, ids: Array, round: int) -> State:
        """Clients that were added have not been absent: they begin at the present model."""
        if not state["last"].any():  # nobody was heard yet
            return state
        last, current = state["last"].copy(), state["current"].copy()
        last[ids], current[ids] = round, True
        return {**state, "last": last, "current": current}

    def models(self, state: State, x: Array, ids: Array) -> Array | None:
        last, current = state["last"], state["current"][ids]
        if current.all() or not last.any():
            return None
        own = np.where((last[ids] > 0)[:, None], state["own"][ids], state["first"])
        return np.where(current[:, None], x, own).astype(x.dtype, copy=False)

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        x, ids, received, last = view.x, cohort.ids, replies.received, state["last"].copy()
        echo = np.ones((ids.size, x.size), x.dtype)
        echo[:, : view.layout.parameters] = self.lr * (view.round - last[ids])[:, None]
        own = self.models(state, x, ids)
        moved = echo * replies.updates + (0 if own is None else own - x)
        w = view.population.weight[ids] * cohort.count * received
        direction = weigh(w / max(w.sum(), TINY), replies._replace(updates=moved))
        answered = np.zeros(last.size, bool)
        answered[ids[received]] = True
        absent = np.flatnonzero(state["current"] & ~answered)  # their model is that of the end of their last round
        after = {
            "own": state["own"].replaced(absent, np.broadcast_to(x, (absent.size, x.size))),
            "first": state["first"] if last.any() else x.copy(),
            "current": answered,
        }
        last[answered] = view.round
        return direction, {**after, "last": last}

    def coefficients(self, view: View, law: Array) -> Array:
        """The coefficients over time, to first order in the learning rate: absences are made up for."""
        return self.lr * view.population.weight * (law > 0)
