"""The role of a trainer: it trains pieces of a round's clients and measures models. Torch is one, others may follow."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedweave.core.records import Array, Failure, Layout
from fedweave.core.roles import Solver
from fedweave.tasks.task import Sums, Task
from fedweave.upload.codec import ModelFleet

EVALUATION_BATCH = 500  # samples of a slice; fixed, so that the sums do not depend on who computes them


WHILE = "While clients"  # begins the note on an exception in somebody's training


class Jobs(NamedTuple):
    """What clients are asked to do: arrays with one row per client."""

    client: Array  # (c,) int64
    steps: Array  # (c,) int64
    batch_size: Array  # (c,) int64
    dispatch: Array  # (c,) int64: the number of the request, at whose address a client's randomness lies
    lr: Array  # (c,) float64
    memory: Array | None = None  # (c, D) what each client kept from its last participation (SCAFFOLD, FedDyn)
    broadcast: Array | None = None  # (D,) the vector that the aggregator sends with the model
    share: Array | None = None  # (c,) N ω_i, the client's weight over the mean one; None: all equal
    starts: Array | None = None  # (c, D) where each begins; None: all at the model
    models: Array | None = None  # (c, D) the model that each is sent; None: all the same
    measure: bool = False  # whether to measure the variance of the gradients on the way
    version: Array | None = None  # (c,) each one's row where model and broadcast are stacks (v, D); None: one for all

    def take(self, rows: Array | Sequence[int] | slice) -> Jobs:
        """Return some of the rows, in this order."""
        if isinstance(rows, slice) and rows == ALL_ROWS:
            return self
        rows = rows if isinstance(rows, slice) else np.asarray(rows, np.int64)
        columns = {name: value[rows] for name in PER_CLIENT if (value := getattr(self, name)) is not None}
        return self._replace(**columns)


ALL_ROWS = slice(None)  # a piece with all jobs, in their order
PER_CLIENT = ("client", "steps", "batch_size", "dispatch", "lr", "memory", "share", "starts", "models", "version")


def of_each(x: Array, jobs: Jobs) -> Array:
    """Return the model, or broadcast, that the jobs are given: (D,) one for all of them, or (c, D) that of each."""
    return x if jobs.version is None else x[jobs.version]


def of_one(x: Array, jobs: Jobs, i: int) -> Array:
    """Return the model, or broadcast, that the i-th job is given (D,)."""
    return x if jobs.version is None else x[jobs.version[i]]


class Trained(NamedTuple):
    """What one piece of clients did."""

    updates: Array  # (c, D)
    loss: Array  # (c,) mean over the local steps
    first_gradient: Array  # (c,) norm of the first stochastic gradient
    variance: Array  # (c,) of the stochastic gradients on the way; nan unless asked for
    first_loss: Array  # (c,) of the first batch, where the client begins
    squared_loss: Array  # (c,) mean squared loss of the samples over the local steps; nan if only means are known
    failed: tuple[Failure, ...] = ()  # whose training failed: their rows are zero and nan


class Trainer(Protocol):
    """Trains clients from a given model and measures models; the same in the main process, in workers and on nodes."""

    @property
    def name(self) -> str:
        """What trains, as the manifest says: another one may have other last bits."""
        ...

    @property
    def layout(self) -> Layout:
        """The model's tensors in the flat vector."""
        ...

    @property
    def models(self) -> ModelFleet:
        """Which client trains which model: the whole one, or a part of it."""
        ...

    @property
    def solver(self) -> Solver:
        """How clients walk."""
        ...

    @property
    def seed(self) -> int:
        """Where the clients' randomness lies."""
        ...

    @property
    def task(self) -> Task:
        """The task, which makes metrics of the sums of ``evaluate``."""
        ...

    @property
    def test_size(self) -> int:
        """How many test samples there are: ``evaluate`` takes slices of them."""
        ...

    def pieces(self, jobs: Jobs) -> Sequence[Array | slice]:
        """Return the rows that train together, each row once: from jobs and network alone, so for any pool alike.

        ``[ALL_ROWS]`` is a round that is not worth a worker.
        """
        ...

    def train(self, x: Array, jobs: Jobs) -> Trained:
        """Train one piece from the model ``x``, or each from its own row of it (``of_each``); updates are y − x."""
        ...

    def gradients(self, x: Array, clients: Array) -> Array:
        """Return the gradient (k, D) of each client's whole loss at ``x``."""
        ...

    def variances(self, x: Array, dispatch: int, clients: Array, batch_size: Array) -> Array:
        """Return the variance (k,) at ``x`` of the gradients of one pass over each one's batches of this dispatch."""
        ...

    def losses(self, x: Array, clients: Array) -> Array:
        """Return the mean loss (k,) of ``x`` on each client's data."""
        ...

    def evaluate(self, x: Array, begin: int, end: int) -> Sums:
        """Return the task's sums over test samples [begin, end)."""
        ...

    def evaluate_clients(self, x: Array, clients: Array) -> list[Sums]:
        """Return the task's sums over each client's own test samples; an empty one for a client that has none."""
        ...


def attempt(trainer: Trainer, x: Array, jobs: Jobs, skip: bool) -> Trained:
    """Train a piece in which a user's code may fail: the error names the clients, or with ``skip`` they are left out.

    Of several that train together each is then tried alone, so that one failure does not cost the others their work.
    """
    try:
        return trainer.train(x, jobs)
    except (Exception, SystemExit) as error:
        clients = jobs.client.tolist()
        if not skip:
            error.add_note(f"{WHILE} {', '.join(map(str, clients))} trained in round {jobs.dispatch.max()}.")
            raise
        if len(clients) == 1:
            return _failed(x, clients[0], error)
    return joined([attempt(trainer, x, jobs.take([i]), skip) for i in range(len(clients))])


def joined(several: Sequence[Trained]) -> Trained:
    """Return several pieces of clients as one."""
    *columns, failed = zip(*several, strict=True)
    return Trained(*(np.concatenate(column) for column in columns), failed=tuple(f for some in failed for f in some))


def _failed(x: Array, client: int, error: BaseException) -> Trained:
    nothing = np.full(1, np.nan)
    why = f"its training failed: {traceback.format_exception_only(error)[0].strip()}"
    trace = "".join(traceback.format_exception(error))
    failure = Failure(client=client, why=why, traceback=trace)
    return Trained(
        updates=np.zeros((1, x.shape[-1]), x.dtype), loss=nothing, first_gradient=nothing, variance=nothing,
        first_loss=nothing, squared_loss=nothing, failed=(failure,),
    )  # fmt: skip
