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

from fedweave.core.records import Array, Assignment, Failure, Failures, Population, Replies
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput
from fedweave.engine.links import add_transfer_time, draw_arrivals
from fedweave.engine.pool.processes import Call, Pool, Workers
from fedweave.engine.pool.ray import RayActors
from fedweave.local.batches import Job
from fedweave.local.submodels import FleetTrainer
from fedweave.local.torch.flat_module import build_module
from fedweave.local.torch.threads import one_thread
from fedweave.local.torch.trainer import EVALUATION_BATCH, ClientData, Score, TorchTrainer
from fedweave.local.trainer import Piece, Recalled, Trained
from fedweave.round.memories import relative_weights, with_memory_change
from fedweave.upload.everything import Everything
from fedweave.upload.send import Fleet, Kind, apply_upload, start_vectors

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
        self.fleet = self._trainer.fleet if isinstance(self._trainer, FleetTrainer) else whole
        self._workers = workers

    def train(self, assignment: Assignment) -> Replies:
        """Train the cohort. Clients whose answers will be lost are not trained: it would change nothing."""
        ids, population, x = assignment.cohort.ids, assignment.population, assignment.x
        received = draw_arrivals(self.seed, assignment.round, ids, population)
        rows = np.flatnonzero(received)
        updates = np.zeros((ids.size, x.size), np.float32)
        loss, first, variance = (np.full(ids.size, np.nan) for _ in range(3))
        begin, failed = start_vectors(assignment, ids), list[Failure]()
        for some, trained in self._trained(assignment, ids[rows], begin and begin.start[rows]):
            updates[rows[some]], loss[rows[some]], first[rows[some]], variance[rows[some]], failures = trained
            failed += failures
        received &= ~np.isin(ids, [failure.client for failure in failed])
        size = np.full(ids.size, x.nbytes * (2 if self._solver.uploads_memory else 1))
        replies = Replies(received, updates, population.steps[ids], loss, first, population.latency[ids], size)
        if failed:
            nobody = "" if received.any() else f"all {len(failed)} clients whose answers would have arrived failed"
            replies = replies._replace(failures=Failures(failed=tuple(sorted(failed)), abandoned=nobody))
        replies = replies._replace(variance=variance) if assignment.context.measure else replies
        replies = with_memory_change(replies, self._solver, assignment)
        replies = apply_upload(replies, self._upload, self.fleet, assignment, begin)
        return add_transfer_time(replies, assignment)

    def rehearse(self, assignment: Assignment) -> Array:
        """Return the updates that the cohort would send, whatever its links."""
        ids, x = assignment.cohort.ids, assignment.x
        updates, begin = np.zeros((ids.size, x.size), np.float32), start_vectors(assignment, ids)
        for some, trained in self._trained(assignment, ids, begin and begin.start):
            updates[some] = trained.updates
        return updates

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return these clients' gradients at ``x`` on all their data."""
        found = np.zeros((ids.size, x.size), np.float32)
        calls: list[Call] = [("gradient", (int(client),)) for client in ids]
        for n, gradient in self._each(x, calls):
            found[n] = gradient
        return found

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return the variance at ``x`` of the gradients of one pass over their batches, those of this round."""
        return self._numbers(x, [("variance", (round, int(c), int(population.batch_size[c]))) for c in ids])

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss of ``x`` on each one's own data."""
        return self._numbers(x, [("loss", (int(c),)) for c in ids])

    def _numbers(self, x: Array, calls: Sequence[Call]) -> Array:
        found = np.zeros(len(calls))
        for n, value in self._each(x, calls):
            found[n] = value
        return found

    def _trained(self, assignment: Assignment, ids: Array, starts: Array | None) -> Iterator[tuple[list[int], Trained]]:
        """Yield positions in ``ids`` and what those clients did, piece by piece; ``starts``: where each begins."""
        population, has, round, lr = assignment.population, assignment.context, assignment.round, assignment.lr
        jobs = [Job(int(c), int(population.steps[c]), int(population.batch_size[c])) for c in ids]
        chunks = self._trainer.chunks(jobs, self._workers.count or 1) if jobs else []

        def recalled(some: Array) -> Recalled | None:
            return (
                None
                if has.memory is None
                else Recalled(has.memory[some], has.broadcast, relative_weights(some, population))
            )

        def piece(c: list[int]) -> Piece:
            own = None if starts is None else starts[c]
            return Piece(round, [jobs[i] for i in c], lr, recalled(ids[c]), has.measure, own)

        calls: list[Call] = [("attempt", (piece(c), self._skip)) for c in chunks]
        for n, trained in self._each(assignment.x, calls):
            yield chunks[n], trained

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the test set."""
        n = len(self.data.test_y)
        calls: list[Call] = [("evaluate", (i, min(i + EVALUATION_BATCH, n))) for i in range(0, n, EVALUATION_BATCH)]
        scores: list[Score] = [score for _, score in sorted(self._each(x, calls), key=lambda pair: pair[0])]
        loss = sum(score.loss for score in scores) / n
        if not self.data.classes:
            return {"accuracy": np.nan, "loss": loss, "class_accuracy": np.zeros(0)}
        correct, count = (np.sum([getattr(s, f) for s in scores], axis=0) for f in ("correct", "total"))
        each = np.divide(correct, count, out=np.full(count.size, np.nan), where=count > 0)
        return {"accuracy": float(correct.sum() / n), "loss": loss, "class_accuracy": each}

    def _each(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) of the calls at ``x``, done here or by the workers."""
        if self._workers.worthwhile and self._known(len(calls)):
            yield from self._workers.map(x, calls)
            return
        begin = time.perf_counter()
        with one_thread():
            for n, (name, args) in enumerate(calls):
                yield n, getattr(self._trainer, name)(x, *args)
        if len(calls) > 1:  # a round of one piece would gain nothing from workers
            self._workers.patience -= time.perf_counter() - begin

    def _known(self, pieces: int) -> bool:
        """Return whether the workers have this simulator's trainer, after giving it to them if they had not."""
        if self._workers.holds is self._build:
            return True
        most = max(pieces, -(-len(self.data.test_y) // EVALUATION_BATCH))
        return self._workers.load(self._build, self.data, most)


def _trainer(
    model: Callable[[], nn.Module],
    submodels: Sequence[Callable[[], nn.Module]],
    solver: Solver,
    seed: int,
    device: str,
    data: ClientData,
) -> TorchTrainer | FleetTrainer:
    if not submodels:
        return TorchTrainer(build_module(model, seed), data, solver, seed, device)
    parts, kind = [build_module(part, seed) for part in submodels], np.arange(len(data.parts)) % len(submodels)
    return FleetTrainer(build_module(model, seed), parts, kind, data, solver, seed, device)


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
