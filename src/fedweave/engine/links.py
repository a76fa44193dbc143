"""The simulated links: whose answer arrives."""

from __future__ import annotations

from fedweave.randomness import Stream, borrow
from fedweave.records import Array, Population


def heard(seed: int, round: int, ids: Array, population: Population) -> Array:
    """Return which answers arrive (k,) bool. One draw per client and round, so company changes no luck."""
    fate = borrow(seed, round, Stream.LINK).random(population.size)
    return fate[ids] >= population.loss_rate[ids]
