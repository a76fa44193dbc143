"""The client half of a round, over a piece of clients: begin, train, learn, encode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.returned import check_vector
from fedweave.core.roles import Parcel, Upload
from fedweave.local.trainer import Jobs, Trained, Trainer, attempt, of_each, of_one
from fedweave.round.memories import memory_changes
from fedweave.upload.codec import ClientModel, check_decoded, check_parcel


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
    starts = None if kept is None or not kept.there.any() else _starts(trainer, x, jobs, upload, kept)
    trained = attempt(trainer, x, jobs if starts is None else jobs._replace(starts=starts), skip)
    if upload.identity:
        return Answers(trained, None, _memory_change(trainer, jobs, trained.updates))
    parcels = list[Parcel]()
    for i, client in enumerate(jobs.client.tolist()):
        model, given = trainer.models.of(client, int(jobs.dispatch[i])), of_one(x, jobs, i)
        share = None if budget is None else float(budget[i])
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
    if jobs.memory is None:
        return Answers(trained, parcels, None)
    known = trained.updates if trainer.solver.uploads_memory else _decoded(trainer, jobs, upload, parcels, x)
    return Answers(trained, parcels, _memory_change(trainer, jobs, known))


def _memory_change(trainer: Trainer, jobs: Jobs, updates: Array) -> Array | None:
    """Return what each client adds to its memory after these updates (c, D), if it has one."""
    if jobs.memory is None or jobs.share is None:
        return None
    return memory_changes(
        trainer.solver,
        updates,
        trainer.layout.parameters,
        None if jobs.broadcast is None else of_each(jobs.broadcast, jobs),
        jobs.steps,
        jobs.share,
        float(jobs.lr[0]),  # clients of one piece have the same
    )


def _decoded(trainer: Trainer, jobs: Jobs, upload: Upload, parcels: list[Parcel], x: Array) -> Array:
    """Return the updates as the server will read them (c, D).

    A memory that the server follows from the updates (FedDyn) must be that of these: with the true ones clients and
    server would go apart by all that a codec ever left out. One that is uploaded (SCAFFOLD) is known to both.
    """
    updates = np.zeros((jobs.client.size, x.shape[-1]), x.dtype)
    for i, client in enumerate(jobs.client.tolist()):
        model = trainer.models.of(client, int(jobs.dispatch[i]))
        part, _ = check_decoded(upload.decode(parcels[i].payload, model), upload, model)
        updates[i] = model.whole(part, x.shape[-1], rest=0)
    return updates


def _starts(trainer: Trainer, x: Array, jobs: Jobs, upload: Upload, kept: Kept) -> Array | None:
    """Return where each client begins (c, D); None if all begin at the model."""
    starts = None
    for i, client in enumerate(jobs.client.tolist()):
        model = trainer.models.of(client, int(jobs.dispatch[i]))
        if (own := _of(model, kept, i)) is not None:
            begin = model.of(of_one(x, jobs, i))
            start = check_vector(upload.start(begin, own), model.layout.dim, upload, "start")
            if start is not begin:
                if starts is None:
                    starts = np.array(np.broadcast_to(of_each(x, jobs), (jobs.client.size, x.shape[-1])))
                starts[i, ... if model.where is None else model.where] = start
    return starts


def _of(model: ClientModel, kept: Kept | None, i: int) -> Array | None:
    """Return what a client's upload kept; None if that is nothing, of which a table has only nan."""
    own = None if kept is None or not kept.there[i] else model.of(kept.values[i])
    return None if own is None or np.isnan(own).all() else own
