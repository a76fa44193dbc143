"""The tables of a run's database, and their rows as arrays; a value of another type than its column's is refused."""

from __future__ import annotations

import sqlite3

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.core.typed_json import parse_json
from fedweave.store.database import check_schema, read_columns

ROUNDS = {
    "round": "INTEGER PRIMARY KEY", "clock": "REAL", "seconds": "REAL", "device_seconds": "REAL",
    "wall_seconds": "REAL", "accuracy": "REAL", "loss": "REAL", "train_loss": "REAL", "asked": "INTEGER",
    "received": "INTEGER", "refused": "INTEGER", "bytes_up": "INTEGER", "bytes_down": "INTEGER",
    "class_accuracy": "TEXT", "abandoned": "INTEGER DEFAULT 0",
}  # fmt: skip
CLIENTS = {
    "round": "INTEGER", "client": "INTEGER", "count": "INTEGER", "expected": "REAL", "received": "INTEGER",
    "steps": "INTEGER", "loss": "REAL", "seconds": "REAL", "bytes_up": "INTEGER",
}  # fmt: skip
FAILURES = {"round": "INTEGER", "kind": "TEXT", "client": "INTEGER", "why": "TEXT", "traceback": "TEXT"}
MEASURES = {"round": "INTEGER", "name": "TEXT", "value": "REAL"}
AUDIT = {"round": "INTEGER PRIMARY KEY", "bytes": "INTEGER", "chain": "TEXT"}  # the end of the log
STATES = {"round": "INTEGER PRIMARY KEY", "file": "TEXT", "sha256": "TEXT"}

TABLES = {
    "rounds": ROUNDS, "clients": CLIENTS, "failures": FAILURES, "measures": MEASURES, "audit": AUDIT, "states": STATES,
}  # fmt: skip
KEYS = {"clients": ", PRIMARY KEY (round, client)", "measures": ", PRIMARY KEY (round, name)"}
ROWS = ("rounds", "clients", "failures", "measures", "audit")
MOST_CLIENTS = 10**7


def create_tables(db: sqlite3.Connection, write: bool) -> None:
    """Create the tables that are missing; refuse a database that is not a run's."""
    check_schema(db, TABLES, write)
    for name, columns in TABLES.items():
        body = ", ".join(f'"{c}" {kind}' for c, kind in columns.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({body}{KEYS.get(name, '')})")
    if "abandoned" not in {column for _, column, *_ in db.execute("PRAGMA table_info(rounds)")}:
        db.execute("ALTER TABLE rounds ADD COLUMN abandoned INTEGER DEFAULT 0")  # runs of older versions lack it


def round_columns(db: sqlite3.Connection) -> dict[str, Array]:
    """Return the rows per round as arrays; measures are columns too."""
    found = read_columns(db, "rounds", ROUNDS)
    lists = [_numbers(text) for text in found["class_accuracy"]]
    classes = max(map(len, lists), default=0)  # a round without evaluation has an empty list
    filled = [each or [None] * classes for each in lists]
    out = _arrays(found, ROUNDS)
    out["class_accuracy"] = np.array(filled, float).reshape(len(lists), classes)
    return {**out, **_measures(db, out["round"])}


def _numbers(text: str) -> list[float | None]:
    try:
        return parse_json(text, list[float | None], "the column 'class_accuracy'")
    except BadInput as e:
        raise ValueError(str(e)) from None  # which names the database above


def client_columns(db: sqlite3.Connection) -> dict[str, Array]:
    """Return the rows per round and asked client as arrays."""
    out = _arrays(read_columns(db, "clients", CLIENTS), CLIENTS)
    if (out["client"] >= MOST_CLIENTS).any():
        raise ValueError(f"the column 'client' of 'clients' must be below {MOST_CLIENTS:,}")
    return out


def _arrays(found: dict[str, tuple], kinds: dict[str, str]) -> dict[str, Array]:
    types = {"INTEGER": np.int64, "REAL": np.float64}
    out = {c: np.array(v, types[k]) for c, v in found.items() if (k := kinds[c].split()[0]) in types}
    for column, values in out.items():
        if values.dtype == np.int64 and (values < 0).any():
            raise ValueError(f"the column {column!r} must not be negative")
    return out


def _measures(db: sqlite3.Connection, rounds: Array) -> dict[str, Array]:
    """Return the measures as columns, NaN in rounds without a value."""
    where, out = {r: i for i, r in enumerate(rounds.tolist())}, dict[str, Array]()
    for round, name, value in zip(*read_columns(db, "measures", MEASURES).values(), strict=True):
        if round in where:
            out.setdefault(name, np.full(rounds.size, np.nan))[where[round]] = value
    return out
