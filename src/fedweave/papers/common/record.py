"""What is kept of a run, as arrays and plain values: it can be stored, shared between items, and drawn."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.runs.experiment import Experiment
from fedweave.store.export import Columns

FACTS = ("labels", "clients", "model", "trainer", "processor", "versions")  # of the manifest


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Record(NamedTuple):
    """One run: columns by round (or along another axis), columns by asked client, and numbers."""

    rounds: Columns = NOTHING
    clients: Columns = NOTHING
    values: Mapping[str, Any] = NOTHING


Records = Mapping[str, Sequence[Record]]  # by arm: one per seed


def beside(records: Records, arm: str, against: Callable[[str], str] | None = None) -> list[tuple[Record, ...]]:
    """Return the records of an arm seed by seed, each with that of the arm that it is measured against, if any."""
    arms = (arm, against(arm)) if against else (arm,)
    return list(zip(*(records[name] for name in arms), strict=True))


def run_experiment(experiment: Experiment, seed: int) -> Record:
    """Run an experiment with this seed in this process; what most studies do."""
    from fedweave.runs.loop import run  # needs torch, which studies are declared without

    result = run(replace(experiment, seed=seed, workers=1, device="cpu"), progress=False)
    facts = {name: result.manifest[name] for name in FACTS}
    return Record(result.rounds, result.clients, {**result.summary, **facts})


def pack(record: Record) -> bytes:
    """Return a record as the bytes of an .npz file; nothing in it is code."""
    columns = {f"{part}/{name}": a for part in ("rounds", "clients") for name, a in getattr(record, part).items()}
    values = np.frombuffer(json.dumps(dict(record.values), default=_plain).encode(), np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, values=values, **columns)
    return stream.getvalue()


def unpack(content: bytes) -> Record:
    """Return the record that ``pack`` stored; ValueError or KeyError where it is damaged."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        parts: dict[str, dict[str, Array]] = {"rounds": {}, "clients": {}}
        for name in found.files:
            if name != "values":
                part, _, column = name.partition("/")
                parts[part][column] = found[name]
        return Record(parts["rounds"], parts["clients"], json.loads(found["values"].tobytes()))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"A record keeps plain values. Got a {type(value).__name__}.")


def last(column: str, rounds: int = 1) -> Callable[[Record], float]:
    """Return a measure: the mean of a column over the last rounds, leaving out those without a value."""

    def of(record: Record) -> float:
        seen = record.rounds[column][-rounds:]
        seen = seen[np.isfinite(seen)]
        return float(seen.mean()) if seen.size else np.nan

    return of


def value(name: str) -> Callable[[Record], float]:
    """Return a measure: one of the numbers of a run."""
    return lambda record: float(record.values[name])


def best(column: str = "accuracy") -> Callable[[Record], float]:
    """Return a measure: the largest value of a column."""
    return lambda record: float(np.nanmax(record.rounds[column]))


def reached(target: float, column: str = "accuracy", time: str = "round", rising: bool = True) -> Callable[..., float]:
    """Return a measure: where ``time`` was when a column first reached the target; nan if it never did."""

    def of(record: Record) -> float:
        values = record.rounds[column]
        hit = np.flatnonzero(values >= target if rising else values <= target)
        return float(record.rounds[time][hit[0]]) if hit.size else np.nan

    return of


def end_of(time: str = "round") -> Callable[[Record], float]:
    """Return the first time that a run did not observe: R + 1 rounds, or one mean round after its last second."""
    return lambda record: float(record.rounds[time][-1] * (1 + 1 / record.rounds[time].size))
