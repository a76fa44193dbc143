"""The client half of a round, over a piece of clients: begin, train, learn, encode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.returned import check_vector
from fedweave.core.roles import Parcel, Upload
from fedweave.local.trainer import Jobs, Trained, Trainer, attempt, joined, of_each, of_one
from fedweave.round.memories import memory_changes
from fedweave.upload.codec import ClientModel, check_parcel


class Kept(NamedTuple):
    """What the uploads of a piece of clients kept after their last participations."""

    values: Array  # (c, D)
    there: Array  # (c,) bool: whether the client kept anything

    def take(self, rows: Array | slice) -> Kept:
        """Return some of the rows."""
        return Kept(self.values[rows], self.there[rows])


class Answers(NamedTuple):
    """What a piece of clients answers."""

    trained: Trained
    parcels: list[Parcel] | None  # of each client; None: the updates travel as they are
    memory_change: Array | None  # (c, D) what each adds to its memory once its answer is received


def participate(
    trainer: Trainer,
    x: Array,
    jobs: Jobs,
    upload: Upload,
    budget: Array | None = None,
    kept: Kept | None = None,
    skip: bool = False,
) -> Answers:
    """Have a piece of clients train from the model ``x`` and encode what they send.

    Where clients begin with different versions of the model, ``x`` is a stack of them (``local.trainer.of_each``).
    ``skip``: a client whose training raises an exception is left out, instead of ending the run.
    """
    if jobs.models is not None:
        return _each_from_its_own(trainer, jobs, upload, budget, kept, skip)
    starts = None if kept is None or not kept.there.any() else _starts(trainer, x, jobs, upload, kept)
    trained = attempt(trainer, x, jobs if starts is None else jobs._replace(starts=starts), skip)
    change = None
    if jobs.memory is not None and jobs.share is not None:
        change = memory_changes(
            trainer.solver,
            trained.updates,
            trainer.layout.parameters,
            None if jobs.broadcast is None else of_each(jobs.broadcast, jobs),
            jobs.steps,
            jobs.share,
            float(jobs.lr[0]),  # clients of one piece have the same
        )
    if upload.identity:
        return Answers(trained, None, change)
    parcels = list[Parcel]()
    for i, client in enumerate(jobs.client.tolist()):
        model, share = trainer.models.of(client), None if budget is None else float(budget[i])
        given = of_one(x, jobs, i)
        parcel = upload.encode(
            update=model.of(trained.updates[i]),
            x=model.of(given),
            start=model.of(given if starts is None else starts[i]),
            budget=share,
            kept=_of(model, kept, i),
            rng=rng_for(trainer.seed, int(jobs.dispatch[i]), Stream.UPLOAD, client),
            model=model,
        )
        parcels.append(check_parcel(parcel, upload, model, share))
    return Answers(trained, parcels, change)


def _each_from_its_own(
    trainer: Trainer, jobs: Jobs, upload: Upload, budget: Array | None, kept: Kept | None, skip: bool
) -> Answers:
    """Have each client participate by itself, from the model that it was sent."""
    assert jobs.models is not None
    found = list[Answers]()
    for i, own in enumerate(jobs.models):
        row, sent = slice(i, i + 1), None if jobs.broadcast is None else of_one(jobs.broadcast, jobs, i)
        alone = jobs.take([i])._replace(models=None, version=None, broadcast=sent)
        some = None if budget is None else budget[row], None if kept is None else kept.take(row)
        found.append(participate(trainer, own, alone, upload, *some, skip))
    trained, parcels, changes = zip(*found, strict=True)
    return Answers(
        trained=joined(trained),
        parcels=None if upload.identity else [parcel for one in parcels for parcel in one],
        memory_change=None if changes[0] is None else np.concatenate(changes),
    )


def _starts(trainer: Trainer, x: Array, jobs: Jobs, upload: Upload, kept: Kept) -> Array:
    """Return where each client begins (c, D)."""
    starts = np.array(np.broadcast_to(of_each(x, jobs), (jobs.client.size, x.shape[-1])))
    for i, client in enumerate(jobs.client.tolist()):
        model = trainer.models.of(client)
        if (own := _of(model, kept, i)) is not None:
            start = check_vector(upload.start(model.of(of_one(x, jobs, i)), own), model.layout.dim, upload, "start")
            starts[i, ... if model.where is None else model.where] = start
    return starts


def _of(model: ClientModel, kept: Kept | None, i: int) -> Array | None:
    """Return what a client's upload kept; None if that is nothing, of which a table has only nan."""
    own = None if kept is None or not kept.there[i] else model.of(kept.values[i])
    return None if own is None or np.isnan(own).all() else own
