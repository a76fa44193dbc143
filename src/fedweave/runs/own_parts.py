"""What an own partition or system hands in is checked here, in one sentence, before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import MOST_SECONDS, MOST_STEPS, Population
from fedweave.core.returned import kind_of
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, brief
from fedweave.data import Dataset
from fedweave.data.columns import length
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition
from fedweave.data.ragged import Lazy, Ragged


def check_shares(shares: Any, partition: Partition, data: Dataset) -> Shares:
    """Return what a partition dealt out, or say what is wrong with it."""
    who = f"{type(partition).__name__}.split"
    if not isinstance(shares, Shares):
        raise BadInput(f"{who} must return Shares(train=…, test=…). It returned {brief(shares)}.")
    for parts in shares:
        if not isinstance(parts, list | tuple | Ragged | Lazy):
            raise BadInput(f"{who} must return a list of arrays, one per client. It returned {brief(parts)}.")
    if partition.clients is not None and len(shares.train) != partition.clients:
        raise BadInput(f"{who} must deal to {partition.clients} clients. It dealt to {len(shares.train)}.")
    if len(shares.train) != len(shares.test):
        counts = f"{len(shares.train)} and {len(shares.test)}"
        raise BadInput(f"{who} must deal training and test samples to the same clients. It dealt to {counts}.")
    train = _check_parts(shares.train, len(data), who)
    if not train.sizes.all():
        raise BadInput(f"{who} must give each client at least one sample. Client {int(train.sizes.argmin())} has none.")
    if np.bincount(train.values, minlength=1).max() > 1:
        order = np.argsort(train.values, kind="stable")
        again = order[1:][train.values[order[1:]] == train.values[order[:-1]]]
        client = int(train.owners[again.min()])
        raise BadInput(f"{who} must deal each sample once. Client {client} has one that was dealt before.")
    test = shares.test if isinstance(shares.test, Lazy) else _check_parts(shares.test, length(data.test_y), who)
    return Shares(train, test)  # what is lazy is dealt by the library


def _check_parts(parts: Sequence[Any], total: int, who: str) -> Ragged:
    """Return the positions of all clients; they must be whole numbers below ``total``."""
    for client, part in enumerate([] if isinstance(parts, Ragged) else parts):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
            found = f"Client {client} has {kind_of(part)}"
            raise BadInput(f"{who} must give each client an array of whole numbers. {found}.")
    found = Ragged.of(parts)
    outside = np.flatnonzero((found.values < 0) | (found.values >= total))
    if outside.size:
        client, sample = int(found.owners[outside[0]]), int(found.values[outside[0]])
        raise BadInput(f"{who} must deal samples 0 … {total - 1}. Client {client} has {sample}.")
    return found


class Bounds(NamedTuple):
    """What a column of a population may hold."""

    kinds: str  # NumPy's letters: f, i, u, b
    low: float = 0.0
    high: float = np.finfo(float).max
    rule: str = "finite and not negative"


MANY = np.finfo(float).max
COLUMNS = {
    "weight": Bounds("f", 0.0, 1.0, "from 0 to 1"),
    "samples": Bounds("iuf", 1.0, MANY, "at least 1"),
    "steps": Bounds("iu", 1.0, MOST_STEPS, f"from 1 to {MOST_STEPS}"),
    "batch_size": Bounds("iu", 1.0, MANY, "at least 1"),
    "loss_rate": Bounds("fiu", 0.0, 1.0, "from 0 to 1"),
    "latency": Bounds("fiu", 0.0, MOST_SECONDS, "finite and not negative"),
    "available": Bounds("b"),
    "model_bytes": Bounds("iuf"),
    "covered": Bounds("fiu"),
    "up_rate": Bounds("fiu", np.finfo(float).tiny, MANY, "above 0"),
    "down_rate": Bounds("fiu", np.finfo(float).tiny, MANY, "above 0"),
}


OPTIONAL = ("model_bytes", "covered", "up_rate", "down_rate")


def check_population(population: Any, system: System, base: Population) -> Population:
    """Return the clients as a system makes them of the nominal ones in a round, or say what is wrong with them."""
    who, clients = f"{type(system).__name__}.population", base.size
    if not isinstance(population, Population):
        raise BadInput(f"{who} must return a Population. It returned {brief(population)}.")
    for name, bounds in COLUMNS.items():
        column = getattr(population, name)
        if column is getattr(base, name) or (column is None and name in OPTIONAL):
            continue
        if not isinstance(column, np.ndarray) or column.shape != (clients,) or column.dtype.kind not in bounds.kinds:
            kinds = " or ".join(_KINDS[kind] for kind in bounds.kinds if kind != "u")
            raise BadInput(f"{who} must return {name!r} as {clients} {kinds}. Got {kind_of(column)}.")
        if not (bounds.low <= np.minimum.reduce(column) and np.maximum.reduce(column) <= bounds.high):
            wrong = column[~((column >= bounds.low) & (column <= bounds.high))][0]
            raise BadInput(f"{who} must return {name!r} {bounds.rule}. Got {wrong}.")
    if population.weight is not base.weight and abs(population.weight.sum() - 1) > 1e-6:
        raise BadInput(f"{who} must return weights that sum to 1. They sum to {population.weight.sum():g}.")
    return population


_KINDS = {"f": "numbers", "i": "whole numbers", "b": "booleans"}
