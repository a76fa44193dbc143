"""Aggregators that are weighted sums of the updates."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings
from fedweave.core.vectors import weighted_sum
from fedweave.sample import estimates

TINY = np.finfo(float).tiny
COLUMNS = 2**15  # columns of a mask converted to numbers at a time


def weigh(weights: Array, replies: Replies) -> Array:
    """Return Σ_i weights_i u_i over the received rows; zero if none was received.

    Where clients sent only parts, each entry is the weighted mean of the clients that sent it, times the total weight:
    Σ_i w_i · Σ_i w_i M_i u_i / Σ_i w_i M_i. For weights that sum to one this is FedDD eq. 4, which does not cover
    entries that no client sent: they stay unchanged.
    """
    w = np.where(replies.received, weights, 0.0).astype(replies.updates.dtype, copy=False)
    total = weighted_sum(w, replies.updates)
    if replies.mask is None:
        return total
    for i in range(0, total.size, COLUMNS):
        piece = slice(i, i + COLUMNS)
        sent = w @ replies.mask[:, piece].astype(w.dtype)
        total[piece] *= np.divide(w.sum(), sent, out=np.zeros_like(sent), where=sent > 0)
    return total


def _mean_effort(view: View, weight: Array) -> float:
    """Return the mean effort of the clients expected to answer, by their weights."""
    weight = weight * view.population.arrival_rate
    return float(weight @ view.effort / weight.sum())


@settings
class Mean(Aggregator):
    """Σ ω_i c_i u_i / Σ ω_i c_i over the received updates: FedAvg's data-weighted mean."""

    masks: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = view.population.weight[cohort.ids] * cohort.count * replies.received
        return weigh(w / max(w.sum(), TINY), replies), state

    def step_length(self, view: View, law: Array) -> float:
        """The weights sum to one: to first order, the mean effort of the clients that answer."""
        return _mean_effort(view, view.population.weight * law)


@settings
class Anonymous(Aggregator):
    """(1/K) Σ c_i u_i over the received updates, with K the number of draws (FedACS eq. 18).

    It needs only the sum of the updates: neither identities nor the number received.
    """

    masks: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        return weigh(cohort.count / max(cohort.count.sum(), 1), replies), state

    def coefficients(self, view: View, law: Array) -> Array:
        return law / law.sum() * view.population.arrival_rate


@settings
class InverseProbability(Aggregator):
    """Σ (ω_i c_i / E[c_i]) u_i over the received updates: unbiased for every sampler with a known law.

    This one rule is FedACS eq. 19 under Uniform (E = K/N), eq. 20 under any draw with replacement (E = K p) and eq. 21
    under Everyone (E = 1), and DELTA's eq. 7 for equal weights (see ``fedweave.sample.delta`` for its other weight).
    Eq. 19 prints the number *received* where eq. 24 has the number *sampled*: ``normalise`` chooses. "sampled" needs no
    counting and keeps one surrogate objective for all rules; "received" undoes the shrinkage by lost answers, exactly
    if all links are equally lossy. "weights" divides by the sum of the received weights: their total is then one in
    every round instead of on average, at the price of a bias of order 1/K (self-normalised importance sampling); under
    p = ω the total is always one anyway.
    """

    normalise: Literal["sampled", "received", "weights"] = "sampled"
    needs_law: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = view.population.weight[cohort.ids] * cohort.count / cohort.expected
        if self.normalise == "received":
            w = w * cohort.count.sum() / max(cohort.count[replies.received].sum(), 1)
        elif self.normalise == "weights":
            w = w / max(w[replies.received].sum(), np.finfo(float).tiny)
        return weigh(w, replies), state

    def coefficients(self, view: View, law: Array) -> Array:
        if self.normalise == "weights":  # a ratio has no closed-form mean
            return super().coefficients(view, law)
        arrival = np.ones_like(law) if self.normalise == "received" else view.population.arrival_rate
        return view.population.weight * arrival * (law > 0)

    def step_length(self, view: View, law: Array) -> float:
        """Weights that sum to one give, to first order, the mean effort of the clients that answer."""
        known = super().step_length(view, law)
        return _mean_effort(view, view.population.weight * (law > 0)) if self.normalise == "weights" else known


@settings
class Models(Aggregator):
    """Σ (ω_i c_i / E[c_i]) y_i over what is received: models, not updates, as printed in the latency paper (eq. 4).

    The same mean as ``InverseProbability`` where no answer is lost, but the weights sum to one only on average, and
    missing weight scales the whole model: the variance contains ‖x‖² times that of the total. Meant for reproduction
    and comparison; a round without answers leaves the model unchanged.
    """

    needs_law: ClassVar[bool] = True
    needs_drift: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = view.population.weight[cohort.ids] * cohort.count / cohort.expected * replies.received
        lost = (1 - w.sum()) * view.x if replies.received.any() else 0 * view.x
        direction = weigh(w, replies) - lost.astype(replies.updates.dtype)
        if replies.drift is not None:  # y_i = x + drift_i + u_i
            direction = direction + weigh(w, replies._replace(updates=replies.drift))
        return direction, state


