"""The simulator: clients of a virtual world, whatever trains them, alone or with a pool of workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedweave.client.bytes import download_bytes, upload_bytes
from fedweave.client.participate import Kept, participate
from fedweave.core.flights import Ended, Flights, Landing, Sent
from fedweave.core.records import NO_FAILURES, Array, Assignment, Failure, Failures, Population, Replies
from fedweave.core.roles import Scores, Upload
from fedweave.engine.links import draw_arrivals, next_landing, participation_seconds
from fedweave.engine.pool.protocol import Build, Call, Pool
from fedweave.local.client_data import ClientData
from fedweave.local.trainer import ALL_ROWS, EVALUATION_BATCH, Jobs, Trainer
from fedweave.round.memories import relative_weights
from fedweave.tables.spool import Memory, Spool
from fedweave.tasks.task import Sums, add_up
from fedweave.upload.codec import check_decoded
from fedweave.upload.everything import Everything

PROBES_PER_WORKER = 4  # pieces into which probes are cut for each worker, so that none waits long for the others


class Received(NamedTuple):
    """What the server has of a piece of clients after decoding; fields as in ``Replies``."""

    updates: Array
    loss: Array
    first_gradient: Array
    first_loss: Array
    squared_loss: Array
    variance: Array | None = None
    memory_change: Array | None = None
    mask: Array | None = None
    kept: Array | None = None
    failed: tuple[Failure, ...] = ()


class _Later(NamedTuple):
    """An evaluation that waits for the next calls at its model."""

    x: Array
    calls: list[Call]
    found: dict[int, Sums]  # by slice; empty until all of them are there


class Simulator:
    """Trains cohorts and measures models; the numbers do not depend on the pool."""

    def __init__(
        self,
        trainer: Trainer,
        upload: Upload | None = None,
        pool: Pool | None = None,
        build: Build | None = None,
        data: ClientData | None = None,
        skip: bool = False,
    ):
        """Simulate the clients of a trainer; a pool makes its own copies of it by ``build(data)``.

        ``skip``: a client whose training raises an exception counts as one that did not answer.
        """
        self.trainer, self.layout, self.seed, self.models = trainer, trainer.layout, trainer.seed, trainer.models
        self._upload, self._skip = upload or Everything(), skip
        self._pool, self._build, self._data = pool, build, data
        self._later: _Later | None = None
        self._memory = Memory()  # of updates, for one round after another

    def train(self, assignment: Assignment) -> Replies:
        """Train the cohort. Clients whose answers will be lost are not trained: it would change nothing."""
        ids, landing = assignment.cohort.ids, assignment.landing
        received, seconds, up, down = self.send(assignment) if landing is None else landing.sent
        found = _merge(assignment, self._participate(assignment, received.nonzero()[0], _receive), self._memory)
        if found.failed:
            received = received & ~np.isin(ids, [failure.client for failure in found.failed])
            for rows in (found.memory_change, found.mask):  # a lost reply is a zero row
                if rows is not None:
                    rows[~received] = 0
        return Replies(
            received=received,
            updates=found.updates,
            steps=assignment.population.steps[ids],
            loss=found.loss,
            first_gradient=found.first_gradient,
            seconds=seconds,
            bytes_up=up,
            memory_change=found.memory_change,
            variance=found.variance,
            failures=_failures(found.failed, received, landing),
            mask=None if found.mask is None or found.mask[received].all() else found.mask,
            kept=found.kept,
            bytes_down=down,
            first_loss=found.first_loss,
            squared_loss=found.squared_loss,
        )

    def send(self, assignment: Assignment) -> Sent:
        """Return what a dispatch will bring and cost: links, bytes and seconds are known before anyone trains."""
        arrives = draw_arrivals(self.seed, assignment.dispatch, assignment.cohort.ids, assignment.population)
        up = upload_bytes(assignment, self._upload, self.trainer.solver, self.models)
        down = download_bytes(assignment, self._upload, self.models)
        return Sent(arrives, participation_seconds(assignment, up, down), up, down)

    def wait(self, flights: Flights, enough: float, until: float) -> Ended:
        """Return which flights end next; time is virtual, so nobody waits."""
        return next_landing(flights, enough, until)

    def rehearse(self, assignment: Assignment) -> Array:
        """Return the updates that the cohort would send, whatever its links."""
        everyone = np.arange(assignment.cohort.ids.size)
        return _merge(assignment, self._participate(assignment, everyone, _rehearse), self._memory).updates

    def _participate(
        self, assignment: Assignment, rows: Array, work: Callable[..., Received]
    ) -> Iterator[tuple[Array | slice, Received]]:
        """Yield rows of the cohort and what the server receives of those clients, piece by piece."""
        if not rows.size:
            return
        context, everyone = assignment.context, rows.size == assignment.cohort.ids.size
        ids = assignment.cohort.ids if everyone else assignment.cohort.ids[rows]
        jobs, budget = _jobs(assignment, ids, rows), None if context.budget is None else context.budget[rows]
        x = assignment.x if assignment.landing is None else assignment.landing.x
        if (own := assignment.own_models(ids)) is not None:  # a version of the model for each
            x, jobs = own, jobs._replace(version=np.arange(ids.size))
        kept = None if context.kept is None else Kept(context.kept[ids], context.kept.written[ids])
        pieces, calls = self.trainer.pieces(jobs), []
        work = partial(work, upload=self._upload, skip=self._skip)  # the same for all, so it is pickled once
        for some in pieces:
            of_some = None if budget is None else budget[some], None if kept is None else kept.take(some)
            calls.append((work, (jobs.take(some), *of_some)))
        together = isinstance(pieces[0], slice)  # not worth a worker
        for n, piece in self._here(x, calls) if together else self._each(x, calls):
            yield pieces[n] if everyone and isinstance(pieces[n], slice) else rows[pieces[n]], piece

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return these clients' gradients at ``x`` on all their data."""
        return self._probe(x, [(_gradients, (some,)) for some in self._shares(ids)], np.zeros((0, x.size), x.dtype))

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return the variance at ``x`` of the gradients of one pass over their batches, those of this round."""
        shares = self._shares(ids)
        return self._probe(x, [(_variances, (round, some, population.batch_size[some])) for some in shares])

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss of ``x`` on each one's own data."""
        return self._probe(x, [(_losses, (some,)) for some in self._shares(ids)])

    def _shares(self, ids: Array) -> list[Array]:
        """Cut clients that are only probed into shares for the pool; each one's answer is its own."""
        count = PROBES_PER_WORKER * (self._pool.count or 1) if self._pool and self._pool.worthwhile else 1
        return np.array_split(ids, min(count, ids.size)) if ids.size else []

    def _probe(self, x: Array, calls: Sequence[Call], nothing: Array | None = None) -> Array:
        found = sorted(self._each(x, calls), key=lambda pair: pair[0])
        return np.concatenate([np.zeros(0) if nothing is None else nothing, *(answer for _, answer in found)])

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the common test set."""
        return self._finished(dict(self._each(x, self._slices())))

    def evaluate_later(self, x: Array) -> Scores:
        """Return the same, or how to get it: workers do it beside the next calls at ``x``, which are handed out first.

        So nobody is idle while the last of a round train.
        """
        if self._pool is None or not self._pool.worthwhile:
            return self.evaluate(x)
        later = self._later = _Later(x, self._slices(), {})
        return lambda: self._scores(later)

    def _scores(self, later: _Later) -> Mapping[str, Any]:
        if not later.found:  # nobody has called at this model since
            self._later = None
            later.found.update(self._each(later.x, later.calls))
        return self._finished(later.found)

    def _slices(self) -> list[Call]:
        n = self.trainer.test_size
        return [(_evaluate, (i, min(i + EVALUATION_BATCH, n))) for i in range(0, n, EVALUATION_BATCH)]

    def _finished(self, slices: Mapping[int, Sums]) -> Mapping[str, Any]:
        found = self.trainer.task.finish(add_up([slices[n] for n in range(len(slices))]))
        return {"accuracy": np.nan, "class_accuracy": np.zeros(0), **found}

    def evaluate_clients(self, x: Array, ids: Array) -> Array:
        """Return the task's primary metric of ``x`` on each one's own test samples; nan for those who have none."""
        return self._probe(x, [(_evaluate_clients, (some,)) for some in self._shares(ids)])

    def _each(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) of the calls at ``x``, done here or by the pool."""
        pool = self._pool
        if pool is not None and pool.worthwhile and self._load(pool, len(calls)):
            yield from self._map(pool, x, calls)
            return
        begin = time.perf_counter()
        yield from self._here(x, calls)
        if pool is not None and len(calls) > 1:  # a round of one piece would gain nothing from workers
            pool.patience -= time.perf_counter() - begin

    def _here(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        return ((n, work(self.trainer, x, *arguments)) for n, (work, arguments) in enumerate(calls))

    def _map(self, pool: Pool, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) of the calls; whatever is to be evaluated at the same model is done behind them.

        Calls at several versions of the model take one more along.
        """
        later, self._later = self._later, None
        if later is None or (x.ndim == 1 and not np.array_equal(later.x, x)):
            yield from pool.map(x, calls)
            return
        behind = later.calls
        if x.ndim == 2:
            x, behind = np.vstack([x, later.x]), [(_at_last, call) for call in behind]
        slices: dict[int, Sums] = {}
        for n, result in pool.map(x, [*calls, *behind]):
            if n < len(calls):
                yield n, result
            else:
                slices[n - len(calls)] = result
        later.found.update(slices)

    def _load(self, pool: Pool, pieces: int) -> bool:
        """Return whether the pool has this simulator's trainer, after giving it to the pool if it had not."""
        if self._build is None or self._data is None:
            return False
        if pool.holds is self._build:
            return True
        return pool.load(self._build, self._data, max(pieces, -(-self.trainer.test_size // EVALUATION_BATCH)))


def _jobs(assignment: Assignment, ids: Array, rows: Array) -> Jobs:
    context, p, landing = assignment.context, assignment.population, assignment.landing
    dispatch, lr, version = np.full(ids.size, assignment.dispatch), np.full(ids.size, float(assignment.lr)), None
    if landing is not None:
        dispatch, lr = landing.flights.dispatch[rows], landing.flights.lr[rows]
        version = None if landing.version is None else landing.version[rows]
    return Jobs(
        client=ids,
        steps=p.steps[ids],
        batch_size=p.batch_size[ids],
        dispatch=dispatch,
        lr=lr,
        memory=None if context.memory is None else context.memory[ids],
        broadcast=None if context.memory is None else context.broadcast,
        share=None if context.memory is None else relative_weights(ids, p),
        measure=context.measure,
        version=version,
    )


def _merge(assignment: Assignment, pieces: Iterator[tuple[Array | slice, Received]], memory: Memory) -> Received:
    """Return what was received of the whole cohort, from pieces with their rows; the rows of the others are empty.

    The updates lie in ``memory``.
    """
    k, x, context, failed = assignment.cohort.ids.size, assignment.x, assignment.context, []
    updates, nothing = Spool((k, x.size), x.dtype, memory), np.full(k, np.nan)
    columns: dict[str, Array] = {name: nothing.copy() for name in _ALWAYS}
    if context.measure:
        columns["variance"] = nothing.copy()
    if context.memory is not None:
        columns["memory_change"] = np.zeros((k, x.size), x.dtype)
    for rows, piece in pieces:
        if isinstance(rows, slice) and rows == ALL_ROWS:
            return piece
        failed += piece.failed
        updates.put(rows, piece.updates)
        for name in _COLUMNS:
            values: Array | None = getattr(piece, name)
            if values is not None:
                if name not in columns:  # of uploads: a mask, or what clients keep
                    columns[name] = np.full((k, x.size), False if name == "mask" else np.nan, values.dtype)
                columns[name][rows] = values
    return Received(updates=updates.matrix(), **columns, failed=tuple(sorted(failed)))


_COLUMNS = Received._fields[1:-1]  # all but "updates" and "failed"
_ALWAYS = _COLUMNS[:4]  # what every client reports


def _failures(failed: Sequence[Failure], received: Array, landing: Landing | None) -> Failures:
    given_up = () if landing is None else landing.given_up()
    if not failed and not given_up:
        return NO_FAILURES
    all_failed = failed and not received.any()
    nobody = f"all {len(failed)} clients whose answers would have arrived failed" if all_failed else ""
    return Failures(failed=(*failed, *given_up), abandoned=nobody)


def _at_last(trainer: Trainer, x: Array, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Do a call at the last of several models."""
    return work(trainer, x[-1], *arguments)


def _receive(
    trainer: Trainer, x: Array, jobs: Jobs, budget: Array | None, kept: Kept | None, *, upload: Upload, skip: bool
) -> Received:
    """Have a piece of clients participate, and decode what they send as the server would."""
    answers, models = participate(trainer, x, jobs, upload, budget, kept, skip), trainer.models
    trained, updates, mask, keep = answers.trained, answers.trained.updates, None, None
    variance, numbers = trained.variance if jobs.measure else None, {n: getattr(trained, n) for n in _ALWAYS}
    if answers.parcels is None and not models.is_mixed:
        return Received(
            updates, **numbers, variance=variance, memory_change=answers.memory_change, failed=trained.failed
        )
    if answers.parcels is not None:
        updates, keep = np.zeros_like(updates), np.full(updates.shape, np.nan, x.dtype) if upload.keeps else None
    if models.is_mixed or (answers.parcels is not None and upload.masks):
        mask = np.ones(updates.shape, bool)
    for i, client in enumerate(jobs.client.tolist()):
        model, sent = models.of(client, int(jobs.dispatch[i])), None
        if answers.parcels is not None:
            part, sent = check_decoded(upload.decode(answers.parcels[i].payload, model), upload, model)
            updates[i] = model.whole(part, x.shape[-1], rest=0)
            if keep is not None and (own := answers.parcels[i].kept) is not None:
                keep[i] = model.whole(own, x.shape[-1], rest=np.nan)
        if mask is not None:
            sent = np.ones(model.layout.dim, bool) if sent is None else sent
            mask[i] = model.whole(sent, x.shape[-1], rest=False)
    return Received(
        updates=updates,
        **numbers,
        variance=variance,
        memory_change=answers.memory_change,
        mask=mask,
        kept=keep,
        failed=trained.failed,
    )


def _rehearse(
    trainer: Trainer, x: Array, jobs: Jobs, budget: Array | None, kept: Kept | None, *, upload: Upload, skip: bool
) -> Received:
    """Have a piece of clients train, and take their updates as they are."""
    trained = participate(trainer, x, jobs, upload, budget, kept, skip).trained
    return Received(trained.updates, **{name: getattr(trained, name) for name in _ALWAYS}, failed=trained.failed)


def _gradients(trainer: Trainer, x: Array, clients: Array) -> Array:
    return trainer.gradients(x, clients)


def _variances(trainer: Trainer, x: Array, dispatch: int, clients: Array, batch_size: Array) -> Array:
    return trainer.variances(x, dispatch, clients, batch_size)


def _losses(trainer: Trainer, x: Array, clients: Array) -> Array:
    return trainer.losses(x, clients)


def _evaluate(trainer: Trainer, x: Array, begin: int, end: int) -> Sums:
    return trainer.evaluate(x, begin, end)


def _evaluate_clients(trainer: Trainer, x: Array, clients: Array) -> Array:
    task, sums = trainer.task, trainer.evaluate_clients(x, clients)
    return np.array([task.finish(own)[task.primary] if own else np.nan for own in sums])
