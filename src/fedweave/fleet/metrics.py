"""What clients measured, as one record: weighted means, or a function of the user's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.supercore import log

from fedweave.core.settings import BadInput, brief
from fedweave.fleet.server.seats import capped
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.tensors import records_of

EXAMPLES = "num-examples"  # Flower's name for the weight of a client
AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]


def reported(content: RecordDict) -> dict[str, Any]:
    """Return the metrics of an answer, of all its records."""
    return {name: value for record in records_of(content, MetricRecord).values() for name, value in record.items()}


def wrong_weight(content: RecordDict, key: str, most: float) -> str:
    """Return what is wrong with the weight that an answer reports, or nothing."""
    value = reported(content).get(key)
    fine = isinstance(value, int | float) and 0 < value <= most
    return "" if fine else f"reports {key} = {brief(value)}, which must be a positive number of at most {most:g}"


def aggregated(
    contents: Mapping[str, RecordDict], key: str, terms: Terms, function: AggregateMetrics | None
) -> dict[str, Any]:
    """Return the metrics of clients by name as one table: what ``function(contents, key)`` returns, or weighted means.

    An answer with a weight that is none, or more than the terms allow, does not count.
    """
    contents = {who: c for who, c in contents.items() if not wrong_weight(c, key, terms.most_samples)}
    if function is None:
        return weighted_means(contents, key, terms.max_samples_ratio)
    if not contents:
        return {}
    found = function(list(contents.values()), key)
    if not isinstance(found, MetricRecord | None):
        raise BadInput(f"A function that aggregates metrics must return a MetricRecord. It returned {brief(found)}.")
    return dict(found or {})


def weighted_means(
    contents: Mapping[str, RecordDict], key: str = EXAMPLES, max_ratio: float | None = None
) -> dict[str, float | list[float]]:
    """Return the means of what at least half of the clients report in the same shape, weighted by ``key``.

    The others are left out of the mean, and named; where two shapes are equally common there is none. Lists are
    averaged value by value. Weights of more than ``max_ratio`` times their median count as that. A value that is not
    finite is left out of its mean.
    """
    tables = {who: reported(content) for who, content in contents.items()}
    weights = capped(np.array([table[key] for table in tables.values()], float), max_ratio)
    means = dict[str, float | list[float]]()
    for name in dict.fromkeys(name for table in tables.values() for name in table if name != key):
        shapes = [np.shape(table[name]) if name in table else None for table in tables.values()]
        (shape, most), *other = Counter(shape for shape in shapes if shape is not None).most_common(2)
        if 2 * most < len(tables):
            continue
        if other and other[0][1] == most:
            log(WARNING, "fedweave: clients report %r with different lengths: it has no mean", name)
            continue
        same = np.array([found == shape for found in shapes])
        if others := [who for who, fine in zip(tables, same, strict=True) if not fine]:
            said = "fedweave: %r is averaged without %s, which does not report it as the others do"
            log(WARNING, said, name, ", ".join(others))
        values = np.array([t[name] for t, fine in zip(tables.values(), same, strict=True) if fine], float)  # (k, …)
        weight = weights[same].reshape(-1, *[1] * (values.ndim - 1))
        weight = np.where(np.isfinite(values), weight, 0.0)
        total = np.where(np.isfinite(values), values, 0.0) * weight
        mean = np.divide(total.sum(0), weight.sum(0), out=np.full(values.shape[1:], np.nan), where=weight.sum(0) > 0)
        means[name] = mean.tolist()
    return means
