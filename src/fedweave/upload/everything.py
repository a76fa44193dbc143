"""The whole update, as every paper but one has it."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array
from fedweave.core.roles import Upload
from fedweave.core.settings import settings
from fedweave.upload.channels import Channels


@settings
class Everything(Upload):
    """Every client sends its whole update and begins at the server's model."""

    def send(
        self, channels: Channels, start: Array, end: Array, rate: float, coverage: Array, rng: np.random.Generator
    ) -> Array:
        return np.ones(channels.count, bool)
