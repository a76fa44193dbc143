"""Clients whose computing and links are drawn apart: seconds per local step, and Mbit/s in each direction."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import settings, shown
from fedweave.system.wireless import add_links
from fedweave.system.worlds import Rates

LEAST, MOST = 1e-9, 1e9  # of a median, an end of a range or a minimum
FORMS = "lognormal:MEDIAN:SIGMA, uniform:LOW:HIGH, pareto:LEAST:ALPHA or one number for all clients"
RANGES = {"lognormal": (0.0, 10.0), "uniform": (LEAST, MOST), "pareto": (0.1, MOST)}  # of the second value
MBIT = 1e6  # bit/s


class Spread(NamedTuple):
    """How a quantity is distributed over the clients."""

    law: Literal["lognormal", "uniform", "pareto"]
    first: float  # the median; the low end; the least value
    second: float  # σ of the logarithms; the high end; the exponent α of the tail P(X > x) = (least/x)^α

    def quantile(self, u: Array) -> Array:
        """Return the value below which the share ``u`` in (0, 1) of all clients lies."""
        if self.law == "uniform":
            return self.first + (self.second - self.first) * u
        if self.law == "pareto":
            return self.first * (1 - u) ** (-1 / self.second)
        from scipy.special import ndtri  # loading it takes longer than starting the command line

        return self.first * np.exp(self.second * ndtri(u))


def read_spread(given: Any) -> Spread:
    """Return a distribution from what it is written as, such as ``lognormal:0.1:0.5`` or ``0.1``."""
    parts: Any = given.split(":") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    try:
        law, first, second = ("uniform", *parts, *parts) if len(parts) == 1 else parts
        spread, (low, high) = Spread(law, float(first), float(second)), RANGES[law]
        low = max(low, spread.first) if law == "uniform" else low
        if LEAST <= spread.first <= MOST and low <= spread.second <= high:
            return spread
    except (TypeError, ValueError, KeyError):
        pass
    limits = f"values from {LEAST:g} to {MOST:g}, SIGMA from 0 to 10, ALPHA at least 0.1"
    raise ValueError(f"must be {FORMS}: {limits}. Got {shown(given)} instead.")


Spreads = Annotated[Spread, BeforeValidator(read_spread)]


@settings
class Devices(System):
    """Each client has a device and a link of its own, drawn once: seconds per local step, and Mbit/s up and down.

    A participation takes its steps × ``step_seconds``, and 8 × bytes over the rate in each direction. Distributions are
    written ``lognormal:MEDIAN:SIGMA``, ``uniform:LOW:HIGH``, ``pareto:LEAST:ALPHA``, or as one number for all clients.
    Loss rates are uniform on their range. The four are drawn independently, and a client's place in each distribution
    follows from the seed alone: other links leave the computing as it is. The defaults are ours, not measured.
    """

    step_seconds: Spreads = Spread("lognormal", 0.1, 0.5)
    up_mbit: Spreads = Spread("lognormal", 5.0, 1.0)
    down_mbit: Spreads = Spread("lognormal", 20.0, 1.0)
    loss_rate: Rates = (0.0, 0.0)

    def population(self, base: Population, round: int, seed: int) -> Population:
        laws = (self.step_seconds, self.up_mbit, self.down_mbit, Spread("uniform", *self.loss_rate))
        step, up, down, loss_rate = _drawn(laws, base.size, seed)
        now = add_links(base, base.steps * step, MBIT * up, MBIT * down)
        return replace(now, loss_rate=loss_rate)


@lru_cache(maxsize=2)  # the same every round, and cheap rounds would be slower without
def _drawn(laws: tuple[Spread, ...], clients: int, seed: int) -> list[Array]:
    """Return one value per client of each law."""
    u = rng_for(seed, 0, Stream.SYSTEM).random((len(laws), clients))
    np.clip(u, 2.0**-54, 1 - 2.0**-53, out=u)  # no quantile is infinite
    values = [law.quantile(row) for law, row in zip(laws, u, strict=True)]
    for column in values:
        column.setflags(write=False)
    return values
