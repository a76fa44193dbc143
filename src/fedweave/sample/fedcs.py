"""FedCS (Nishio and Yonetani): the clients with the fastest links, as many as a deadline or budget allows."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import empty_cohort

Share = Annotated[float, Field(gt=0, le=1)]


@settings
class Deadline(Sampler):
    """The clients with the shortest link times, as many as one of three limits allows.

    ``per_round``: this number. ``keep``: as many as hold this share of all clients' model bytes, which is how FedDD
    compares FedCS under the same budget. ``seconds``: the authors' rule, a round that meets a deadline when clients
    compute in parallel and upload one after another: add the client that lengthens the round least while the round
    fits; if none fits, ask the fastest alone. (The virtual clock lets uploads overlap, so such a round ends earlier.)
    With constant links the same clients are chosen every round, so the data of the others is never learned.
    """

    per_round: PositiveInt | None = None
    keep: Share | None = None
    seconds: PositiveFloat | None = None
    law_known: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if sum(limit is not None for limit in (self.per_round, self.keep, self.seconds)) != 1:
            raise ValueError("Give one of 'per_round', 'keep' and 'seconds' to Deadline.")

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        p, available = view.population, np.flatnonzero(view.population.available)
        if not available.size:
            return empty_cohort()
        up, down = link_seconds(p)
        if self.seconds is not None:
            chosen = choose_within(
                self.seconds, p.latency[available] - up[available] - down[available], up[available], down[available]
            )
        else:
            link = up + down if p.up_rate is not None else p.latency
            order = np.argsort(link[available], kind="stable")
            chosen = order[: self.per_round or affordable(_bytes(p)[available][order], self.keep or 1.0)]
        ids = np.sort(available[chosen])
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=np.full(ids.size, np.nan))


def link_seconds(population: Population) -> tuple[Array, Array]:
    """Return the seconds (N,) to upload and to download a whole model; zero where rates are unknown."""
    if population.up_rate is None or population.down_rate is None:
        return np.zeros(population.size), np.zeros(population.size)
    bits = 8 * _bytes(population)
    return bits / population.up_rate, bits / population.down_rate


def affordable(sizes: Array, keep: float) -> int:
    """Return how many of these clients, in order, hold at most the share ``keep`` of all bytes; at least one."""
    return max(int(np.searchsorted(np.cumsum(sizes), keep * sizes.sum() * (1 + 1e-12), side="right")), 1)


def choose_within(deadline: float, compute: Array, up: Array, down: Array) -> Array:
    """Return the clients of FedCS's Algorithm 3: greedily add the client that lengthens the round least, while it fits.

    The model is sent to all at once, which takes as long as the slowest download; all compute, then upload in turn.
    """
    chosen: list[int] = []
    left, elapsed, sent = np.ones(up.size, bool), 0.0, 0.0
    while left.any():
        added = np.maximum(down - sent, 0) + up + np.maximum(compute - elapsed, 0)
        i = int(np.argmin(np.where(left, added, np.inf)))
        left[i] = False
        after = elapsed + up[i] + max(compute[i] - elapsed, 0.0)
        if max(sent, down[i]) + after <= deadline:
            chosen, elapsed, sent = [*chosen, i], after, max(sent, down[i])
    return np.array(chosen or [int(np.argmin(compute + up + down))])


def _bytes(population: Population) -> Array:
    return np.ones(population.size) if population.model_bytes is None else population.model_bytes
