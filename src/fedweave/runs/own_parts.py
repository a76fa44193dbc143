"""What an own partition or system hands in is checked here, in one sentence, before it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import MOST_STEPS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, brief
from fedweave.data import Dataset
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition


def check_shares(shares: Any, partition: Partition, data: Dataset) -> Shares:
    """Return what a partition dealt out, or say what is wrong with it."""
    who = f"{type(partition).__name__}.split"
    if not isinstance(shares, Shares):
        raise BadInput(f"{who} must return Shares(train=…, test=…). It returned {brief(shares)}.")
    if partition.clients is not None and len(shares.train) != partition.clients:
        raise BadInput(f"{who} must deal to {partition.clients} clients. It dealt to {len(shares.train)}.")
    seen = np.zeros(len(data.y), bool)
    for client, part in enumerate(shares.train):
        if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
            raise BadInput(f"{who} must give each client an array of whole numbers. Client {client} has {brief(part)}.")
        if not part.size:
            raise BadInput(f"{who} must give each client at least one sample. Client {client} has none.")
        if part.min() < 0 or part.max() >= seen.size:
            raise BadInput(f"{who} must deal samples 0 … {seen.size - 1}. Client {client} has {_outside(part, seen)}.")
        if seen[part].any() or np.unique(part).size < part.size:
            raise BadInput(f"{who} must deal each sample once. Client {client} has one that was dealt before.")
        seen[part] = True
    return shares


def _outside(part: Array, seen: Array) -> int:
    return int(part[(part < 0) | (part >= seen.size)][0])


class Bounds(NamedTuple):
    """What a column of a population may hold."""

    kinds: str  # NumPy's letters: f, i, u, b
    low: float = -np.inf
    high: float = np.inf
    rule: str = ""


COLUMNS = {
    "weight": Bounds("f", 0.0, 1.0, "from 0 to 1"),
    "samples": Bounds("iuf", 1.0, np.inf, "at least 1"),
    "steps": Bounds("iu", 1.0, MOST_STEPS, f"from 1 to {MOST_STEPS}"),
    "batch_size": Bounds("iuf", 1.0, np.inf, "at least 1"),
    "loss_rate": Bounds("fiu", 0.0, 1.0, "from 0 to 1"),
    "latency": Bounds("fiu", 0.0, np.finfo(float).max, "finite and not negative"),
    "available": Bounds("b"),
    "model_bytes": Bounds("iuf", 0.0, np.inf, "not negative"),
    "covered": Bounds("fiu"),
    "up_rate": Bounds("fiu", np.finfo(float).tiny, np.inf, "above 0"),
    "down_rate": Bounds("fiu", np.finfo(float).tiny, np.inf, "above 0"),
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
            got = f"{column.dtype}{column.shape}" if isinstance(column, np.ndarray) else brief(column)
            raise BadInput(f"{who} must return {name!r} as {clients} {kinds}. Got {got}.")
        if bounds.rule and not (bounds.low <= np.minimum.reduce(column) and np.maximum.reduce(column) <= bounds.high):
            wrong = column[~((column >= bounds.low) & (column <= bounds.high))][0]
            raise BadInput(f"{who} must return {name!r} {bounds.rule}. Got {wrong}.")
    return population


_KINDS = {"f": "numbers", "i": "whole numbers", "b": "booleans"}
