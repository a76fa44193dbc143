"""What clients measured, as one record: weighted means, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    contents: Sequence[RecordDict], key: str, terms: Terms, function: AggregateMetrics | None
) -> dict[str, Any]:
    """Return the clients' metrics as one table: what ``function(contents, key)`` returns, or weighted means.

    An answer with a weight that is none, or more than the terms allow, does not count.
    """
    contents = [content for content in contents if not wrong_weight(content, key, terms.most_samples)]
    if function is None:
        return weighted_means(contents, key, terms.max_samples_ratio)
    if not contents:
        return {}
    found = function(list(contents), key)
    if not isinstance(found, MetricRecord | None):
        raise BadInput(f"A function that aggregates metrics must return a MetricRecord. It returned {brief(found)}.")
    return dict(found or {})


def weighted_means(
    contents: Sequence[RecordDict], key: str = EXAMPLES, max_ratio: float | None = None
) -> dict[str, float | list[float]]:
    """Return the means of what all clients report, weighted by ``key``; lists value by value.

    Weights of more than ``max_ratio`` times their median count as that. A value that is not finite is left out of its
    mean; lists of different lengths have none.
    """
    tables = [reported(content) for content in contents]
    weights = capped(np.array([table[key] for table in tables], float), max_ratio)
    means = dict[str, float | list[float]]()
    for name in tables[0] if tables else ():
        if name == key or not all(name in table for table in tables):
            continue
        if len({np.shape(table[name]) for table in tables}) > 1:
            log(WARNING, "fedweave: clients report %r with different lengths: it has no mean", name)
            continue
        values = np.array([table[name] for table in tables], float)  # (k,) or (k, length)
        weight = weights.reshape(-1, *[1] * (values.ndim - 1))
        weight = np.where(np.isfinite(values), weight, 0.0)
        total = np.where(np.isfinite(values), values, 0.0) * weight
        mean = np.divide(total.sum(0), weight.sum(0), out=np.full(values.shape[1:], np.nan), where=weight.sum(0) > 0)
        means[name] = mean.tolist()
    return means
