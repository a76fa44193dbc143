"""Error feedback: what a codec does not send is kept and added to the next update."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Buffer, Parcel, Upload
from fedweave.core.settings import settings
from fedweave.upload.codec import ClientModel
from fedweave.upload.sparse import TopK


@settings
class ErrorFeedback(Upload):
    """The inner codec on u + e, where e is what the client's last answers left out (Seide et al.; Stich et al.).

    With p = u + e the client sends C(p) and keeps e ← p − C(p): what is sent plus what is kept is the update plus what
    was kept before. In float32 that is exact for entries that are sent as they are or not at all, and else to the
    rounding of one subtraction. C is the inner codec's ``contraction``: RandomK without the factor d/k (with it, a
    share of a tenth would make e three times as long each time), and quantised values rounded to the nearest.

    e changes when the answer is received. If it is lost, that round's update is lost as without error feedback, and e
    stays. Clients begin at the server's model, and the download is the whole model.
    """

    inner: Upload = Field(default_factory=TopK)
    keeps: ClassVar[bool] = True

    @property
    def sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner codec leaves most entries out."""
        return self.inner.sparse

    def __post_init__(self) -> None:
        name = type(self.inner).__name__
        if self.inner.masks:
            raise ValueError(
                f"ErrorFeedback adds what was not sent to the next update. {name} already keeps it, as values from "
                "which the client goes on: use it alone."
            )
        if self.inner.keeps:
            raise ValueError(f"ErrorFeedback needs the place where {name} keeps values of its own: use {name} alone.")

    def init(self, population: Population) -> State:
        return self.inner.init(population)

    def allocate(self, state: State, view: View, cohort: Cohort) -> Array | None:
        return self.inner.allocate(state, view, cohort)

    def size(self, model: ClientModel, budget: float | None) -> int:
        return self.inner.size(model, budget)

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
        wanted = update
        if kept is not None:  # nan: of entries that the client's model did not have before
            wanted = update + np.where(np.isnan(kept), kept.dtype.type(0), kept)
        payload = self._codec.encode(wanted, x, start, budget, None, rng, model).payload
        with np.errstate(invalid="ignore"):  # what is not finite is for admission to refuse
            return Parcel(payload, wanted - self.decode(payload, model)[0])

    def decode(self, payload: Buffer, model: ClientModel) -> tuple[Array, Array | None]:
        return self._codec.decode(payload, model)

    @cached_property
    def _codec(self) -> Upload:
        return self.inner.contraction()

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        return self.inner.learn(state, view, cohort, replies)

    def measure(self, state: State) -> Mapping[str, float]:
        return self.inner.measure(state)
