"""Randomness is an address, not a stream: the same (seed, round, purpose, client) always gives the same numbers.

So results do not depend on the number of workers, on the order of replies, or on a restart. The generator is Philox, a
keyed block cipher in counter mode: the seed is the key and the address is the high part of the counter, so two
addresses can never overlap (each has 2⁶⁴ blocks of its own).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What the random numbers are for."""

    SAMPLER = 1
    SYSTEM = 2
    LINK = 3
    BATCHES = 4
    NOISE = 5  # dropout layers and the like
    PARTITION = 6
    MODEL = 7


def rng_for(seed: int, round: int, stream: Stream, client: int = 0) -> np.random.Generator:
    """Return the generator at this address."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, client, stream, round]))


def rngs_for(seed: int, round: int, stream: Stream, clients: Iterable[int]) -> Iterator[np.random.Generator]:
    """Yield the generator of each client in turn: one object re-addressed, so use it before asking for the next.

    Re-addressing costs 2 µs, a new generator 30 µs (NumPy first asks the system for entropy that we do not want).
    """
    philox = np.random.Philox(key=seed, counter=[0, 0, stream, round])
    rng, state = np.random.Generator(philox), philox.state
    for client in clients:
        state["state"]["counter"][1] = client
        philox.state = state
        yield rng
