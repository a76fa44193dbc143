"""What the server lets in: answers that fit and are finite; others are named, not used."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array, Cohort, Failure, Layout, Replies
from fedweave.core.settings import brief
from fedweave.core.vectors import all_finite, by_rows, release, squared_lengths
from fedweave.method import Method

FEW = 3  # answers from which the median of a round means something


def admit(
    replies: Replies,
    cohort: Cohort,
    layout: Layout,
    max_length_ratio: float | None = None,
    length: Array | None = None,
    earlier: Sequence[float] | None = None,
) -> tuple[Replies, list[Failure]]:
    """Return the replies with every bad update turned into a lost one, and why, for each of all that were refused.

    Bad is what is not finite, and what is more than ``max_length_ratio`` times as long as the cohort's median; fewer
    than three answers are compared only with ``earlier``, lengths of others. ``length`` has those of the updates, if
    they are known. An engine that gets answers as messages has already refused those that are no update at all
    (``misfit``).
    """
    vectors, refused = (
        [replies.updates] if replies.memory_change is None else [replies.updates, replies.memory_change],
        [],
    )
    if length is None and max_length_ratio is not None:
        length = lengths(replies)  # not finite where an entry is not
    looked = 0 if length is None or not np.isfinite(length).all() else 1
    if not all(all_finite(rows) for rows in vectors[looked:]):
        fine = np.all([by_rows(lambda some: np.isfinite(some).all(axis=1), rows) for rows in vectors], axis=0)
        for i in np.flatnonzero(replies.received & ~fine):
            wrong = next(rows[i] for rows in vectors if not np.isfinite(rows[i]).all())
            refused.append(_why(int(cohort.ids[i]), wrong, layout))
            release(replies.updates)
        replies = replies.keep_only(fine)
    if length is not None and max_length_ratio is not None:
        times = _in_medians(length, replies.received, earlier)
        for i in np.flatnonzero(times > max_length_ratio):
            why = f"its update is {times[i]:.4g} times as long as the median, more than {max_length_ratio:g}"
            refused.append(Failure(int(cohort.ids[i]), why))
        if times.max(initial=0) > max_length_ratio:
            replies = replies.keep_only(times <= max_length_ratio)
    return replies, [*replies.failures.refused, *refused]


def lengths(replies: Replies) -> Array:
    """Return the length of every received update, zero for the others.

    In the updates' own precision, which takes a quarter of the time; in double where their squares may not fit.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        square = squared_lengths(replies.updates).astype(np.float64)
        square[~replies.received] = 0
        for i in np.flatnonzero(replies.received & ~((square > 1e-30) & (square < 1e30))):
            row = replies.updates[i].astype(np.float64)
            square[i] = row @ row
    return np.sqrt(square)


def _in_medians(length: Array, received: Array, earlier: Sequence[float] | None) -> Array:
    """Return each received update's length in units of the median one; all zeros where nothing can be compared.

    Fewer than three are compared together with earlier ones, by the lower median: of two the smaller.
    """
    known, median = length[received].tolist(), 0.0
    if len(known) >= FEW:
        median = statistics.median(known)
    elif earlier is not None and len(known := [*known, *earlier]) > 1:
        median = statistics.median_low(known)
    return np.where(received, length, 0.0) / median if median else np.zeros(length.size)


def _why(client: int, update: Array, layout: Layout) -> Failure:
    wrong = ~np.isfinite(update)
    name, tensor = next((n, t) for n, t in layout.split(wrong).items() if t.any())
    where = tuple(int(i) for i in np.argwhere(tensor)[0]) if tensor.ndim else ()
    found = f"{int(wrong.sum())} of {update.size} values are not finite, first in {name}{list(where)}"
    return Failure(client, found)


def not_finite(x: Array, direction: Array, method: Method) -> str:
    """Return why this model must not become the global one, or nothing."""
    if all_finite(x):
        return ""
    who = method.server if all_finite(direction) else method.aggregator
    return f"{type(who).__name__} made the model not finite"


def misfit(
    found: Mapping[str, tuple[tuple[int, ...], str]], layout: Layout, types: Mapping[str, str], ours: str = "the model"
) -> str:
    """Return what is wrong with the names, shapes and types of the tensors of an answer, or nothing.

    A shape must be the very same: NumPy would stretch one of (1,) over a whole tensor.
    """
    if missing := [name for name in layout.names if name not in found]:
        return f"lacks the tensor {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    if extra := [name for name in found if name not in types]:
        return f"has a tensor {brief(extra[0])!r} that {ours} does not have"
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if found[name][0] != shape:
            return f"has {name} of shape {brief(found[name][0])}, {ours} {shape}"
        if found[name][1] != types[name]:
            return f"has {name} of type {brief(found[name][1])}, {ours} {types[name]}"
    return ""


def wrong_number(name: str, value: Any, low: float, high: float) -> str:
    """Return what is wrong with a number that a client reports, or nothing."""
    fine = isinstance(value, int | float) and math.isfinite(value) and low <= value <= high
    return "" if fine else f"reports {name} = {brief(value)}, which must be a number from {low:g} to {high:g}"