@settings
class LinkAware(Aggregator):
    """Σ (ω_i c_i / (E[c_i] (1 − q_i))) u_i over the received updates: c-a-FedAvg (FedACS eq. 113), for any known law.

    It corrects for lossy links but not for uneven work: the mean is Σ ω_i u_i.
    """

    needs_law: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        p, ids = view.population, cohort.ids
        return weigh(p.weight[ids] * cohort.count / (cohort.expected * p.arrival_rate[ids]), replies), state

    def coefficients(self, view: View, law: Array) -> Array:
        return view.population.weight * (law > 0)


@settings
class Nova(Aggregator):
    """τ Σ w_i u_i / ‖a_i‖₁ with the unbiased weights w = ω c / E[c] (FedNova, Wang et al., for any solver and law).

    It corrects for uneven work but not for lossy links. "received": w is normalised over the received updates and
    τ = Σ w_i ‖a_i‖₁, the original. "sampled": nothing is normalised and τ = Σ γ_i ‖a_i‖₁ with the known link weights γ,
    so that the step is as long as FedAvg's (FedACS eq. 116). "quotients": the weights w/‖a‖₁ are normalised, so that τ
    cancels: the FedNova in FedAWARE's code, whose steps are shorter where work is uneven.
    """

    normalise: Literal["received", "sampled", "quotients"] = "received"
    needs_law: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        p, effort = view.population, view.effort[cohort.ids]
        w = p.weight[cohort.ids] * cohort.count / cohort.expected * replies.received
        if self.normalise != "sampled":
            w = w / max((w if self.normalise == "received" else w / effort).sum(), np.finfo(float).tiny)
        if self.normalise == "quotients":
            return weigh(w / effort, replies), state
        tau = w @ effort if self.normalise == "received" else _mean_effort(view, p.weight)
        return weigh(tau * w / effort, replies), state

    def coefficients(self, view: View, law: Array) -> Array:
        if self.normalise != "sampled":  # a ratio has no closed-form mean
            return super().coefficients(view, law)
        p = view.population
        return _mean_effort(view, p.weight) * p.weight * p.arrival_rate / view.effort * (law > 0)

    def step_length(self, view: View, law: Array) -> float:
        """As long as FedAvg's with the same normalisation: only the direction differs. "quotients" are shorter."""
        if self.normalise == "sampled":
            return super().step_length(view, law)
        weight = view.population.weight
        return _mean_effort(view, weight if self.normalise == "received" else weight / view.effort)


@settings
class Consistent(Aggregator):
    """τ Σ (ω_i c_i / (E[c_i] (1 − q_i) ‖a_i‖₁)) u_i over the received updates: consistent under any known law.

    It corrects for lossy links and uneven work together: the mean is τ Σ ω_i u_i/‖a_i‖₁ for *every* law. FedACS is the
    law that makes this weight equal for all clients, so that an anonymous sum suffices; τ = 1/Σ ω/((1 − q)‖a‖₁) is its
    step. ``effort``: "counted" uses ‖a‖₁ of the steps; "measured" how far clients moved on earlier visits
    (``sample.estimates``), smoothed by ``memory``. (The length of the current update itself would cancel: every update
    would count the same whatever its length, and training diverges.)
    """

    effort: Literal["counted", "measured"] = "counted"
    memory: Annotated[float, Field(gt=0, le=1)] = 0.99
    needs_law: ClassVar[bool] = True
    masks: ClassVar[bool] = True

    def init(self, population: Population, dim: int) -> State:
        return estimates.fresh(population.size) if self.effort == "measured" else {}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        effort = view.effort if self.effort == "counted" else estimates.mean_effort(state, "reach", view.effort)
        reach = view.population.arrival_rate * effort
        tau = 1 / (view.population.weight @ (1 / reach))
        w = view.population.weight[cohort.ids] * cohort.count / (cohort.expected * reach[cohort.ids])
        after = estimates.remember(state, view, cohort, replies, self.memory) if self.effort == "measured" else state
        return weigh(tau * w, replies), after

    def coefficients(self, view: View, law: Array) -> Array:
        if self.effort == "measured":  # measured efforts are in the state, which is not available here
            return super().coefficients(view, law)
        reach = view.population.arrival_rate * view.effort
        return view.population.weight / view.effort / (view.population.weight @ (1 / reach)) * (law > 0)

    def step_length(self, view: View, law: Array) -> float:
        """The same as FedACS's, in counted steps."""
        reach = view.population.arrival_rate * view.effort
        return float(1 / (view.population.weight @ (1 / reach)))
