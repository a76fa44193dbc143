"""Clients with radio links: seconds from cycles, bytes and rates (FedDD section 4.1 and table 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, PositiveFloat

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import MOST_SECONDS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, settings
from fedweave.system.worlds import check_range

Range = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(check_range)]


def shannon_rate(bandwidth: Array | float, power: Array | float, gain: Array | float, noise: float) -> Array:
    """Return the rate of a link in bit/s, B log₂(1 + p h / N₀) (FedDD eqs 8 and 10)."""
    return np.asarray(bandwidth * np.log2(1 + power * gain / noise))


def compute_seconds(base: Population, cycles: Array, frequency: Array) -> Array:
    """Return c b / f (FedDD eq. 7), with b the samples that a client processes in the round.

    The paper calls b the batch size of one epoch; a round has several epochs, and all their samples count here.
    """
    passes = base.steps / np.ceil(base.samples / base.batch_size)
    return cycles * passes * base.samples / frequency


def add_links(base: Population, compute: Array, up: Array, down: Array) -> Population:
    """Return the clients with their links; ``latency`` is for a whole model down and up (eqs 9, 11 and 12)."""
    if base.model_bytes is None:
        raise BadInput("A wireless world needs the size of the model. Give Population.model_bytes.")
    latency = compute + 8 * base.model_bytes / up + 8 * base.model_bytes / down
    if not (latency <= MOST_SECONDS).all():
        raise BadInput(
            f"A participation takes at most {MOST_SECONDS:g} s. With these links one takes {latency.max():g} s."
        )
    return replace(base, latency=latency, up_rate=up, down_rate=down)


@settings
class Wireless(System):
    """Rates, processors and cycles per sample are drawn once for each client, uniform on their ranges.

    The defaults are FedDD's table 4. Its rates are low: a model of a megabyte takes half an hour to two hours; only
    ratios of times matter in comparisons. ``fading``: rates are redrawn every round.
    """

    up_rate: Range = (1e3, 5e3)  # bit/s
    down_rate: Range = (4e4, 2e5)  # bit/s
    frequency: Range = (1e9, 1e10)  # cycles/s
    cycles: Range = (1e6, 1e7)  # per sample
    fading: bool = False

    def population(self, base: Population, round: int, seed: int) -> Population:
        device, link = _uniform_numbers(base.size, 2, 2, round if self.fading else 0, seed)
        frequency, cycles = (
            _scale_to_range(ends, u) for ends, u in zip((self.frequency, self.cycles), device, strict=True)
        )
        up, down = (_scale_to_range(ends, u) for ends, u in zip((self.up_rate, self.down_rate), link, strict=True))
        return add_links(base, compute_seconds(base, cycles, frequency), up, down)


@settings
class Shannon(System):
    """As Wireless, with rates by Shannon's formula from bandwidth, power, gain and noise (FedDD eqs 8 and 10).

    Gain (the same both ways) is drawn once for each client, uniform in decibels; with ``fading``, every round.
    """

    up_bandwidth: PositiveFloat = 1e6  # Hz
    down_bandwidth: PositiveFloat = 2e7  # Hz
    power: PositiveFloat = 0.1  # W, of a client
    server_power: PositiveFloat = 10.0  # W
    gain: Range = (1e-13, 1e-9)
    noise: PositiveFloat = 4e-15  # W: −174 dBm/Hz over a megahertz
    frequency: Range = (1e9, 1e10)  # cycles/s
    cycles: Range = (1e6, 1e7)  # per sample
    fading: bool = False

    def population(self, base: Population, round: int, seed: int) -> Population:
        device, (u,) = _uniform_numbers(base.size, 2, 1, round if self.fading else 0, seed)
        frequency, cycles = (
            _scale_to_range(ends, d) for ends, d in zip((self.frequency, self.cycles), device, strict=True)
        )
        gain = self.gain[0] * (self.gain[1] / self.gain[0]) ** u
        up = shannon_rate(self.up_bandwidth, self.power, gain, self.noise)
        down = shannon_rate(self.down_bandwidth, self.server_power, gain, self.noise)
        return add_links(base, compute_seconds(base, cycles, frequency), up, down)


def _uniform_numbers(clients: int, device: int, link: int, round: int, seed: int) -> tuple[Array, Array]:
    """Return uniform numbers for the devices, drawn once, and for the links, drawn at ``round`` (0: once)."""
    first = rng_for(seed, 0, Stream.SYSTEM)
    devices, links = first.random((device, clients)), first.random((link, clients))
    return devices, rng_for(seed, round, Stream.SYSTEM).random((link, clients)) if round else links


def _scale_to_range(ends: tuple[float, float], u: Array) -> Array:
    return ends[0] + (ends[1] - ends[0]) * u
