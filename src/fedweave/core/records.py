"""The nouns of a federated round. All arrays are NumPy; an update is the displacement ``y − x`` and the server adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedweave.tables.rows import Rows

Array = NDArray[Any]
State = Mapping[str, Any]  # what a part remembers between rounds: arrays and Rows by name, stored without pickle


@dataclass(frozen=True)
class Population:
    """What the server knows of its N clients in one round."""

    weight: Array  # (N,) objective weight ω, sums to 1
    samples: Array  # (N,) local data sizes
    steps: Array  # (N,) local steps this round
    batch_size: Array  # (N,)
    loss_rate: Array  # (N,) q, chance that an answer never arrives
    latency: Array  # (N,) δ, seconds per participation
    available: Array  # (N,) bool, whether the client can be asked at all
    model_bytes: Array | None = None  # (N,) of the model that each client trains; None: not known
    covered: Array | None = None  # (N,) Σ_c min(C·share of class c, 1), in 1 … C: how well its data covers the classes
    up_rate: Array | None = None  # (N,) bit/s; ``latency`` is then that of whole models both ways. None: not known
    down_rate: Array | None = None  # (N,) bit/s

    @property
    def size(self) -> int:
        """Number of clients N."""
        return self.weight.size

    @cached_property
    def arrival_rate(self) -> Array:
        """(N,) 1 − q, chance that an answer arrives."""
        return 1 - self.loss_rate


@dataclass(frozen=True)
class Cohort:
    """k distinct clients in ascending order, and the law that drew them."""

    ids: Array  # (k,) who
    count: Array  # (k,) how often drawn: drawn twice trains once and counts twice
    expected: Array  # (k,) E[count]; nan when the law is unknown (greedy choices)
    probed: int = 0  # further clients that were sent the model, only to be asked how they do with it


SERVER = -1  # in the place of a client's number


class Failure(NamedTuple):
    """Why a client's answer was not used, or all of a round."""

    client: int  # or SERVER
    why: str
    traceback: str = ""  # where its own code failed

    def __str__(self) -> str:
        return f"{'server' if self.client == SERVER else f'client {self.client}'}: {self.why}"


class Failures(NamedTuple):
    """What went wrong while the clients were asked."""

    refused: tuple[Failure, ...] = ()  # answers that came but could not be used
    failed: tuple[Failure, ...] = ()  # answers that never came, or too late
    abandoned: str = ""  # why the round must not count at all


NO_FAILURES = Failures()


class Replies(NamedTuple):
    """What came back, aligned with the cohort row by row."""

    received: Array  # (k,) bool; a lost reply is a zero row
    updates: Array  # (k, D) float32, u_i = y_i − x
    steps: Array  # (k,) local steps done
    loss: Array  # (k,) mean training loss over the local steps; nan when nothing was heard
    first_gradient: Array  # (k,) norm of the first stochastic gradient, at x; nan when nothing was heard
    seconds: Array  # (k,) from asking to answer
    bytes_up: Array  # (k,) sent by the client, whether it arrived or not
    change: Array | None = None  # (k, D) what each heard client adds to its memory; None where clients have none
    variance: Array | None = None  # (k,) of its stochastic gradients on the way; None unless the sampler needs it
    failures: Failures = NO_FAILURES
    mask: Array | None = None  # (k, D) bool, which entries each sent: the others are zero; None: everything
    kept: Array | None = None  # (k, D) what each heard client goes on with, nan: the server's; None: nothing of its own
    bytes_down: Array | None = None  # (k,) sent to each client; None: the whole model, and what travels with it


class Carried(NamedTuple):
    """What clients have in hand beside the model when they begin."""

    sent: Array | None = None  # (D,) a vector that the server sends to all
    memory: Rows | None = None  # (N, D) what each client kept for itself
    measure: bool = False  # whether they are asked to measure the variance of their gradients on the way
    own: Rows | None = None  # (N, D) where each client goes on from, nan or not written: from the server's model
    dropout: Array | None = None  # (k,) share of its model that each of the cohort may leave out; None: send all


NOTHING = Carried()


@dataclass(frozen=True)
class Layout:
    """Where the named tensors of a model live in the flat vector: parameters first, then buffers (running averages)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: int  # entries [0, parameters) are trained; the rest are buffers

    @cached_property
    def sizes(self) -> list[int]:
        """Number of entries per tensor."""
        return [math.prod(s) for s in self.shapes]

    @cached_property
    def dim(self) -> int:
        """Length D of the flat vector."""
        return sum(self.sizes)

    def split(self, x: Array) -> dict[str, Array]:
        """Return the named tensors of a flat vector, as views."""
        ends = np.cumsum(self.sizes)
        return {
            n: x[e - k : e].reshape(s) for n, s, k, e in zip(self.names, self.shapes, self.sizes, ends, strict=True)
        }


class Probes(Protocol):
    """What clients can be asked of the model beside training; each answer costs them a pass over their data."""

    def losses(self, ids: Array) -> Array:
        """Return their mean loss (k,) on their own data."""
        ...

    def gradients(self, ids: Array) -> Array:
        """Return its gradient (k, D): for oracles, no fleet can do it."""
        ...

    def variances(self, ids: Array) -> Array:
        """Return the spread (k,) of the gradients of their batches around it."""
        ...


class _Unasked:
    """Where nobody is there to be asked."""

    def losses(self, ids: Array) -> Array:
        raise RuntimeError("This view has no clients to ask.")

    gradients = variances = losses


@dataclass(frozen=True)
class View:
    """The one read-only argument of every server stage."""

    round: int  # from 1
    x: Array  # (D,) float32, the global model
    population: Population
    layout: Layout
    lr: float  # of the clients this round
    effort_of: Callable[[Array], Array]  # steps -> ‖a‖₁ of the solver, at the nominal lr
    rehearse: Callable[[Array], Array]  # ids -> the updates (k, D) they would send: for oracles, no fleet can do it
    laws: list[Any] = field(default_factory=list, repr=False, compare=False)  # kept by Sampler.law_once
    seed: int = 0  # for noise that a server stage adds at its own address
    probes: Probes = field(default=_Unasked(), repr=False, compare=False)

    @cached_property
    def effort(self) -> Array:
        """(N,) ‖a_i‖₁ of the planned steps; computed only for methods that ask."""
        return self.effort_of(self.population.steps)


class ServerState(NamedTuple):
    """All that must survive a crash."""

    round: int  # rounds done
    x: Array
    clock: float  # simulated seconds
    sampler: State
    aggregator: State
    server: State
    clients: State = MappingProxyType({})  # what the simulated clients remember themselves
    upload: State = MappingProxyType({})
    trust: State = MappingProxyType({})  # how often each client's answer was refused, where that is counted
