"""Which samples a client sees at each local step: fresh shuffles at its own address, partial last batches exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedweave.core.randomness import Stream, rngs_for
from fedweave.core.records import Array
from fedweave.local.trainer import Jobs


class Batches(NamedTuple):
    """The local steps of one participation."""

    where: Array  # (steps, batch_size) positions in the data set; rows are filled from the left, the rest is padding
    size: Array  # (steps,) how many of a row are real


def batches(seed: int, jobs: Jobs, parts: Sequence[Array]) -> Iterator[Batches]:
    """Yield the batches of each job: pass after pass over the client's samples, each pass in a new order."""
    rngs = rngs_for(seed, jobs.dispatch.tolist(), Stream.BATCHES, jobs.client.tolist())
    for client, steps, batch_size, rng in zip(jobs.client, jobs.steps, jobs.batch_size, rngs, strict=True):
        yield _batches(parts[client], int(steps), int(batch_size), rng)


def _batches(part: Array, steps: int, batch_size: int, rng: np.random.Generator) -> Batches:
    n, b = part.size, min(batch_size, part.size)
    per_pass = -(-n // b)
    passes = -(-steps // per_pass)
    order = np.zeros((passes, per_pass * b), np.int64)
    order[:, :n] = part
    rng.permuted(order[:, :n], axis=1, out=order[:, :n])
    size = np.full(passes * per_pass, b)
    size[per_pass - 1 :: per_pass] = n - (per_pass - 1) * b
    return Batches(order.reshape(-1, b)[:steps], size[:steps])
