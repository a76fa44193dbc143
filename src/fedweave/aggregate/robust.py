"""Robust aggregation in front of any aggregator: clip long updates and trim extreme entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator, Upload
from fedweave.core.settings import settings
from fedweave.core.vectors import by_rows, row_blocks
from fedweave.tables.spool import Spool

COLUMNS = 2**15  # columns of one piece, because sorting makes a few copies


@settings
class Robust(Aggregator):
    """Shorten updates that are too long, replace extreme entries, then combine as ``aggregator`` does.

    ``clip``: a longer update is scaled down to this length; "median" is the median length in the cohort.
    ``trim``: in every coordinate this share of the clients is cut off at both ends and replaced by the mean of the
    others. Under equal weights the result is the trimmed mean, and at 0.5 the coordinate median, of Yin et al.; under
    other weights the aggregator's own rule is applied to the replaced entries. Up to that share of the cohort may send
    arbitrary values.
    """

    aggregator: Aggregator
    clip: PositiveFloat | Literal["median"] | None = None
    trim: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    def __post_init__(self) -> None:
        """Refuse aggregators that cannot be made robust."""
        if self.aggregator.memory_kind:
            raise ValueError(
                f"Robust protects only updates, but {type(self.aggregator).__name__} also takes "
                f"{self.aggregator.memory_kind} from the clients: one bad client would still spoil it."
            )

    @property
    def needs_law(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator reads Cohort.expected."""
        return self.aggregator.needs_law

    @property
    def needs_drift(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator reads Replies.drift, which is the server's own: it is not clipped or trimmed."""
        return self.aggregator.needs_drift

    @property
    def sends_own_models(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator sends clients models of their own."""
        return self.aggregator.sends_own_models

    def init(self, population: Population, dim: int) -> State:
        return self.aggregator.init(population, dim)

    def broadcast(self, state: State) -> Array | None:
        return self.aggregator.broadcast(state)

    def models(self, state: State, x: Array, ids: Array) -> Array | None:
        return self.aggregator.models(state, x, ids)

    def misfit(self, upload: Upload) -> str:
        if self.trim and upload.sparse:
            return (
                f"Robust trims the extremes of every entry, and takes the zeros that {type(upload).__name__} did not "
                "send for votes. Use a codec that sends every entry, such as Quantized(), or clip without trim."
            )
        return self.aggregator.misfit(upload)

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        received = replies.updates[replies.received]
        if self.clip is not None:
            received = clip_rows(received, self.clip)
        updates = np.zeros_like(replies.updates)
        updates[replies.received] = trim_rows(received, self.trim)
        return self.aggregator.combine(state, view, cohort, replies._replace(updates=updates))

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        return self.aggregator.measure(state, view)

    def surrogate(self, state: State) -> Array | None:
        return self.aggregator.surrogate(state)

    def step_length(self, view: View, law: Array) -> float:
        """The inner aggregator's, as if nothing were clipped or trimmed: how much is, is not known beforehand."""
        return self.aggregator.step_length(view, law) if self.clip is None else np.nan


def clip_rows(updates: Array, longest: float | Literal["median"]) -> Array:
    """Return the rows, scaled down where longer than ``longest`` or than the median row."""
    length = by_rows(lambda some: np.linalg.norm(some.astype(np.float64), axis=1), updates)
    limit = longest if longest != "median" else float(np.median(length)) if length.size else 0.0
    scale = np.divide(limit, length, out=np.ones_like(length), where=length > limit).astype(updates.dtype)[:, None]
    clipped = Spool((updates.shape[0], updates.shape[1]), updates.dtype)
    for some in row_blocks(updates):
        clipped.put(some, updates[some] * scale[some])
    return clipped.matrix()


def trim_rows(updates: Array, share: float) -> Array:
    """Return the rows with the ``share`` lowest and highest entries of each column replaced by the mean of the rest."""
    k = len(updates)
    cut = min(int(share * k), (k - 1) // 2)
    if cut <= 0:
        return updates
    out = updates.copy()
    for begin in range(0, updates.shape[1], COLUMNS):
        piece = updates[:, begin : begin + COLUMNS]
        order = piece.argsort(axis=0, kind="stable")
        kept = np.take_along_axis(piece, order[cut : k - cut], axis=0).mean(axis=0, dtype=np.float64)
        for outer in (order[:cut], order[k - cut :]):
            np.put_along_axis(out[:, begin : begin + COLUMNS], outer, kept.astype(piece.dtype)[None], axis=0)
    return out
