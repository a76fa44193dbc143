"""What the server lets in: cohorts that make sense, and updates that are finite; others are named and not used."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedweave.method import Method
from fedweave.records import Cohort, Layout, Population, Replies


def sensible(cohort: Any, method: Method, population: Population) -> Cohort:
    """Return the cohort a sampler drew, or say in one sentence what is wrong with it."""
    who = f"{type(method.sampler).__name__}.draw"
    if not isinstance(cohort, Cohort):
        raise ValueError(f"{who} must return a Cohort. It returned {cohort!r}.")
    ids, count, expected = np.asarray(cohort.ids), np.asarray(cohort.count), np.asarray(cohort.expected)
    if not ids.size == count.size == expected.size:
        sizes = {ids.size, count.size, expected.size}
        raise ValueError(f"{who} must return ids, count and expected of one length. They have {sorted(sizes)} entries.")
    if ids.size and ((ids[1:] <= ids[:-1]).any() or ids[0] < 0 or ids[-1] >= population.size):
        raise ValueError(f"{who} must return distinct ids of 0 … {population.size - 1} in ascending order. Got {ids}.")
    if (count < 1).any():
        raise ValueError(f"{who} must return counts of at least 1. Got {cohort.count}.")
    if method.aggregator.needs_law and not (expected > 0).all():
        raise ValueError(
            f"{type(method.aggregator).__name__} weighs by E[count], but {who} returned {cohort.expected}. A sampler "
            "without a known law sets law_known = False and goes with Mean()."
        )
    return cohort


def admit(replies: Replies, cohort: Cohort, layout: Layout) -> tuple[Replies, list[str]]:
    """Return the replies with every bad update turned into a lost one, and a sentence for each."""
    vectors = [replies.updates] if replies.change is None else [replies.updates, replies.change]
    if all(np.isfinite(rows).all() for rows in vectors):
        return replies, []
    fine = np.all([np.isfinite(rows).all(axis=1) for rows in vectors], axis=0)
    wrong = [(i, next(r[i] for r in vectors if not np.isfinite(r[i]).all())) for i in np.flatnonzero(~fine)]
    refused = [_why(int(cohort.ids[i]), row, layout) for i, row in wrong if replies.received[i]]
    clean = [np.where(fine[:, None], rows, rows.dtype.type(0)) for rows in vectors]
    return replies._replace(received=replies.received & fine, updates=clean[0], change=[*clean, None][1]), refused


def _why(client: int, update: np.ndarray, layout: Layout) -> str:
    wrong = ~np.isfinite(update)
    name, tensor = next((n, t) for n, t in layout.split(wrong).items() if t.any())
    where = tuple(int(i) for i in np.argwhere(tensor)[0]) if tensor.ndim else ()
    return f"client {client}: {int(wrong.sum())} of {update.size} values are not finite, first in {name}{list(where)}"
