"""The simulator: clients of a virtual world, trained on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedweave.core.records import NOTHING, Array, Carried, Cohort, Failure, Failures, Population, Replies
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput
from fedweave.engine.links import add_transfer_time, draw_arrivals
from fedweave.engine.pool.processes import Call, Pool, Workers
from fedweave.engine.pool.ray import RayActors
from fedweave.local.client_data import ClientData
from fedweave.local.submodels import SubmodelTrainer
from fedweave.local.torch.flat_module import build_module
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.local.trainer import EVALUATION_BATCH, Jobs, Trained, Trainer, attempt
from fedweave.round.memories import beginnings, shares, with_change
from fedweave.tasks.task import Sums, add_up
from fedweave.upload.everything import Everything
from fedweave.upload.send import Fleet, Kind, apply_upload, upload_rng

PATIENCE_SECONDS = 3.0  # starting workers costs about this much, so that is how long "auto" works alone first


class Simulator:
    """Trains cohorts and measures models, alone or with a pool of workers; the numbers do not depend on which."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        data: ClientData,
        solver: Solver,
        seed: int,
        workers: Pool,
        device: str = "cpu",
        upload: Upload | None = None,
        submodels: Sequence[Callable[[], nn.Module]] = (),
        skip: bool = False,
    ):
        """Prepare clients that train ``model``, or in turn one of the ``submodels`` of it.

        ``skip``: a client whose training raises an exception counts as one that did not answer.
        """
        self.seed, self.data, self._solver, self._upload = seed, data, solver, upload or Everything()
        self._skip = skip
        self._build = partial(_trainer, model, tuple(submodels), solver, seed, device)
        self._trainer = self._build(data)
        self.layout = self._trainer.layout
        whole = Fleet((Kind(self.layout),), np.zeros(len(data.parts), np.int64))
        self.fleet = self._trainer.fleet if isinstance(self._trainer, SubmodelTrainer) else whole
        self._workers = workers

    def train(
        self, round: int, x: Array, cohort: Cohort, population: Population, lr: float, has: Carried = NOTHING
    ) -> Replies:
        """Train the cohort from ``x``. Clients whose answer will be lost are not trained: nobody would know."""
        ids = cohort.ids
        received = draw_arrivals(self.seed, round, ids, population)
        rows = np.flatnonzero(received)
        updates = np.zeros((ids.size, x.size), np.float32)
        loss, first, variance = (np.full(ids.size, np.nan) for _ in range(3))
        begin, failed = beginnings(has, x, ids), list[Failure]()
        for some, trained in self._trained(round, x, ids[rows], population, lr, has, begin and begin.start[rows]):
            updates[rows[some]], loss[rows[some]], first[rows[some]], variance[rows[some]], failures = trained
            failed += failures
        received &= ~np.isin(ids, [failure.client for failure in failed])
        size = np.full(ids.size, x.nbytes * (2 if self._solver.uploads_memory else 1))
        replies = Replies(received, updates, population.steps[ids], loss, first, population.latency[ids], size)
        if failed:
            nobody = "" if received.any() else f"all {len(failed)} clients whose answers would have arrived failed"
            replies = replies._replace(failures=Failures(failed=tuple(sorted(failed)), abandoned=nobody))
        replies = replies._replace(variance=variance) if has.measure else replies
        replies = with_change(replies, self._solver, self.layout.parameters, has, ids, population, lr)
        replies = apply_upload(replies, self._upload, self.fleet, has, x, ids, begin, upload_rng(self.seed, round))
        return add_transfer_time(replies, ids, population, x, has)

    def rehearse(
        self, round: int, x: Array, ids: Array, population: Population, lr: float, has: Carried = NOTHING
    ) -> Array:
        """Return the updates these clients would send this round, whatever their links."""
        updates, begin = np.zeros((ids.size, x.size), np.float32), beginnings(has, x, ids)
        for some, trained in self._trained(round, x, ids, population, lr, has, begin and begin.start):
            updates[some] = trained.updates
        return updates

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return these clients' gradients at ``x`` on all their data."""
        found = np.zeros((ids.size, x.size), np.float32)
        calls: list[Call] = [(_gradient, (int(client),)) for client in ids]
        for n, gradient in self._each(x, calls):
            found[n] = gradient
        return found

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return the variance at ``x`` of the gradients of one pass over their batches, those of this round."""
        return self._numbers(x, [(_variance, (round, int(c), int(population.batch_size[c]))) for c in ids])

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss of ``x`` on each one's own data."""
        return self._numbers(x, [(_loss, (int(c),)) for c in ids])

    def _numbers(self, x: Array, calls: Sequence[Call]) -> Array:
        found = np.zeros(len(calls))
        for n, value in self._each(x, calls):
            found[n] = value
        return found

    def _trained(
        self, round: int, x: Array, ids: Array, population: Population, lr: float, has: Carried, starts: Array | None
    ) -> Iterator[tuple[Array, Trained]]:
        """Yield positions in ``ids`` and what those clients did, piece by piece; ``starts``: where each begins."""
        jobs = Jobs(
            client=ids,
            steps=population.steps[ids],
            batch_size=population.batch_size[ids],
            dispatch=np.full(ids.size, round),
            lr=np.full(ids.size, float(lr)),
            memory=None if has.memory is None else has.memory[ids],
            broadcast=None if has.memory is None else has.sent,
            share=shares(ids, population),
            starts=starts,
            measure=has.measure,
        )
        pieces = self._trainer.pieces(jobs)
        calls: list[Call] = [(attempt, (jobs.take(rows), self._skip)) for rows in pieces]
        for n, trained in self._each(x, calls):
            yield pieces[n], trained

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the test set."""
        n = self._trainer.test_size
        calls: list[Call] = [(_evaluate, (i, min(i + EVALUATION_BATCH, n))) for i in range(0, n, EVALUATION_BATCH)]
        slices: list[Sums] = [sums for _, sums in sorted(self._each(x, calls), key=lambda pair: pair[0])]
        return {"accuracy": np.nan, "class_accuracy": np.zeros(0), **self._trainer.task.finish(add_up(slices))}

    def _each(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) of the calls at ``x``, done here or by the workers."""
        if self._workers.worthwhile and self._known(len(calls)):
            yield from self._workers.map(x, calls)
            return
        begin = time.perf_counter()
        for n, (work, arguments) in enumerate(calls):
            yield n, work(self._trainer, x, *arguments)
        if len(calls) > 1:  # a round of one piece would gain nothing from workers
            self._workers.patience -= time.perf_counter() - begin

    def _known(self, pieces: int) -> bool:
        """Return whether the workers have this simulator's trainer, after giving it to them if they had not."""
        if self._workers.holds is self._build:
            return True
        most = max(pieces, -(-self._trainer.test_size // EVALUATION_BATCH))
        return self._workers.load(self._build, self.data, most)


def _gradient(trainer: Trainer, x: Array, client: int) -> Array:
    return trainer.gradient(x, client)


def _variance(trainer: Trainer, x: Array, dispatch: int, client: int, batch_size: int) -> float:
    return trainer.variance(x, dispatch, client, batch_size)


def _loss(trainer: Trainer, x: Array, client: int) -> float:
    return trainer.loss(x, client)


def _evaluate(trainer: Trainer, x: Array, begin: int, end: int) -> Sums:
    return trainer.evaluate(x, begin, end)


def _trainer(
    model: Callable[[], nn.Module],
    submodels: Sequence[Callable[[], nn.Module]],
    solver: Solver,
    seed: int,
    device: str,
    data: ClientData,
) -> TorchTrainer | SubmodelTrainer:
    if not submodels:
        return TorchTrainer(build_module(model, seed), data, solver, seed, device)
    parts, kind = [build_module(part, seed) for part in submodels], np.arange(len(data.parts)) % len(submodels)
    return SubmodelTrainer(build_module(model, seed), parts, kind, data, solver, seed, device)


def workers_for(workers: int | Literal["auto"], device: str, engine: Literal["local", "ray"] = "local") -> Pool:
    """Return the actors of a Ray cluster, or the processes to use: one per core, but none beside a GPU."""
    if engine == "ray":
        return RayActors(workers)
    if device != "cpu" or not Workers.supported:
        return Workers(1)
    if workers != "auto":
        return Workers(workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(cores, PATIENCE_SECONDS)


def choose_device(wanted: str, engine: Literal["local", "ray"] = "local") -> tuple[str, str]:
    """Return the device to train on and a sentence that says why."""
    if engine == "ray" and wanted == "auto":
        return "cpu", "cpu (Ray trains on CPUs)"
    if wanted == "cpu":
        return "cpu", "cpu, as asked"
    if torch.cuda.is_available():
        return "cuda", f"cuda ({torch.cuda.get_device_name(0)})"
    if wanted == "cuda":
        raise BadInput("--device cuda: torch sees no CUDA device on this machine. Use --device auto or cpu.")
    return "cpu", "cpu (torch sees no CUDA device)"
