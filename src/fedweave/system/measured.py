"""The world of a real fleet, as observed by its server: loss rates, latencies and the rates of its links."""

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
Part = Annotated[float, Field(ge=0, lt=1)]
FAITH = 0.01  # visits that the assumed share of sending is worth: a few messages of different sizes outweigh it
WILD = 10.0  # a visit that takes this many times as long as expected, or as short, counts as that
FASTEST = 1e15  # bit/s, of a link whose time does not show

TIMED = ("visits", "time", "up", "up_up", "time_up")  # discounted sums over the visits that were answered


@settings
class Measured(System):
    """Loss rates, latencies and link rates as observed: every failed visit of a client counts, whatever the reason.

    Each later visit multiplies earlier ones by ``memory``; the average link counts as ``prior`` visits of each client;
    no estimated success rate is below ``floor``. Before the first observation all links are perfect and equal.

    The seconds of a visit are a + b·(bytes sent): b is the inverse upload rate, a the rest. Least squares over a
    client's visits find both where its messages differ in size, as FedDD's do; messages of one size cannot tell, and
    the share ``sending`` of the time is taken for the upload. A fleet sends whole models whatever clients leave out, so
    the time of receiving them is a part of a that no dropout shortens, and counts as computing; ``receiving`` is the
    share of a that is taken for the download instead.
    """

    memory: Share = 0.99
    prior: NonNegativeFloat = 1.0
    floor: Share = 0.05
    sending: Part = 0.5
    receiving: Part = 0.0

    def population(self, base: Population, round: int, seed: int) -> Population:
        return base

    def fresh(self, clients: int) -> State:
        """Return the initial estimates, before any observation."""
        return {name: np.zeros(clients) for name in ("asked", "heard", "seconds", *TIMED)}

    def visited(self, seen: State, ids: Array, heard: Array, seconds: Array, bytes_up: Array) -> State:
        """Return the estimates after these clients were asked, and those that were heard sent so many bytes."""
        after = estimates.visited(seen, ids, self.memory, asked=np.ones(ids.size), heard=heard, seconds=seconds)
        timed = np.asarray(heard, bool) & np.isfinite(seconds) & (seconds >= 0) & (bytes_up > 0)
        ids, time, up = ids[timed], np.asarray(seconds)[timed], np.asarray(bytes_up, float)[timed]
        rest, slope, known = (values[ids] for values in (*self._line(seen), seen["visits"] > 0))
        expected = rest + slope * up
        time = np.where(known & (expected > 0), np.clip(time, expected / WILD, expected * WILD), time)
        sums = {"visits": np.ones(ids.size), "time": time, "up": up, "up_up": up**2, "time_up": time * up}
        return estimates.visited(after, ids, self.memory, **sums)

    def _line(self, seen: State) -> tuple[Array, Array]:
        """Return a (N,), seconds, and b (N,), seconds a byte; those of the average client for one that was not timed.

        Least squares of time = a + b·up, with FAITH visits that say b·up = sending · time: the line goes through the
        means, and lies between a level one and one through the origin.
        """
        n, timed = np.maximum(seen["visits"], np.finfo(float).tiny), seen["visits"] > 0
        time, up = seen["time"] / n, seen["up"] / n
        spread, common = seen["up_up"] - n * up**2, seen["time_up"] - n * time * up
        over = np.maximum(spread, 0) + FAITH * up**2
        slope = np.divide(common + FAITH * up * self.sending * time, over, out=np.zeros(n.size), where=over > 0)
        slope = np.clip(slope, 0, np.divide(time, up, out=np.zeros(n.size), where=up > 0))
        rest = time - slope * up
        if timed.any():
            rest, slope = (np.where(timed, values, values[timed].mean()) for values in (rest, slope))
        return rest, slope

    def known(self, base: Population, seen: State) -> Population:
        """Return the clients with estimated loss rates, latencies and rates; unobserved clients get the average."""
        asked = seen["asked"] > 0
        if not asked.any():
            return base
        latency = np.divide(seen["seconds"], seen["asked"], out=np.ones(base.size), where=asked)
        latency = np.where(asked, latency, latency[asked].mean())
        now = replace(base, loss_rate=1 - estimates.success_rate(seen, self.prior, self.floor), latency=latency)
        timed, size = seen["visits"] > 0, base.model_bytes
        if size is None or not timed.any():
            return now
        rest, slope = self._line(seen)
        sent = np.divide(seen["up"], seen["visits"], out=np.array(size, float), where=timed)
        whole = latency + slope * np.maximum(size - sent, 0)  # with what was left out
        rates = [8 / np.maximum(each, 8 / FASTEST) for each in (slope, self.receiving * rest / size)]
        return replace(now, latency=whole, up_rate=rates[0], down_rate=rates[1])
