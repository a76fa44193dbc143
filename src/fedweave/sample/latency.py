"""Latency-optimal selection (Chen, Zhou, Zhang, Sun, Poor): a trial, a plan, and then the planned law.

Which estimator goes with it. Eq. 4 of the paper sums models, Σ c d/(M p) y. Its weights sum to one on average only, so
its variance contains that of their total, times ‖x‖². Lemma 3 bounds it by the updates alone, which is wrong: step (c)
subtracts what is not the mean. Summing updates, x + Σ c d/(M p) (y − x), has the same mean, and for it the lemma holds
and with it the objective of the plan. That is ``InverseProbability``, which the methods here use; ``Models`` is eq. 4.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import draw_with_replacement, mean_count
from fedweave.solve import latency_plan

Share = Annotated[float, Field(gt=0, le=1)]
SMALLEST = 1e-3  # of the mean: a client whose gradient vanished once is not taken for one that has nothing to say
LEAST_ALPHA = 1e-3  # of the data's part of the bound: eq. 27 is a difference and may come out negative


@settings
class UniformDraws(Sampler):
    """``per_round`` draws with replacement, all clients equally likely: the latency paper's uniform selection."""

    per_round: PositiveInt

    def law(self, state: State, view: View) -> Array:
        return mean_count(view.population.available.astype(float), self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)


class Estimates(NamedTuple):
    """What the trial teaches (section III-F)."""

    square: Array  # (N,) G_i², mean squared norm of a client's stochastic gradients
    latency: Array  # (N,) δ_i, mean seconds
    alpha: float  # α̃ of eq. 27


