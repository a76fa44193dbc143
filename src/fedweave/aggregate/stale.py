"""Aggregators for answers that began with an older model: less weight the older it was, mixing of models, caches.

FedBuff (Nguyen et al. 2022), FedAsync (Xie, Koyejo and Gupta, arXiv:1903.03934) and CA²FL (Wang et al., ICLR 2024). The
texts of these papers were not at hand: the rules of the first two are as they are generally known, that of CA²FL agrees
with two public implementations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from fedweave.aggregate.linear import TINY, weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator, Upload
from fedweave.core.settings import settings
from fedweave.core.vectors import row_blocks
from fedweave.tables.rows import Precision, Rows
from fedweave.tables.spool import Spool

Form = Literal["polynomial", "hinge", "constant"]


def staleness_weight(staleness: Array, form: Form, exponent: float, grace: int) -> Array:
    """Return s(τ) of FedAsync, 1 for τ = 0; a = ``exponent``, b = ``grace``.

    "polynomial": (1 + τ)^−a. "hinge": 1 up to τ = b, then 1/(a (τ − b) + 1). "constant": 1.
    """
    tau = np.asarray(staleness, float)
    if form == "polynomial":
        return (1 + tau) ** -exponent
    return 1 / (exponent * np.maximum(tau - grace, 0) + 1) if form == "hinge" else np.ones_like(tau)


@settings
class Stale(Aggregator):
    """Scale each update by s(τ), τ the versions since its model, then combine as ``inner`` does (FedBuff).

    s(τ) = 1/(1 + τ)^a with a = ``exponent``; other forms as in ``staleness_weight``. Nothing is renormalised: a round
    of stale answers makes a shorter step. Changes of client memories that are sent (SCAFFOLD) are not scaled, because
    the server follows what clients keep; where it follows them by the updates (FedDyn, FOCUS), scaling is refused.
    """

    inner: Aggregator
    exponent: NonNegativeFloat = 0.5
    form: Form = "polynomial"
    grace: NonNegativeInt = 4  # of the hinge

    def __post_init__(self) -> None:
        """Refuse aggregators that would lose track of what clients remember."""
        if self.inner.memory_from_updates:
            raise ValueError(
                f"{type(self.inner).__name__} follows the {self.inner.memory_kind} of the clients by their updates, "
                "which Stale would scale. Use it without Stale."
            )

    @property
    def needs_law(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator reads Cohort.expected."""
        return self.inner.needs_law

    @property
    def masks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator goes by Replies.mask."""
        return self.inner.masks

    @property
    def memory_kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the inner aggregator wants clients to remember."""
        return self.inner.memory_kind

    @property
    def needs_drift(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator reads Replies.drift."""
        return self.inner.needs_drift

    @property
    def sends_own_models(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator sends clients models of their own."""
        return self.inner.sends_own_models

    def init(self, population: Population, dim: int) -> State:
        return self.inner.init(population, dim)

    def broadcast(self, state: State) -> Array | None:
        return self.inner.broadcast(state)

    def misfit(self, upload: Upload) -> str:
        return self.inner.misfit(upload)

    def models(self, state: State, x: Array, ids: Array) -> Array | None:
        return self.inner.models(state, x, ids)

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        if replies.staleness is not None and replies.staleness.any():
            scale = staleness_weight(replies.staleness, self.form, self.exponent, self.grace)
            replies = replies._replace(updates=_scaled(replies.updates, scale))
        return self.inner.combine(state, view, cohort, replies)

    def coefficients(self, view: View, law: Array) -> Array:
        """The inner aggregator's, as if nothing were stale: how much is, is not known beforehand."""
        return self.inner.coefficients(view, law)

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        return self.inner.measure(state, view)

    def surrogate(self, state: State) -> Array | None:
        return self.inner.surrogate(state)

    def step_length(self, view: View, law: Array) -> float:
        """The inner aggregator's, as if nothing were stale."""
        return self.inner.step_length(view, law)


def _scaled(updates: Array, scale: Array) -> Array:
    """Return the rows, each times its scale."""
    factor, scaled = scale.astype(updates.dtype)[:, None], Spool((updates.shape[0], updates.shape[1]), updates.dtype)
    for some in row_blocks(updates):
        scaled.put(some, updates[some] * factor[some])
    return scaled.matrix()


@settings
class Mixing(Aggregator):
    """x ← (1 − α_t) x + α_t y with α_t = α s(τ): mix the models that clients arrive at (FedAsync, Xie et al.).

    So the direction is α s(τ) (u + x_τ − x), with u = y − x_τ the update and x_τ the model that it began with. FedAsync
    absorbs one answer at a time; of several the mean counts, by their counts. Goes with a plain server step.
    """

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    exponent: NonNegativeFloat = 0.5
    form: Form = "polynomial"
    grace: NonNegativeInt = 4  # of the hinge
    needs_drift: ClassVar[bool] = True

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        w = cohort.count * replies.received
        alpha = self.alpha * w / max(w.sum(), 1)
        if replies.staleness is not None:
            alpha = alpha * staleness_weight(replies.staleness, self.form, self.exponent, self.grace)
        direction = weigh(alpha, replies)
        if replies.drift is not None:
            direction = direction + weigh(alpha, replies._replace(updates=replies.drift))
        return direction, state


@settings
class Cached(Aggregator):
    """h + Σ_R (ω_i c_i / Σ_R ω c) (u_i − h_i), then h_i ← u_i for the received R, h = Σ_j ω_j h_j (CA²FL, Wang et al.).

    The cached updates of all clients calibrate those that landed: a client counts also while it is slow. Equal weights
    give the paper's rule, h + (1/|R|) Σ (u_i − h_i). ``Varp`` divides by the probability to be drawn instead, which
    makes it unbiased for a known law; here the landed ones are averaged, whatever made them land now.
    """

    precision: Precision = "float32"  # of the cached updates
    keeps_sum: ClassVar[str] = "data"

    def init(self, population: Population, dim: int) -> State:
        return {"last": Rows.zeros(population.size, dim, self.precision), "mean": np.zeros(dim)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        weight, last, rows = view.population.weight[cohort.ids], state["last"], np.flatnonzero(replies.received)
        before, w = last[cohort.ids], weight * cohort.count * replies.received
        fresh = weigh(w / max(w.sum(), TINY), replies._replace(updates=replies.updates - before))
        ids = cohort.ids[rows]
        after = last.replaced(ids, replies.updates[rows])
        mean = state["mean"] + weight[rows] @ (after[ids].astype(float) - before[rows])
        return (state["mean"] + fresh).astype(replies.updates.dtype), {"last": after, "mean": mean}
