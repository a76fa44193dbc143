"""The bytes of a participation, counted here and nowhere else."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array, Assignment
from fedweave.core.roles import Solver, Upload
from fedweave.upload.codec import ModelFleet, check_size


def upload_bytes(assignment: Assignment, upload: Upload, solver: Solver, models: ModelFleet) -> Array:
    """Return what each of the cohort sends (k,), whether it arrives or not.

    A solver whose memory the server follows (SCAFFOLD) sends how it changed beside the update.
    """
    ids, budget = assignment.cohort.ids, assignment.context.budget
    whole = models.sizes(ids)
    sizes = whole
    if not upload.identity:
        budgets = [None] * ids.size if budget is None else budget.tolist()
        pairs = zip(ids.tolist(), budgets, strict=True)
        sizes = np.array(
            [check_size(upload.size(models.of(client, assignment.dispatch), b), upload) for client, b in pairs],
            np.int64,
        )
    return sizes + whole if solver.uploads_memory else sizes


def download_bytes(assignment: Assignment, upload: Upload, models: ModelFleet) -> Array | None:
    """Return what each of the cohort is sent (k,); None: the whole model, and what travels with it.

    A client does not need what it keeps of its own instead of the server's values.
    """
    if upload.identity and not models.is_mixed:
        return None
    ids, kept, broadcast = assignment.cohort.ids, assignment.context.kept, assignment.context.broadcast
    down = models.sizes(ids)
    if kept is not None and upload.masks and kept.written[ids].any():
        rows = np.flatnonzero(kept.written[ids])
        for i, values in zip(rows.tolist(), kept[ids[rows]], strict=True):
            own = models.of(int(ids[i]), assignment.dispatch).of(values)
            down[i] = assignment.x.itemsize * np.count_nonzero(np.isnan(own))
    return down if broadcast is None else down + broadcast.nbytes
