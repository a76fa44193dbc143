"""The whole update, as every paper but one has it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedweave.core.records import Array
from fedweave.core.roles import Buffer, Parcel, Upload
from fedweave.core.settings import BadInput, settings
from fedweave.upload.codec import ClientModel


@settings
class Everything(Upload):
    """Every client sends its whole update and begins at the server's model."""

    identity: ClassVar[bool] = True

    def size(self, model: ClientModel, budget: float | None) -> int:
        return model.nbytes

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
        return Parcel(update.astype(model.dtype.newbyteorder("<"), copy=False).tobytes())

    def decode(self, payload: Buffer, model: ClientModel) -> tuple[Array, Array | None]:
        if len(payload) != model.nbytes:
            raise BadInput(f"A whole update has {model.nbytes} bytes. Got {len(payload)}.")
        return np.frombuffer(payload, model.dtype.newbyteorder("<")).astype(model.dtype, copy=False), None
