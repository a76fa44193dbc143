"""The clients that a latency plan is for."""

from __future__ import annotations

from dataclasses import dataclass

from fedweave.core.records import Array


@dataclass(frozen=True)
class Clients:
    """What is measured of each client, in the order of its file."""

    name: tuple[str, ...]
    latency: Array  # (N,) δ, seconds
    samples: Array  # (N,)
    bound: Array  # (N,) G, of the norm of stochastic gradients
    assumed: tuple[str, ...] = ()  # columns that were not given: all clients are taken as equal in them

    @property
    def weight(self) -> Array:
        """Data shares d."""
        return self.samples / self.samples.sum()

    @property
    def data_factor(self) -> Array:
        """B = (d G)² of the latency paper."""
        return (self.weight * self.bound) ** 2
