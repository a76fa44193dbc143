"""The tables of a run's database, and their rows as arrays; a value of another type than its column's is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array, Failure
from fedweave.core.settings import BadInput
from fedweave.core.typed_json import parse_json
from fedweave.store.database import check_schema, read_blocks, read_columns

ROUNDS = {
    "round": "INTEGER PRIMARY KEY", "clock": "REAL", "seconds": "REAL", "device_seconds": "REAL",
    "wall_seconds": "REAL", "accuracy": "REAL", "loss": "REAL", "train_loss": "REAL", "asked": "INTEGER",
    "received": "INTEGER", "refused": "INTEGER", "bytes_up": "INTEGER", "bytes_down": "INTEGER",
    "class_accuracy": "TEXT", "abandoned": "INTEGER DEFAULT 0",
}  # fmt: skip
CLIENTS = {
    "round": "INTEGER", "client": "INTEGER", "count": "INTEGER", "expected": "REAL", "received": "INTEGER",
    "steps": "INTEGER", "loss": "REAL", "seconds": "REAL", "bytes_up": "INTEGER", "first_gradient": "REAL",
    "first_loss": "REAL",
}  # fmt: skip
CLIENT_SCORES = {"round": "INTEGER", "client": "INTEGER", "value": "REAL"}
FAILURES = {"round": "INTEGER", "kind": "TEXT", "client": "INTEGER", "why": "TEXT", "traceback": "TEXT"}
MEASURES = {"round": "INTEGER", "name": "TEXT", "value": "REAL"}
AUDIT = {"round": "INTEGER PRIMARY KEY", "bytes": "INTEGER", "chain": "TEXT"}  # the end of the log
EXTENSION = {"rounds": "INTEGER"}  # the length of a run that was extended; one row, or none
STATES = {"round": "INTEGER PRIMARY KEY", "file": "TEXT", "sha256": "TEXT"}

TABLES = {
    "rounds": ROUNDS, "clients": CLIENTS, "failures": FAILURES, "measures": MEASURES, "audit": AUDIT, "states": STATES,
    "client_scores": CLIENT_SCORES, "extension": EXTENSION,
}  # fmt: skip
KEYS = {
    "clients": ", PRIMARY KEY (round, client)", "measures": ", PRIMARY KEY (round, name)",
    "client_scores": ", PRIMARY KEY (round, client)",
}  # fmt: skip
ROWS = ("rounds", "clients", "client_scores", "failures", "measures", "audit")
MOST_CLIENTS = 10**7


def create_tables(db: sqlite3.Connection, write: bool) -> None:
    """Create the tables that are missing; refuse a database that is not a run's."""
    check_schema(db, TABLES, write)
    for name, columns in TABLES.items():
        body = ", ".join(f'"{c}" {kind}' for c, kind in columns.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({body}{KEYS.get(name, '')})")
        there = {column for _, column, *_ in db.execute(f"PRAGMA table_info({name})")}
        for column in [c for c in columns if c not in there]:  # runs of older versions lack the last ones
            db.execute(f'ALTER TABLE {name} ADD COLUMN "{column}" {columns[column]}')


def insert_round(
    db: sqlite3.Connection,
    row: Mapping[str, Any],
    clients: Mapping[str, Array],
    failures: Sequence[tuple[str, Failure]],
    scores: Mapping[str, Array] | None,
) -> None:
    """Insert the rows of one round.

    Entries of ``row`` that are not columns of every run are stored as measures, which differ from run to run.
    """
    by_class = json.dumps([None if np.isnan(v) else v for v in row["class_accuracy"]])
    values = {**row, "class_accuracy": by_class}
    insert_rows(db, "rounds", [tuple(values[c] for c in ROUNDS)])
    for table, columns in (("clients", clients), ("client_scores", scores)):
        if columns:
            insert_rows(db, table, zip(*(np.asarray(columns[c]).tolist() for c in TABLES[table]), strict=True))
    insert_rows(db, "failures", [(row["round"], kind, *failure) for kind, failure in failures])
    insert_rows(db, "measures", [(row["round"], name, value) for name, value in row.items() if name not in ROUNDS])


def insert_rows(db: sqlite3.Connection, table: str, rows: Any) -> None:
    """Insert rows into a table, each with all of its columns."""
    db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(TABLES[table]))})", rows)


def extended_rounds(db: sqlite3.Connection) -> int | None:
    """Return the number of rounds that a run was extended to; None if it was not."""
    found = read_columns(db, "extension", EXTENSION)["rounds"]
    if any(rounds < 1 for rounds in found):
        raise ValueError("the column 'rounds' of 'extension' must be positive")
    return found[-1] if found else None


def round_columns(db: sqlite3.Connection) -> dict[str, Array]:
    """Return the rows per round as arrays; measures are columns too."""
    found = read_columns(db, "rounds", ROUNDS)
    parsed = {text: _numbers(text) for text in set(found["class_accuracy"])}  # mostly that of no evaluation
    lists = [parsed[text] for text in found["class_accuracy"]]
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


def client_columns(db: sqlite3.Connection, table: str) -> dict[str, Array]:
    """Return the rows per round and client as arrays: of ``clients`` that were asked, or ``client_scores``."""
    kinds = TABLES[table]
    none = _arrays(dict.fromkeys(kinds, ()), kinds)
    blocks = [none, *(_arrays(block, kinds) for block in read_blocks(db, table, kinds))]
    out = {column: np.concatenate([block[column] for block in blocks]) for column in none}
    if (out["client"] >= MOST_CLIENTS).any():
        raise ValueError(f"the column 'client' of {table!r} must be below {MOST_CLIENTS:,}")
    return out | ({"received": out["received"] > 0} if "received" in out else {})  # a mask, as in Replies


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
        if round not in where:
            continue
        if name not in out:
            out[name] = np.full(rounds.size, np.nan)
        out[name][where[round]] = value
    return out
