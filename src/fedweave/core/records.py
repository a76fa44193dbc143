"""The nouns of a federated round. All arrays are NumPy; an update is the displacement ``y − x`` and the server adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedweave.core.html import html_table
from fedweave.core.vectors import keep_only_rows

if TYPE_CHECKING:
    from fedweave.core.flights import Landing

Array = NDArray[Any]
State = Mapping[str, Any]  # what a part remembers between rounds: arrays and Rows by name, stored without pickle

MOST_STEPS = 1_000_000  # of one participation: the positions of all its samples lie in memory
MOST_SECONDS = 1e15  # of one participation: a clock adds them up


class Table(Protocol):
    """One vector per client: what the lower layers need to know of ``tables.rows.Rows``."""

    @property
    def written(self) -> Array:
        """(N,) bool, which clients have one."""
        ...

    def __getitem__(self, ids: Array) -> Array:
        """Return the vectors (k, D) of these clients."""
        ...


@dataclass(frozen=True, repr=False)
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
    growing: bool = False  # whether more clients may come later

    @property
    def size(self) -> int:
        """Number of clients N."""
        return self.weight.size

    @cached_property
    def arrival_rate(self) -> Array:
        """(N,) 1 − q, chance that an answer arrives."""
        return 1 - self.loss_rate

    def ranges(self) -> dict[str, str]:
        """Return what is known of the clients in a line each: the range of every column."""
        there = int(self.available.sum())
        found = {"available": "all" if there == self.size else f"{there:,} of {self.size:,}"}
        for one in fields(self):
            column = getattr(self, one.name)
            if isinstance(column, np.ndarray) and one.name != "available" and column.size:
                form = "," if column.dtype.kind in "iu" else ".3g"
                low, high = f"{column.min():{form}}", f"{column.max():{form}}"
                found[one.name] = low if low == high else f"{low} to {high}"
        return found

    def __repr__(self) -> str:
        ranges = (f"{name.replace('_', ' ')} {text}" for name, text in self.ranges().items())
        return f"Population({self.size:,} clients: {', '.join(ranges)})"

    def _repr_html_(self) -> str:
        rows = [(name.replace("_", " "), text) for name, text in self.ranges().items()]
        return html_table(rows, title=f"{self.size:,} clients")


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
    updates: Array  # (k, D) float32, u_i = y_i − x; many large ones are the map of a file (``core.vectors``)
    steps: Array  # (k,) local steps done
    loss: Array  # (k,) mean training loss over the local steps; nan when nothing was heard
    first_gradient: Array  # (k,) norm of the first stochastic gradient, at x; nan when nothing was heard
    seconds: Array  # (k,) from asking to answer
    bytes_up: Array  # (k,) sent by the client, whether it arrived or not
    memory_change: Array | None = None  # (k, D) what each heard client adds to its memory; None: clients have none
    variance: Array | None = None  # (k,) of its stochastic gradients on the way; None unless the sampler needs it
    failures: Failures = NO_FAILURES
    mask: Array | None = None  # (k, D) bool, which entries each sent: the others are zero; None: everything
    kept: Array | None = None  # (k, …) what each heard client keeps for its next upload; None: nothing
    bytes_down: Array | None = None  # (k,) sent to each client; None: the whole model, and what travels with it
    first_loss: Array | None = None  # (k,) of the first batch, at x like the first gradient; nan or None: not reported
    squared_loss: Array | None = None  # (k,) mean squared loss of the samples over the local steps; likewise
    staleness: Array | None = None  # (k,) int, rounds since the model that each began with; None: there are none
    drift: Array | None = None  # (k, D) that model − the present one; None unless the aggregator needs it, or all zero
    lr: Array | None = None  # (k,) the learning rate that each was asked to use; None: that of the round

    def keep_only(self, rows: Array) -> Replies:
        """Return the replies with all rows but these (k,) bool lost."""

        change = None if self.memory_change is None else keep_only_rows(self.memory_change, rows)
        return self._replace(
            received=self.received & rows, updates=keep_only_rows(self.updates, rows), memory_change=change
        )


class ClientContext(NamedTuple):
    """What clients start with besides the model."""

    broadcast: Array | None = None  # (D,) a vector that the server sends to all
    memory: Table | None = None  # (N, D) what each client's solver remembers
    measure: bool = False  # whether clients measure the variance of their gradients on the way
    kept: Table | None = None  # (N, …) what each client's upload kept after its last participation
    budget: Array | None = None  # (k,) what the upload allocates to each of the cohort; None: nothing to allocate
    models: Callable[[Array], Array | None] | None = None  # ids -> the models (k, D) they are sent; None: all the same


NO_CONTEXT = ClientContext()


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
    """What clients can be asked about the model besides training; each answer costs them a pass over their data."""

    def losses(self, ids: Array) -> Array:
        """Return their mean loss (k,) on their own data."""
        ...

    def updates(self, ids: Array) -> Array:
        """Return the updates (k, D) that they would send this round: for oracles, a real fleet cannot tell."""
        ...

    def gradients(self, ids: Array) -> Array:
        """Return their true gradients (k, D): for oracles, a real fleet cannot tell."""
        ...

    def variances(self, ids: Array) -> Array:
        """Return the variance (k,) of the gradients of their batches: for oracles, a real fleet cannot tell."""
        ...

    def forget(self) -> None:
        """Drop answers that were kept: the round is planned."""


class NoProbes:
    """Probes where there are no clients to ask."""

    def losses(self, ids: Array) -> Array:
        raise RuntimeError("Clients can be probed only while a round is planned: there are none to ask here.")

    updates = gradients = variances = losses

    def forget(self) -> None:
        """There is nothing to drop."""


@dataclass(frozen=True)
class View:
    """The one read-only argument of every server stage."""

    round: int  # from 1
    x: Array  # (D,) float32, the global model
    population: Population
    layout: Layout
    lr: float  # of the clients this round
    effort_of: Callable[[Array], Array]  # steps -> ‖a‖₁ of the solver, at the nominal lr
    seed: int = 0  # for what a server stage draws at its own address; the clients of a real fleet know it
    secret: int | None = field(default=None, repr=False)  # for noise that clients must not know; None: ``seed`` does
    probes: Probes = field(default=NoProbes(), repr=False, compare=False)

    def lr_of(self, replies: Replies) -> Array:
        """Return the learning rate (k,) of each reply: of its own dispatch, where rounds overlap."""
        return np.full(replies.received.size, self.lr) if replies.lr is None else replies.lr

    @cached_property
    def effort(self) -> Array:
        """(N,) ‖a_i‖₁ of the planned steps; computed only for methods that ask."""
        return self.effort_of(self.population.steps)


@dataclass(frozen=True)
class Assignment:
    """What a round asks of its cohort: the first half of a round hands it to an engine, and to the second half."""

    view: View
    cohort: Cohort
    context: ClientContext = NO_CONTEXT
    number: int | None = None  # of the dispatch; None: that of the round, as long as each has one
    landing: Landing | None = None  # clients that were asked earlier, and land now; None: all are asked now

    @property
    def round(self) -> int:
        """The round, from 1."""
        return self.view.round

    @property
    def dispatch(self) -> int:
        """The number of this draw event, from 1; a client's randomness and luck go by it."""
        return self.view.round if self.number is None else self.number

    @property
    def x(self) -> Array:
        """(D,) the model that clients start from."""
        return self.view.x

    @property
    def population(self) -> Population:
        """The clients in this round."""
        return self.view.population

    @property
    def lr(self) -> float:
        """The clients' learning rate, calibrated if the experiment says so."""
        return self.view.lr

    def own_models(self, ids: Array) -> Array | None:
        """Return the model (k, D) that each of these clients starts from; None: all start from ``x``."""
        return None if self.context.models is None else self.context.models(ids)


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
    refusals: State = MappingProxyType({})  # where it is kept: each client's refused answers, and its last length
    flights: State = MappingProxyType({})  # who is under way, and the models they began with, where rounds overlap
    best: State = MappingProxyType({})  # the best evaluated model so far, as x, round and value; rounds do not see it
    fleet: State = MappingProxyType({})  # whose seat each client's is, and its samples, of a real fleet; likewise
