"""Latency-optimal selection (Chen, Zhou, Zhang, Sun, Poor): trial rounds, a plan, then draws by the plan.

The estimator. Eq. 4 of the paper sums models, Σ c d/(M p) y. Its weights sum to one only on average, so its variance
contains that of their total, times ‖x‖². Lemma 3 bounds it by the updates alone, which is wrong: step (c) subtracts
something that is not the mean. Summing updates, x + Σ c d/(M p) (y − x), has the same mean; for it the lemma holds, and
so does the objective of the plan. That is ``InverseProbability``, which the methods here use; ``Models`` is eq. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import draw_with_replacement, mean_count
from fedweave.solve import latency_plan

Share = Annotated[float, Field(gt=0, le=1)]
ROWS = (  # what a run tells of every asked client
    "round", "client", "count", "expected", "received", "steps", "loss", "seconds", "bytes_up", "first_gradient",
    "first_loss",
)  # fmt: skip
SMALLEST = 1e-3  # of the mean: one vanishing gradient must not make a client seem useless for good
LEAST_ALPHA = 1e-3  # of the data's part of the bound: eq. 27 is a difference and may be negative


@settings
class UniformDraws(Sampler):
    """``per_round`` draws with replacement, all clients equally likely: the latency paper's uniform selection."""

    per_round: PositiveInt

    def law(self, state: State, view: View) -> Array:
        return mean_count(view.population.available.astype(float), self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)


class Estimates(NamedTuple):
    """What is estimated in the trial rounds (section III-F)."""

    square: Array  # (N,) G_i², mean squared norm of a client's stochastic gradients
    latency: Array  # (N,) δ_i, mean seconds
    alpha: float  # α̃ of eq. 27


@settings
class LatencyOptimal(Sampler):
    """``per_round`` draws with replacement: p = ω for ``trial`` rounds, then the plan of least expected time.

    The plan (``fedweave.solve.latency_plan``) needs three quantities, all estimated in the trial (III-F) from what
    clients report anyway; training continues from the model that the trial produced.
    G_i²: the mean squared norm of the first stochastic gradient of a client's visits, at the global model. Gradients
    change more during training than they differ between clients, so each is taken relative to the cohort of its round;
    a client that has not answered gets the mean.
    δ_i, ``latency``: "known" averages the announced latencies over rounds; "observed" uses each client's own visits and
    their mean for the others; "equal" assumes equal latencies, which is norm selection, p ∝ ω G (Corollary 3).
    α̃ = √t ε_t − (1/M) Σ ω G² (eq. 27), averaged over the rounds t of the trial, with ε_t the training loss, as in the
    paper, or with ``progress`` "gradient" the smallest mean squared gradient so far, to which eq. 23 refers. The loss
    is that of the first batches at the global model, where G is measured too: in round t at x_{t−1}, the last of the t
    models over which Theorem 1 has its minimum. Clients that do not report it count with their mean loss on the way,
    which is far below it where clients have few classes. Eq. 26 takes a bound for an equality, and where clients differ
    much G² grows faster in the trial than √t ε_t: then α̃ is negative at any point and is replaced by a small positive
    share of the second term. ``alpha`` sets it instead, or ``boldness`` does in units of that term: α = boldness (1/M)
    Σ ω G². At zero only the data counts; the larger it is, the more the plan prefers fast clients.

    ``replan``: plan again after this many rounds, for latencies and gradients that drift (each later visit multiplies
    earlier ones by ``memory``). ``cohort`` "planned" also chooses M, among 1 … N, for ``epsilon``. ``floor``: p is at
    least this share of ω, so that no weight ω/(M p) exceeds 1/(M·floor).
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

    def cohort_size(self) -> int | None:
        return self.per_round if self.cohort == "given" else None

    def law(self, state: State, view: View) -> Array:
        return mean_count(state["probability"] * view.population.available, self._draws(state))

    def _draws(self, state: State) -> int:
        return self.per_round if self.cohort == "given" else int(state["draws"][0])

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self._draws(state), rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        last, state = int(state["planned"][0]), self._remember(state, view.round, view.population, cohort, replies)
        due = view.round >= self.trial if not last else self.replan is not None and view.round >= last + self.replan
        return self._plan(state, view) if due and state["heard"].any() else state

    def _remember(
        self, state: State, round: int, population: Population, cohort: Cohort, replies: Replies
    ) -> dict[str, Array]:
        after = {name: values.copy() for name, values in state.items()}
        asked, seconds = cohort.ids, replies.seconds
        if self.latency == "known":  # every client announces its latency
            asked, seconds = np.arange(population.size), population.latency
        _fade(after, "waited", "seconds", asked, seconds, self.memory)
        ok = replies.received & np.isfinite(replies.first_gradient)
        if not ok.any():
            return after
        answered, square = cohort.ids[ok], replies.first_gradient[ok] ** 2
        weight = _draw_weights(population.weight, cohort)[ok]
        level = float(weight @ square / weight.sum())
        _fade(after, "heard", "square", answered, square / level if level > 0 else np.ones(answered.size), self.memory)
        if not after["planned"].any():  # in the trial p = ω, as eq. 26 assumes
            after["rounds"] += 1
            after["level"] += level
            after["smallest"] = np.minimum(after["smallest"], level)
            loss = float(weight @ _loss_at_model(replies)[ok] / weight.sum())
            has_loss = self.progress == "loss" and np.isfinite(loss)
            after["progress"] += np.sqrt(round) * (loss if has_loss else after["smallest"])
        return after

    def estimates(self, state: State, weight: Array) -> Estimates:
        """Return the current estimates, from the state and the clients' weights ω."""
        relative = np.maximum(_mean(state, "square", "heard"), SMALLEST)
        rounds = max(float(state["rounds"][0]), 1.0)
        square = relative * float(state["level"][0]) / rounds / float(weight @ relative)
        latency = np.ones(weight.size) if self.latency == "equal" else _mean(state, "seconds", "waited")
        data = float(weight @ square) / self.per_round
        alpha = max(float(state["progress"][0]) / rounds - data, LEAST_ALPHA * data)
        alpha = alpha if self.boldness is None else self.boldness * data
        return Estimates(square, latency, alpha if self.alpha is None else self.alpha)

    def estimates_from(self, rows: Mapping[str, Array], population: Population) -> tuple[Estimates, float]:
        """Return the estimates from the rows of asked clients of any run, and eq. 27 itself, which may be negative.

        Its first ``trial`` rounds in which somebody answered are the trial. The law of the run need not be p = ω: the
        data's part of the bound is (1/M) Σ ω² G²/p, the mean of ω G²/(M p) over clients weighed by ω, and M p is the
        column ``expected``.
        """
        state, data = dict(self.init(population)), list[float]()
        first = np.unique(rows["round"], return_index=True)[1][1:]
        for part in zip(*(np.split(rows[name], first) for name in ROWS), strict=True):
            row = dict[str, Array](zip(ROWS, part, strict=True))
            cohort, replies = _round_of(row)
            state = self._remember(state, int(row["round"][0]), population, cohort, replies)
            data += _data_part(population.weight, cohort, replies)
            if len(data) == self.trial:
                state["planned"] = np.ones(1)
        found = self.estimates(state, population.weight)
        mean = float(np.mean(data[: self.trial])) if data else np.nan
        printed = float(state["progress"][0]) / max(float(state["rounds"][0]), 1.0) - mean
        if self.alpha is None and self.boldness is None:
            found = found._replace(alpha=max(printed, LEAST_ALPHA * mean))
        return found, printed

    def _plan(self, state: State, view: View) -> State:
        weight = view.population.weight
        square, latency, alpha = self.estimates(state, weight)
        factor, sizes = weight**2 * square, [self.per_round] if self.cohort == "given" else None
        if not (np.isfinite(factor).all() and factor.any() and np.isfinite(alpha)):
            return state  # zero or infinite gradients carry no information about the clients
        latency = np.maximum(latency, SMALLEST**2 * latency.max())  # the plan needs latencies > 0
        plan = latency_plan(latency, factor, alpha, self.epsilon, sizes, floor=self.floor * weight)
        law = {"probability": plan.probability, "draws": np.array([plan.cohort_size])}
        return {**state, **law, "planned": np.array([float(view.round)])}


