"""What the server lets in: an update that is not finite is refused by name and never averaged."""

from __future__ import annotations

import numpy as np

from fedweave.records import Cohort, Layout, Replies


def admit(replies: Replies, cohort: Cohort, layout: Layout) -> tuple[Replies, list[str]]:
    """Return the replies with every bad update turned into a lost one, and a sentence for each."""
    # One pass over U: a sum of squares in float64 is finite exactly when every float32 entry is.
    norms = np.einsum("ij,ij->i", replies.updates, replies.updates, dtype=np.float64)
    bad = np.flatnonzero(replies.received & ~np.isfinite(norms))
    if not bad.size:
        return replies, []
    refused = [_why(int(cohort.ids[i]), replies.updates[i], layout) for i in bad]
    received, updates = replies.received.copy(), replies.updates.copy()
    received[bad], updates[bad] = False, 0.0
    return replies._replace(received=received, updates=updates), refused


def _why(client: int, update: np.ndarray, layout: Layout) -> str:
    wrong = ~np.isfinite(update)
    name, tensor = next((n, t) for n, t in layout.split(wrong).items() if t.any())
    where = tuple(int(i) for i in np.argwhere(tensor)[0]) if tensor.ndim else ()
    return f"client {client}: {int(wrong.sum())} of {update.size} values are not finite, first in {name}{list(where)}"
