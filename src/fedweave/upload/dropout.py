"""FedDD: every client takes part, and each sends as much as its link can bear and its data is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Buffer, Parcel, Upload
from fedweave.core.settings import settings
from fedweave.solve.dropout_plan import dropout_plan, infeasible
from fedweave.upload.channels import Channels
from fedweave.upload.codec import ClientModel
from fedweave.upload.importance import Choice, Rounding, channel_counts, most_important, scores
from fedweave.upload.wire import decode, encode, message_size

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, le=1)]


@settings
class DifferentialDropout(Upload):
    """All together send the share ``keep`` of their models; who sends how much is planned every round (FedDD).

    The plan (``fedweave.solve.dropout_plan``) weighs the length of the round against what is lost: ``penalty`` Σ re_n
    D_n, where a client's contribution re_n is its share of the data × the classes it covers × its share of the model ×
    its last training loss (eq. 13). ``unit`` "seconds" takes the penalty as the paper writes it, in seconds; where a
    round takes hours, contributions of 0.01 then change nothing (``dropout_influence`` in the rounds table says so).
    "relative" takes it in units of the time of whole models over Σ re_n, so that 1 is a penalty that matters.
    Of the cohort whoever was not heard yet counts with the mean loss; before anyone was heard, all send everything.

    A client sends the same share of the channels of every layer (rounded as ``rounding`` says, one at least): those of
    the largest importance |ΔW (W + ΔW)/W|, divided by the share of clients that have the channel (eqs 20 and 21).
    ``choose`` takes others: "random", "max" (largest weights), "delta" (largest change), "ordered" (the first ones).
    ``whole_head`` always sends the last layer.

    What it did not send a client keeps and goes on from (eq. 5). After every ``refresh``-th round all take the whole
    model (eq. 6; h of the paper). A schedule is a list of (round, h): h from that round on, as in [(1, 10), (50, 2)].
    """

    keep: Share = 0.6
    max_rate: Rate = 0.8
    penalty: NonNegativeFloat = 1.0
    unit: Literal["relative", "seconds"] = "relative"
    choose: Choice = "importance"
    rounding: Rounding = "nearest"
    whole_head: bool = False
    refresh: PositiveInt | tuple[tuple[PositiveInt, PositiveInt], ...] = 5
    masks: ClassVar[bool] = True
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if problem := infeasible(self.keep, self.max_rate):
            raise ValueError(problem)
        if not isinstance(self.refresh, int):
            rounds = [r for r, _ in self.refresh]
            if rounds[:1] != [1] or sorted(set(rounds)) != rounds:
                raise ValueError(
                    "The 'refresh' parameter of DifferentialDropout must be a number of rounds or a schedule of "
                    f"(round, rounds) that begins at round 1 and rises. Got {self.refresh!r}."
                )

    def init(self, population: Population) -> State:
        unknown = {name: np.full(1, np.nan) for name in ("sent", "influence")}
        return {"loss": np.full(population.size, np.nan), "heard": np.zeros(1, bool), **unknown}

    def allocate(self, state: State, view: View, cohort: Cohort) -> Array:
        return self._plan(state, view, cohort, self.penalty)

    def _plan(self, state: State, view: View, cohort: Cohort, penalty: float) -> Array:
        p, ids = view.population, cohort.ids
        if not state["heard"][0] or not ids.size:
            return np.zeros(ids.size)
        size, free = model_bits(view)[ids], np.full(ids.size, np.inf)
        up = free if p.up_rate is None else p.up_rate[ids]
        down = free if p.down_rate is None else p.down_rate[ids]
        link = size / up + size / down
        worth, whole = contribution(state["loss"], view)[ids], float(p.latency[ids].max())
        if self.unit == "relative" and worth.any():
            penalty = penalty * whole / worth.sum()
        compute = np.maximum(p.latency[ids] - link, 0)
        return dropout_plan(size, compute, up, down, worth, self.keep, self.max_rate, penalty)

    def counts(self, channels: Channels, rate: float) -> Array:
        """Return how many channels of each layer (L,) a client sends at this rate."""
        counts = channel_counts(channels, rate, self.rounding)
        if self.whole_head:
            counts[-1] = channels.widths[-1]
        return counts

    def size(self, model: ClientModel, budget: float | None) -> int:
        counts = self.counts(model.channels, budget or 0.0)
        return message_size(model.channels, counts, model.dtype.itemsize)

    def encode(
        self,
        update: Array,
        x: Array,
        start: Array,
        budget: float | None,
        kept: Array | None,
        rng: np.random.Generator,
        model: ClientModel,
    ) -> Parcel:
        channels, end = model.channels, x + update
        coverage = np.ones(channels.count) if model.coverage is None else model.coverage
        score = scores(self.choose, channels, start, end, coverage, rng)
        chosen = most_important(channels, score, self.counts(channels, budget or 0.0))
        return Parcel(encode(channels, update, chosen), own_values(end, channels.spread(chosen)))

    def decode(self, payload: Buffer, model: ClientModel) -> tuple[Array, Array | None]:
        update, sent = decode(model.channels, payload, str(model.dtype))
        return update, model.channels.spread(sent)

    def refreshes(self, round: int) -> bool:
        return round % self.period(round) == 0

    def period(self, round: int) -> int:
        """Return h at this round."""
        if isinstance(self.refresh, int):
            return self.refresh
        return [h for begin, h in self.refresh if begin <= round][-1]

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        moved = np.abs(self.allocate(state, view, cohort) - self._plan(state, view, cohort, 0.0))
        return {**self.remember(state, view, cohort, replies), "influence": np.array([moved.max(initial=0.0)])}

    def remember(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        """Return the losses that were heard last, and the share of the models' bytes that was sent."""
        loss, heard = state["loss"].copy(), replies.received & np.isfinite(replies.loss)
        loss[cohort.ids[heard]] = replies.loss[heard]
        whole = model_bits(view)[cohort.ids].sum() / 8
        sent = np.array([replies.bytes_up.sum() / whole if whole else np.nan])
        return {"loss": loss, "heard": state["heard"] | replies.received.any(), "sent": sent}

    def measure(self, state: State) -> Mapping[str, float]:
        """Return the share of the models' bytes that was sent, and the largest change of a rate by contributions."""
        return {"sent_share": float(state["sent"][0]), "dropout_influence": float(state["influence"][0])}


def own_values(end: Array, sent: Array) -> Array:
    """Return what a client goes on with (d,): where it arrived, and nan, the server's value, where it sent that.

    Non-finite entries are downloaded again.
    """
    return np.where(sent | ~np.isfinite(end), end.dtype.type(np.nan), end)


def contribution(loss: Array, view: View) -> Array:
    """Return re_n (N,), FedDD eq. 13; a client whose loss is not known has the mean of those that are, or 1."""
    p, known = view.population, np.isfinite(loss)
    loss = np.where(known, loss, loss[known].mean() if known.any() else 1.0)
    covered = np.ones(p.size) if p.covered is None else p.covered
    return p.samples / p.samples.sum() * covered * model_bits(view) / (8 * view.x.nbytes) * np.maximum(loss, 0.0)


def model_bits(view: View) -> Array:
    """Return the bits of each client's model (N,)."""
    known = view.population.model_bytes
    return 8 * (np.full(view.population.size, view.x.nbytes) if known is None else known)