def _draw_weights(weight: Array, cohort: Cohort) -> Array:
    """Return ω c/E[c] of a cohort: its sums estimate sums over all clients, weighted by ω."""
    return weight[cohort.ids] * cohort.count / cohort.expected


def _data_part(weight: Array, cohort: Cohort, replies: Replies) -> list[float]:
    """Return Σ ω² G²/E[c] as the cohort estimates it; nothing where nobody was heard."""
    ok = replies.received & np.isfinite(replies.first_gradient)
    mine, part = _draw_weights(weight, cohort)[ok], weight[cohort.ids] * replies.first_gradient**2 / cohort.expected
    return [float(mine @ part[ok] / mine.sum())] if ok.any() else []


def _round_of(row: Mapping[str, Array]) -> tuple[Cohort, Replies]:
    """Return a round's cohort and what is known of its replies, from its rows of asked clients."""
    cohort = Cohort(ids=row["client"], count=row["count"], expected=row["expected"])
    measured: dict[str, Any] = {name: row[name] for name in ROWS[5:]}
    return cohort, Replies(received=row["received"] > 0, updates=np.zeros((row["client"].size, 0)), **measured)


def _loss_at_model(replies: Replies) -> Array:
    """Return each client's loss at the global model (k,); its mean loss where only that is reported."""
    first = replies.first_loss
    return replies.loss if first is None else np.where(np.isfinite(first), first, replies.loss)


def _fade(state: dict[str, Array], visits: str, total: str, ids: Array, values: Array, memory: float) -> None:
    """Add a visit of these clients to the discounted sums."""
    state[visits][ids] = memory * state[visits][ids] + 1
    state[total][ids] = memory * state[total][ids] + values


def _mean(state: State, total: str, visits: str) -> Array:
    """Return the mean over each client's visits; clients without visits get the mean of the others."""
    seen = state[visits] > 0
    mean = np.divide(state[total], state[visits], out=np.ones(seen.size), where=seen)
    return np.where(seen, mean, mean[seen].mean() if seen.any() else 1.0)
