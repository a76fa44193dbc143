"""What can be laid around any world: jitter of its seconds, and availability that correlates in time.

Worlds go by the number of the dispatch, which is the round, and not by the clock: a period and a mean duration are
counted in dispatches. Each layer is a pure function of (clients, round, seed); several can be laid around each other,
each kind once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import MOST_SECONDS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import settings
from fedweave.sample.fedcs import link_seconds
from fedweave.system.worlds import Uniform

Sigma = Annotated[float, Field(ge=0, le=3)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Period = Annotated[int, Field(ge=2)]
Duration = Annotated[float, Field(ge=1, le=1e9)]
TICK = 1e-9  # of a round: hours that are equal but for rounding are equal


def layers_of(system: System) -> Iterator[System]:
    """Yield a world and those inside it, the innermost last."""
    yield system
    inner: Any = getattr(system, "inner", None)
    if isinstance(inner, System):
        yield from layers_of(inner)


def _refuse_again(layer: System, inner: System) -> None:
    """Refuse a layer around another one of its kind: both would draw the same numbers."""
    name = type(layer).__name__
    if any(type(other) is type(layer) for other in layers_of(inner)):
        raise ValueError(f"{name} is inside another {name}, and both would draw the same numbers. Give it once.")


@settings
class Jittered(System):
    """The seconds of ``inner``, times factors of mean one that are drawn anew for every client and dispatch.

    The factors are log-normal, exp(σ z − σ²/2), with σ = ``compute`` for computing and σ = ``link`` for both transfers.
    Where ``inner`` knows no rates, a whole participation counts as computing.
    """

    inner: System = Uniform()
    compute: Sigma = 0.2
    link: Sigma = 0.2

    def __post_init__(self) -> None:
        _refuse_again(self, self.inner)

    def population(self, base: Population, round: int, seed: int) -> Population:
        p = self.inner.population(base, round, seed)
        sigma = np.array([[self.compute], [self.link]])
        z = rng_for(seed, round, Stream.JITTER).standard_normal((2, base.size))
        computing, sending = np.exp(sigma * z - sigma**2 / 2)
        link = sum(link_seconds(p))
        latency = np.maximum(p.latency - link, 0) * computing + link * sending
        changed = {"latency": np.minimum(latency, MOST_SECONDS)}
        if p.up_rate is not None and p.down_rate is not None:
            changed |= {"up_rate": p.up_rate / sending, "down_rate": p.down_rate / sending}
        return replace(p, **changed)


@settings
class DayNight(System):
    """``inner``, where each client is available for a ``share`` of every ``period`` rounds, by day.

    Client i's day begins ``spread`` · φ_i of a period earlier than that of a client with φ = 0. ``zones`` "drawn" draws
    φ uniform on [0, 1), once for each client; "ordered" has φ_i = i/N, so that where neighbours hold the same labels
    (as with the partition one-class:sorted) whole classes come and go. With ``spread`` 0 all clients sleep together.
    """

    inner: System = Uniform()
    period: Period = 24
    share: Share = 0.5
    zones: Literal["drawn", "ordered"] = "drawn"
    spread: Part = 1.0

    def __post_init__(self) -> None:
        _refuse_again(self, self.inner)

    def population(self, base: Population, round: int, seed: int) -> Population:
        p, n = self.inner.population(base, round, seed), base.size
        phase = np.arange(n) / n if self.zones == "ordered" else rng_for(seed, 0, Stream.PHASE).random(n)
        hour = np.mod(round - 1 + self.period * self.spread * phase + TICK, self.period)
        return replace(p, available=p.available & (hour < self.share * self.period))


@settings
class OnOff(System):
    """``inner``, where each client comes and goes by itself: ``up`` rounds available, ``down`` rounds not, on average.

    A stationary two-state Markov chain for every client: it goes with probability 1/up and returns with 1/down, so it
    is there a share π = up/(up + down) of the time, with the autocorrelation λ^k at lag k, λ = 1 − 1/up − 1/down.
    """

    inner: System = Uniform()
    up: Duration = 20.0
    down: Duration = 20.0

    def __post_init__(self) -> None:
        _refuse_again(self, self.inner)

    def population(self, base: Population, round: int, seed: int) -> Population:
        p = self.inner.population(base, round, seed)
        return replace(p, available=p.available & chain_at(round, self.up, self.down, base.size, seed))


@lru_cache(maxsize=64)  # rounds in turn have all but one or two of these times in common
def chain_at(time: int, up: float, down: float, clients: int, seed: int) -> Array:
    """Return the state (N,) bool of the clients' chains, without going through the times before.

    The state of every time is drawn at its own address, from states at other times: at 0 by the stationary law, at a
    power of two from half of it, h steps on, and elsewhere as the midpoint of a bridge between time − h and time + h,
    with h the largest power of two that divides the time. By the Markov property that is the law of the chain, with
    2 log₂ time draws at most. P_h(i → 1) = π + λ^h (i − π).
    """
    share, decay = up / (up + down), 1 - 1 / up - 1 / down

    def to_on(state: int, steps: int) -> float:
        return min(max(share + decay**steps * (state - share), 0.0), 1.0)

    h = time & -time
    if not time:
        chance: Any = share
    elif h == time:
        before = chain_at(time // 2, up, down, clients, seed)
        chance = np.where(before, *(to_on(i, time - time // 2) for i in (1, 0)))
    else:
        table = np.zeros((2, 2))  # by the states on both sides
        for i, j in np.ndindex(2, 2):
            on = to_on(i, h) * (to_on(1, h) if j else 1 - to_on(1, h))
            off = (1 - to_on(i, h)) * (to_on(0, h) if j else 1 - to_on(0, h))
            table[i, j] = on / (on + off) if on + off else 0.0  # zero: the two cannot both be
        sides = (chain_at(t, up, down, clients, seed).astype(np.intp) for t in (time - h, time + h))
        chance = table[tuple(sides)]
    state = rng_for(seed, time, Stream.ON_OFF).random(clients) < chance
    state.setflags(write=False)
    return state
