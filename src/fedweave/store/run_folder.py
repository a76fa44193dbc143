"""A run is a folder: the experiment, a manifest, rows in SQLite, and the newest states.

A state file is complete on disk (temporary name, fsync, rename, fsync of the folder) before the SQLite transaction with
its rows and its digest commits. So after a crash at any moment the folder holds the last committed state and the rows
up to its round, and nothing later.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.records import Array, Failure, ServerState
from fedweave.core.settings import BadInput
from fedweave.store import lock
from fedweave.store.audit import FILE as AUDIT_LOG
from fedweave.store.audit import Audit, End
from fedweave.store.database import connect, reading
from fedweave.store.states import Tables, is_intact, map_tables, pack, unpack
from fedweave.tables.files import storing, writable, write_file
from fedweave.tables.rows import Where

SAVE_SECONDS = 2.0  # least time between two saves, so that short rounds stay fast; the last state is always saved
SAVE_SHARE = 0.2  # largest share of the time spent on saving, where tables are large
KEEP = 2

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

ROWS = ("rounds", "clients", "failures", "measures", "audit")


class RunFolder:
    """The stored rows and states of one run; without a folder, rows are kept in memory and states are not kept."""

    def __init__(self, folder: Path | None, write: bool = True):
        self.folder = folder
        self._lock = lock.take(folder) if folder is not None and write else None
        self._db = connect(folder, write)
        for name, columns, tail in (
            ("rounds", ROUNDS, ""),
            ("clients", CLIENTS, ", PRIMARY KEY (round, client)"),
            ("failures", FAILURES, ""),
            ("measures", MEASURES, ", PRIMARY KEY (round, name)"),
            ("audit", AUDIT, ""),
            ("states", STATES, ""),
        ):
            body = ", ".join(f'"{c}" {kind}' for c, kind in columns.items())
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({body}{tail})")
        if "abandoned" not in {column for _, column, *_ in self._db.execute("PRAGMA table_info(rounds)")}:
            self._db.execute(
                "ALTER TABLE rounds ADD COLUMN abandoned INTEGER DEFAULT 0"
            )  # runs of older versions lack it
        self._tables = Tables(folder)
        self._audit = Audit(folder) if folder else None
        self._next_save = time.monotonic() + SAVE_SECONDS

    @classmethod
    def create(cls, folder: Path | None, experiment: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunFolder:
        """Start a new run; refuse a folder that is in use."""
        if folder is None:
            return cls(None)
        refuse_used(folder, "run.sqlite")
        files = {
            name: (json.dumps(content, indent=1) + "\n").encode()
            for name, content in (("experiment.json", experiment), ("manifest.json", manifest))
        }
        # Created under another name, then renamed: a run folder is either complete or absent.
        new = folder.with_name(f".{folder.name}.new")
        with writable(folder):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            crash_point("folder made")
            for name, content in files.items():
                write_file(new / name, content)
            cls(new).close()
            crash_point("folder filled")
            if folder.exists():
                folder.rmdir()
            new.rename(folder)
            crash_point("folder named")
        return cls(folder)

    @classmethod
    def open(cls, folder: Path, write: bool = True) -> RunFolder:
        """Open an existing run, to continue it or only to read it."""
        if not (folder / "run.sqlite").is_file() or not (folder / "experiment.json").is_file():
            raise BadInput(f"{str(folder)!r} is not a run folder: it has no run.sqlite and experiment.json.")
        with reading(folder):
            return cls(folder, write)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return experiment.json or manifest.json."""
        assert self.folder is not None
        try:
            return json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as e:
            raise BadInput(f"{str(self.folder / name)!r} cannot be read: {e}.") from None

    def add(
        self, row: Mapping[str, Any], clients: Mapping[str, Array], failures: Sequence[tuple[str, Failure]]
    ) -> None:
        """Add one round's rows; they become durable with the next saved state.

        Entries of ``row`` that are not columns of every run are stored as measures, which differ from run to run.
        """
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        values = {
            **row,
            "class_accuracy": json.dumps([None if np.isnan(v) else v for v in row["class_accuracy"]]),
        }
        self._insert("rounds", ROUNDS, [tuple(values[c] for c in ROUNDS)])
        self._insert("clients", CLIENTS, zip(*(np.asarray(clients[c]).tolist() for c in CLIENTS), strict=True))
        self._insert("failures", FAILURES, [(row["round"], kind, *failure) for kind, failure in failures])
        measures = [(row["round"], name, value) for name, value in row.items() if name not in ROUNDS]
        self._insert("measures", MEASURES, measures)

    def note(self, round: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add one round's lines to the audit log; they become durable with the next saved state."""
        if self._audit:
            self._audit.note(round, lines)

    def _insert(self, table: str, columns: Mapping[str, str], rows: Any) -> None:
        self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)

    def save(self, state: ServerState, *, always: bool = False) -> None:
        """Make everything up to ``state`` durable, if the last save was long enough ago."""
        begin = time.monotonic()
        if not always and begin < self._next_save:
            return
        if self.folder is not None:
            self._write(self.folder, state)
        with storing(self.folder and self.folder / "run.sqlite"):
            crash_point("committing")
            if self._db.in_transaction:
                self._db.execute("COMMIT")
            crash_point("committed")
            self._forget_old()
        now = time.monotonic()
        self._next_save = now + max(SAVE_SECONDS, (now - begin) * (1 / SAVE_SHARE - 1))

    def _write(self, folder: Path, state: ServerState) -> None:
        """Write the state's tables and file, and their database entry without committing it."""
        self._tables.keep(state)
        crash_point("tables kept")
        content, name = pack(state), f"state-{state.round:06d}.safetensors"
        with storing(folder / name, len(content)):
            write_file(folder / name, content)
        crash_point("state written")
        with storing(folder / AUDIT_LOG):
            end = self._audit.write(state.round) if self._audit else None
        with storing(folder / "run.sqlite"):
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            for table in ROWS:  # a signal may have interrupted a later round while its rows were being added
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (state.round,))
            if end and end.bytes:
                self._db.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?)", (state.round, *end))
            sha = hashlib.sha256(content).hexdigest()
            self._db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (state.round, name, sha))

    def _forget_old(self) -> None:
        if self.folder is None:
            return
        old = self._db.execute(f"SELECT round, file FROM states ORDER BY round DESC LIMIT -1 OFFSET {KEEP}").fetchall()
        for round, name in old:
            self._db.execute("DELETE FROM states WHERE round = ?", (round,))
            crash_point("state forgotten")
            (self.folder / name).unlink(missing_ok=True)
        left = {round for (round,) in self._db.execute("SELECT round FROM states")}
        self._tables.forget(lambda round: round not in left)

    def start(self, state: ServerState, tables: Where) -> ServerState:
        """Return the initial state of a new run with its tables in memory or on disk, as asked."""
        return self._tables.moved(state, tables)

    def load_state(self, tables: Where | None = "ram") -> ServerState | None:
        """Return the last committed state, checked against its digests; None when no round was finished.

        Its tables are loaded into memory or stay on disk; ``None`` leaves them out, which is enough to read results.
        """
        assert self.folder is not None
        with reading(self.folder):
            found = list(self.states())
        states = {r: state for r, _, state in found if state is not None}
        if tables is None:
            states = {r: map_tables(state, lambda *_: None) for r, state in states.items()}
        else:
            states = self._tables.restore(states)
        for round, name, _ in found:
            if round in states and is_intact(states[round]):
                return self._tables.moved(states[round], tables) if tables else states[round]
            what = f"The state of round {round} ({self.folder / name})"
            warnings.warn(f"{what} is missing or damaged; trying the one before.", stacklevel=2)
        if found:
            raise BadInput(f"No state of the run {str(self.folder)!r} can be read: all are missing or damaged.")
        return None

    def rewind(self, round: int) -> None:
        """Remove everything after ``round``, the round that a run continues from."""
        for table in (*ROWS, "states"):
            crash_point("rewinding")
            self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
        self._tables.forget(lambda r: r > round)
        if self._audit:
            self._audit.rewind(self.audit_end())

    def audit_end(self) -> End | None:
        """Return the recorded end of the audit log; None when the run has no log."""
        found = self._db.execute("SELECT bytes, chain FROM audit ORDER BY round DESC LIMIT 1").fetchone()
        return End(*found) if found else None

    def states(self) -> Iterator[tuple[int, str, ServerState | None]]:
        """Yield the stored states, newest first, as (round, file, state); the state is None where it is damaged."""
        assert self.folder is not None
        for round, name, sha in self._db.execute("SELECT * FROM states ORDER BY round DESC").fetchall():
            file = self.folder / name
            content = file.read_bytes() if file.is_file() else b""
            yield round, name, unpack(content) if hashlib.sha256(content).hexdigest() == sha else None

    def columns(self, table: str) -> dict[str, Array]:
        """Return the rows of ``rounds`` or ``clients`` as arrays; measures are columns of ``rounds``."""
        kinds = {"rounds": ROUNDS, "clients": CLIENTS}[table]
        rows = self._db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        found = dict(zip(kinds, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(kinds, ())
        out = {c: np.array(v, _DTYPES[kinds[c].split()[0]]) for c, v in found.items() if c != "class_accuracy"}
        if "class_accuracy" in found:
            lists = [json.loads(text) for text in found["class_accuracy"]]
            classes = max(map(len, lists), default=0)  # a round without evaluation has an empty list
            filled = [each or [None] * classes for each in lists]
            out["class_accuracy"] = np.array(filled, float).reshape(len(lists), classes)
        return {**out, **self._measures(out["round"])} if table == "rounds" else out

    def failures(self) -> list[tuple[int, str, Failure]]:
        """Return why answers were rejected or rounds abandoned: (round, refused | failed | abandoned, failure)."""
        rows = self._db.execute("SELECT * FROM failures ORDER BY rowid").fetchall()
        return [(round, kind, Failure(*rest)) for round, kind, *rest in rows]

    def _measures(self, rounds: Array) -> dict[str, Array]:
        """Return the measures as columns, NaN in rounds without a value."""
        where, out = {r: i for i, r in enumerate(rounds.tolist())}, dict[str, Array]()
        for round, name, value in self._db.execute("SELECT * FROM measures ORDER BY rowid"):
            if round in where:
                out.setdefault(name, np.full(rounds.size, np.nan))[where[round]] = value
        return out

    def close(self) -> None:
        """Close the database and drop rows added after the last saved state."""
        self._db.close()
        if self._lock is not None:
            self._lock.close()


_DTYPES = {"INTEGER": np.int64, "REAL": np.float64, "TEXT": object}


def refuse_used(folder: Path, mark: str) -> None:
    """Refuse a folder that is not empty; if it holds the file ``mark``, the error suggests to resume it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        way = f"`fedweave resume {folder}` continues it" if (folder / mark).exists() else "choose another --out"
        raise BadInput(f"The folder {str(folder)!r} already exists and is not empty: {way}.")
