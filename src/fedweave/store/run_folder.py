"""A run is a folder: the experiment, a manifest, rows in SQLite, and the newest states.

A state file is complete on disk (temporary name, fsync, rename, fsync of the folder) before the SQLite transaction with
its rows and its digest commits. So after a crash at any moment the folder holds the last committed state and the rows
up to its round, and nothing later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedweave.core.crash_points import crash_point
from fedweave.core.records import Array, Failure, ServerState
from fedweave.core.settings import BadInput, brief
from fedweave.store import lock, schema
from fedweave.store.audit import FILE as AUDIT_LOG
from fedweave.store.audit import Audit, End
from fedweave.store.audit import check as check_log
from fedweave.store.contents import Manifest, StoredExperiment
from fedweave.store.database import connect, read_columns, reading
from fedweave.store.states import Tables, is_intact, map_tables, pack, unpack
from fedweave.tables.files import read_bytes, read_json, shown_path, storing, writable, write_file
from fedweave.tables.rows import Where

SAVE_SECONDS = 2.0  # least time between two saves, so that short rounds stay fast; the last state is always saved
SAVE_SHARE = 0.2  # largest share of the time spent on saving, where tables are large
KEEP = 2


class NoState(BadInput):
    """A run folder whose states are all missing or damaged."""


class RunFolder:
    """The stored rows and states of one run; without a folder, rows are kept in memory and states are not kept."""

    def __init__(self, folder: Path | None, write: bool = True):
        self.folder = folder
        self._lock = lock.take(folder) if folder is not None and write else None
        try:
            self._db = connect(folder, write)
            schema.create_tables(self._db, write)
            self._tables = Tables(folder)
            self._audit = Audit(folder) if folder else None
        except BaseException:
            lock.release(self._lock)
            raise
        self._next_save, self._saved = time.monotonic() + SAVE_SECONDS, -1

    @classmethod
    def create(cls, folder: Path | None, experiment: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunFolder:
        """Start a new run; refuse a folder that is in use."""
        if folder is None:
            return cls(None)
        refuse_used(folder, "run.sqlite")
        with writable(folder):
            target = Path(os.path.abspath(folder))
            if target == Path.cwd():
                raise BadInput(
                    f"A run needs a folder of its own, and {shown_path(folder)} is the current one: name another."
                )
        files = {
            name: (json.dumps(content, indent=1) + "\n").encode()
            for name, content in (("experiment.json", experiment), ("manifest.json", manifest))
        }
        # Created under another name, then renamed: a run folder is either complete or absent.
        new = target.with_name(f".{target.name}.new")
        try:
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
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        crash_point("folder named")
        with storing(folder / "run.sqlite"):
            return cls(folder)

    @classmethod
    def open(cls, folder: Path, write: bool = True) -> RunFolder:
        """Open an existing run, to continue it or only to read it."""
        if not os.path.lexists(folder):
            raise BadInput(f"There is no folder {shown_path(folder)}.")
        missing = [name for name in ("run.sqlite", "experiment.json") if not os.path.isfile(folder / name)]
        if missing:
            raise BadInput(f"{shown_path(folder)} is not a run folder: it has no {' and no '.join(missing)}.")
        with reading(folder):
            return cls(folder, write)

    @property
    def experiment(self) -> dict[str, Any]:
        """The settings that the run began with, in experiment.json, with as many rounds as it was extended to."""
        assert self.folder is not None
        return read_json(self.folder / "experiment.json", StoredExperiment) | self._length()

    @property
    def manifest(self) -> dict[str, Any]:
        """Where the run comes from, in manifest.json, and how to repeat it with the rounds that it was extended to."""
        assert self.folder is not None
        manifest, length = read_json(self.folder / "manifest.json", Manifest), self._length()
        if began := manifest.get("experiment"):
            manifest["experiment"] = began | length
        if length:
            manifest["command"] = with_rounds(manifest.get("command"), length["rounds"])
        return manifest

    def _length(self) -> dict[str, int]:
        """Return the number of rounds that the run was extended to, if it was.

        experiment.json stays as it is: the audit log is chained to it.
        """
        with reading(self.folder):
            rounds = schema.extended_rounds(self._db)
        return {} if rounds is None else {"rounds": rounds}

    def add(
        self,
        row: Mapping[str, Any],
        clients: Mapping[str, Array],
        failures: Sequence[tuple[str, Failure]],
        scores: Mapping[str, Array] | None = None,
    ) -> None:
        """Add one round's rows; they become durable with the next saved state."""
        with storing(self.folder and self.folder / "run.sqlite"):
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            schema.insert_round(self._db, row, clients, failures, scores)

    def note(self, round: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add one round's lines to the audit log; they become durable with the next saved state."""
        if self._audit:
            self._audit.note(round, lines)

    def save(self, state: ServerState, *, always: bool = False) -> None:
        """Make everything up to ``state`` durable, if the last save was long enough ago."""
        begin = time.monotonic()
        saved = state.round == self._saved and not self._db.in_transaction  # and nothing was added since
        if saved or (not always and begin < self._next_save):
            return
        if self.folder is not None:
            self._write(self.folder, state)
        with storing(self.folder and self.folder / "run.sqlite"):
            crash_point("committing")
            if self._db.in_transaction:
                self._db.execute("COMMIT")
            crash_point("committed")
            self._forget_old()
        self._saved, now = state.round, time.monotonic()
        self._next_save = now + max(SAVE_SECONDS, (now - begin) * (1 / SAVE_SHARE - 1))

    def _write(self, folder: Path, state: ServerState) -> None:
        """Write the state's tables and file, and their database entry without committing it."""
        self._tables.keep(state)
        crash_point("tables kept")
        content, name = pack(state), state_file(state.round)
        with storing(folder / name, len(content)):
            write_file(folder / name, content)
        crash_point("state written")
        with storing(folder / AUDIT_LOG):
            end = self._audit.write(state.round) if self._audit else None
        with storing(folder / "run.sqlite"):
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            for table in schema.ROWS:  # a signal may have interrupted a later round while its rows were being added
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (state.round,))
            if end and end.bytes:
                self._db.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?)", (state.round, *end))
            sha = hashlib.sha256(content).hexdigest()
            self._db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (state.round, name, sha))

    def _forget_old(self) -> None:
        if self.folder is None:
            return
        old = self._db.execute(f"SELECT round FROM states ORDER BY round DESC LIMIT -1 OFFSET {KEEP}").fetchall()
        for (round,) in old:
            self._db.execute("DELETE FROM states WHERE round = ?", (round,))
            crash_point("state forgotten")
            (self.folder / state_file(round)).unlink(missing_ok=True)
        left = {round for (round,) in self._db.execute("SELECT round FROM states")}
        self._tables.forget(lambda round: round not in left)

    def tidy(self) -> None:
        """Remove the states that a kill left behind: older ones than are kept, and those that were never finished."""
        assert self.folder is not None
        with storing(self.folder / "run.sqlite"):
            self._forget_old()
            kept = {state_file(round) for (round,) in self._db.execute("SELECT round FROM states")}
            for file in self.folder.iterdir():
                ours = re.fullmatch(r"state-\d+\.safetensors|\.state-\d+\.safetensors\.tmp", file.name)
                if ours and file.name not in kept and not file.is_dir():
                    file.unlink()

    def start(self, state: ServerState, tables: Where) -> ServerState:
        """Return the initial state of a new run with its tables in memory or on disk, as asked."""
        return self._tables.moved(state, tables)

    def load_state(self, tables: Where | None = "ram") -> ServerState | None:
        """Return the last committed state, checked against its digests; None when no round was finished.

        Its tables are loaded into memory or stay on disk; ``None`` leaves them out, which is enough to read results.
        Where states were saved and none can be read, it raises NoState.
        """
        assert self.folder is not None
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
            # one place for all callers, so that Python shows it once
            warnings.warn(f"{what} is missing or damaged; trying the one before.", stacklevel=1)
        if found:
            way = "Its rows can still be read: `fedweave report` shows them, with the command that repeats the run"
            raise NoState(f"No state of the run {str(self.folder)!r} can be read: all are missing or damaged. {way}.")
        return None

    def last_round(self) -> int:
        """Return the round of the last committed state; 0 without one."""
        with reading(self.folder):
            return max(read_columns(self._db, "states", schema.STATES)["round"], default=0)

    def refuse_broken_log(self, round: int, audited: bool) -> None:
        """Refuse to continue from this round over an audit log that was edited, cut or deleted."""
        assert self.folder is not None
        end, problem = self.audit_end(round), ""
        if end is not None:
            problem = next((f":{n} {what}" for n, _, what in check_log(self.folder, end) if what), "")
        elif audited and round:
            problem = " has no end in run.sqlite: the database was changed"
        if problem:
            raise BadInput(f"{self.folder / AUDIT_LOG}{problem}. Put the log back as it was, or start a new run.")

    def rewind(self, round: int) -> None:
        """Remove everything after ``round``, the round that a run continues from."""
        with storing(self.folder and self.folder / "run.sqlite"):
            for table in (*schema.ROWS, "states"):
                crash_point("rewinding")
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
        self._tables.forget(lambda r: r > round)
        if self._audit and self.folder:
            with storing(self.folder / AUDIT_LOG):
                self._audit.rewind(self.audit_end())

    def extend(self, rounds: int, last: int) -> None:
        """Give the run another number of rounds, from its newest state up to round ``last``, all at once."""
        with storing(self.folder and self.folder / "run.sqlite"):
            self._db.execute("BEGIN IMMEDIATE")
            (kept,) = self._db.execute("SELECT MAX(round) FROM states WHERE round <= ?", (last,)).fetchone()
            for table in (*schema.ROWS, "states"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (kept or 0,))
            self._db.execute("DELETE FROM extension")
            schema.insert_rows(self._db, "extension", [(rounds,)])
            crash_point("extending")
            self._db.execute("COMMIT")
        crash_point("extended")

    def audit_end(self, round: int = 2**62) -> End | None:
        """Return the end of the audit log as recorded with the last state up to ``round``; None without a log."""
        with reading(self.folder):
            tail = "WHERE round <= ? ORDER BY round DESC LIMIT 1"
            _, *found = read_columns(self._db, "audit", schema.AUDIT, tail, round).values()
            ends = [End(*end) for end in zip(*found, strict=True)]
            if any(end.bytes < 0 for end in ends):
                raise ValueError("the column 'bytes' of 'audit' must not be negative")
        return ends[0] if ends else None

    def states(self) -> Iterator[tuple[int, str, ServerState | None]]:
        """Yield the stored states, newest first, as (round, file, state); the state is None where it is damaged."""
        assert self.folder is not None
        with reading(self.folder):
            found = read_columns(self._db, "states", schema.STATES, "ORDER BY round DESC")
            for round, name in zip(found["round"], found["file"], strict=True):
                if round < 0 or name != state_file(round):
                    raise ValueError(f"the state of round {round} must be {state_file(round)}, not {brief(name)!r}")
        for round, name, sha in zip(*found.values(), strict=True):
            content = read_bytes(self.folder / name)
            state = unpack(content) if hashlib.sha256(content).hexdigest() == sha else None
            yield round, name, state if state and state.round == round else None

    def columns(self, table: Literal["rounds", "clients", "client_scores"]) -> dict[str, Array]:
        """Return the rows of a table as arrays; measures are columns of ``rounds``."""
        with reading(self.folder):
            return schema.round_columns(self._db) if table == "rounds" else schema.client_columns(self._db, table)

    def failures(self) -> list[tuple[int, str, Failure]]:
        """Return why answers were rejected or rounds abandoned: (round, refused | failed | abandoned, failure)."""
        with reading(self.folder):
            rows = zip(*read_columns(self._db, "failures", schema.FAILURES).values(), strict=True)
            return [(round, kind, Failure(*rest)) for round, kind, *rest in rows]

    def close(self) -> None:
        """Close the database and drop rows added after the last saved state."""
        self._db.close()
        lock.release(self._lock)


def state_file(round: int) -> str:
    """Return the name of the file that holds the state after a round."""
    return f"state-{round:06d}.safetensors"


def with_rounds(command: Any, rounds: int) -> Any:
    """Return a command line of fedweave with another number of rounds; any other command as it is."""
    if not isinstance(command, str) or not re.match("fedweave (run|compare|sweep) ", command):
        return command
    rest = re.sub(r" (--rounds|--set[ =]rounds)[ =](\S+)", "", command)
    return f"{rest} --rounds {rounds}"


def refuse_used(folder: Path, mark: str) -> None:
    """Refuse a folder that is not empty; if it holds the file ``mark``, the error suggests to resume it.

    What a kill left of writing ``mark`` does not count: the next one takes its place.
    """
    with writable(folder):
        used = os.path.lexists(folder) and (
            not folder.is_dir() or any(entry != f".{mark}.tmp" for entry in os.listdir(folder))
        )
    if used:
        way = "choose another --out"
        way = f"`fedweave resume {folder}` continues it; for a new run {way}" if (folder / mark).exists() else way
        raise BadInput(f"The folder {shown_path(folder)} already exists and is not empty: {way}.")