@settings
class LatencyOptimal(Sampler):
    """``per_round`` draws with replacement: p = ω for ``trial`` rounds, then the plan that promises the least time.

    The plan (``fedweave.solve.latency_plan``) needs three things, all learned in the trial (III-F) from what clients
    report anyway, and training goes on from the model that the trial has made.
    G_i²: the mean squared norm of the first stochastic gradient of a client's visits, at the global model. Gradients
    change during training by more than clients differ, so each is taken relative to the cohort of its round; a client
    never heard from gets the mean.
    δ_i, ``latency``: "known" as announced, averaged over rounds; "observed" from the client's own visits, the mean of
    those seen for the others; "equal" plans as if all were equally fast: norm selection, p ∝ ω G (Corollary 3).
    α̃ = √t ε_t − (1/M) Σ ω G² (eq. 27), averaged over the rounds t of the trial, with ε_t the training loss, as the
    paper has it, or with ``progress`` "gradient" the smallest mean squared gradient so far, of which eq. 23 speaks. It
    may come out negative and is kept at a small positive share of the other term. ``alpha`` sets it instead, or
    ``boldness``, in units of that term: α = boldness (1/M) Σ ω G². Nought minds the data only; the larger it is, the
    more a plan leans towards the fast.

    ``replan``: plan again after every so many rounds, for latencies and gradients that drift (a visit fades by
    ``memory`` with each later one). ``cohort`` "planned" also chooses M, among 1 … N, for ``epsilon``. ``floor``: p is
    at least this share of ω, so that no weight ω/(M p) exceeds 1/(M·floor).
    """

    per_round: PositiveInt
    trial: PositiveInt = 5
    replan: PositiveInt | None = None
    latency: Literal["known", "observed", "equal"] = "known"
    progress: Literal["loss", "gradient"] = "loss"
    alpha: NonNegativeFloat | None = None
    boldness: NonNegativeFloat | None = None
    cohort: Literal["given", "planned"] = "given"
    epsilon: PositiveFloat = 1e-2
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    memory: Share = 0.9

    def __post_init__(self) -> None:
        if self.alpha is not None and self.boldness is not None:
            raise ValueError("Give either 'alpha' or 'boldness' to LatencyOptimal, not both.")

    def init(self, population: Population) -> State:
        n = population.size
        sums = {name: np.zeros(n) for name in ("heard", "square", "waited", "seconds")}  # discounted, over visits
        rounds = {name: np.zeros(1) for name in ("rounds", "level", "progress")}  # summed over the trial
        law = {"probability": np.array(population.weight, float), "draws": np.array([self.per_round])}
        return {**law, **sums, **rounds, "smallest": np.full(1, np.inf), "planned": np.zeros(1)}

    def required_fields(self) -> tuple[str, ...]:
        return ("first_gradient",)

    def law(self, state: State, view: View) -> Array:
        return mean_count(state["probability"] * view.population.available, int(state["draws"][0]))

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), int(state["draws"][0]), rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        state, last = self._remember(state, view, cohort, replies), int(state["planned"][0])
        due = view.round >= self.trial if not last else self.replan is not None and view.round >= last + self.replan
        return self._plan(state, view) if due and state["heard"].any() else state

    def _remember(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        after = {name: values.copy() for name, values in state.items()}
        asked, seconds = cohort.ids, replies.seconds
        if self.latency == "known":  # everyone announces how long it would take
            asked, seconds = np.arange(view.population.size), view.population.latency
        _fade(after, "waited", "seconds", asked, seconds, self.memory)
        ok = replies.received & np.isfinite(replies.first_gradient)
        if not ok.any():
            return after
        spoke, square = cohort.ids[ok], replies.first_gradient[ok] ** 2
        weight = view.population.weight[spoke] * cohort.count[ok] / cohort.expected[ok]  # of a mean over all clients
        level = float(weight @ square / weight.sum())
        _fade(after, "heard", "square", spoke, square / level if level > 0 else np.ones(spoke.size), self.memory)
        if not after["planned"].any():  # in the trial p = ω, which eq. 26 takes for granted
            after["rounds"] += 1
            after["level"] += level
            after["smallest"] = np.minimum(after["smallest"], level)
            loss = float(weight @ replies.loss[ok] / weight.sum())
            told = self.progress == "loss" and np.isfinite(loss)
            after["progress"] += np.sqrt(view.round) * (loss if told else after["smallest"])
        return after

    def estimates(self, state: State, weight: Array) -> Estimates:
        """Return what is believed of the clients, from the state and their weights ω."""
        relative = np.maximum(_mean(state, "square", "heard"), SMALLEST)
        rounds = max(float(state["rounds"][0]), 1.0)
        square = relative * float(state["level"][0]) / rounds / float(weight @ relative)
        latency = np.ones(weight.size) if self.latency == "equal" else _mean(state, "seconds", "waited")
        data = float(weight @ square) / self.per_round
        alpha = max(float(state["progress"][0]) / rounds - data, LEAST_ALPHA * data)
        alpha = alpha if self.boldness is None else self.boldness * data
        return Estimates(square, latency, alpha if self.alpha is None else self.alpha)

    def _plan(self, state: State, view: View) -> State:
        weight = view.population.weight
        square, latency, alpha = self.estimates(state, weight)
        factor, sizes = weight**2 * square, [self.per_round] if self.cohort == "given" else None
        if not (np.isfinite(factor).all() and factor.any() and np.isfinite(alpha)):
            return state  # a model at rest or out of bounds teaches nothing about its clients
        latency = np.maximum(latency, SMALLEST**2 * latency.max())  # nobody answers in no time
        plan = latency_plan(latency, factor, alpha, self.epsilon, sizes, floor=self.floor * weight)
        law = {"probability": plan.probability, "draws": np.array([plan.cohort_size])}
        return {**state, **law, "planned": np.array([float(view.round)])}


def _fade(state: dict[str, Array], visits: str, total: str, ids: Array, values: Array, memory: float) -> None:
    """Add a visit of these clients to the discounted sums."""
    state[visits][ids] = memory * state[visits][ids] + 1
    state[total][ids] = memory * state[total][ids] + values


def _mean(state: State, total: str, visits: str) -> Array:
    """Return the mean over a client's visits; for those never met the mean of the others."""
    seen = state[visits] > 0
    mean = np.divide(state[total], state[visits], out=np.ones(seen.size), where=seen)
    return np.where(seen, mean, mean[seen].mean() if seen.any() else 1.0)
