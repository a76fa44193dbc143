"""The world of a real fleet, as observed by its server: loss rates and latencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat

from fedweave.core.records import Array, Population, State
from fedweave.core.roles import System
from fedweave.core.settings import settings
from fedweave.sample import estimates

Share = Annotated[float, Field(gt=0, le=1)]


@settings
class Measured(System):
    """Loss rates and latencies as observed: every failed visit of a client counts, whatever the reason.

    Each later visit multiplies earlier ones by ``memory``; the average link counts as ``prior`` visits of each client;
    no estimated success rate is below ``floor``. Before the first observation all links are perfect and equal.
    """

    memory: Share = 0.99
    prior: NonNegativeFloat = 1.0
    floor: Share = 0.05

    def population(self, base: Population, round: int, seed: int) -> Population:
        return base

    def fresh(self, clients: int) -> State:
        """Return the initial estimates, before any observation."""
        return {name: np.zeros(clients) for name in ("asked", "heard", "seconds")}

    def visited(self, seen: State, ids: Array, heard: Array, seconds: Array) -> State:
        """Return the estimates after these clients were asked."""
        return estimates.visited(seen, ids, self.memory, asked=np.ones(ids.size), heard=heard, seconds=seconds)

    def known(self, base: Population, seen: State) -> Population:
        """Return the clients with estimated loss rates and latencies; unobserved clients get the average."""
        asked = seen["asked"] > 0
        if not asked.any():
            return base
        latency = np.divide(seen["seconds"], seen["asked"], out=np.ones(base.size), where=asked)
        latency = np.where(asked, latency, latency[asked].mean())
        return replace(base, loss_rate=1 - estimates.success_rate(seen, self.prior, self.floor), latency=latency)
