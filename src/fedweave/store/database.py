"""Open the database of a run, to write it or to read it (also from a read-only folder), and read it by type."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from fedweave.core.settings import BadInput, brief
from fedweave.tables.files import check_file, open_inside, shown_path

NAME = "run.sqlite"
BLOCK = 2**16  # rows that are read at a time
COPIES = 10  # attempts to copy a database that is being written, before the last one is taken
TYPES = {"INTEGER": {int}, "REAL": {float, int, type(None)}, "TEXT": {str}}  # NaN is stored as NULL


def connect(folder: Path | None, write: bool = True) -> sqlite3.Connection:
    """Open the database of a run folder; without a folder, one in memory."""
    if folder is None:
        return _configured(sqlite3.connect(":memory:", isolation_level=None))
    _check_files(folder, write)
    if not write and not os.access(folder, os.W_OK):
        return _copy_to_memory(folder)
    return _configured(sqlite3.connect(folder / NAME, isolation_level=None))


def observe(folder: Path) -> sqlite3.Connection:
    """Open the database of a run that another process may be writing; nothing in the folder is created or changed.

    ``connect`` would create the files -wal and -shm and remove them at the end. Close this one soon: a writer that ends
    meanwhile leaves these two files behind.
    """
    _check_files(folder, write=False)
    wal, shm = (os.path.exists(folder / f"{NAME}-{kind}") for kind in ("wal", "shm"))
    if wal and not shm:  # somebody copied the folder without it, and SQLite would have to create one
        return _copy_to_memory(folder)
    how = "readonly_shm=1" if wal else "immutable=1"  # without a log nobody is writing, and the file is all there is
    place = (folder.absolute() / NAME).as_uri()
    db = sqlite3.connect(f"{place}?mode=ro&{how}", uri=True, isolation_level=None)
    try:
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("SELECT 1 FROM sqlite_master")  # opens the files
    except sqlite3.OperationalError:
        db.close()
        if wal and not os.path.exists(folder / f"{NAME}-shm"):  # its writer has just ended and removed them
            return observe(folder)
        raise
    return db


def _check_files(folder: Path, write: bool) -> None:
    for name in (NAME, f"{NAME}-wal", f"{NAME}-shm"):
        check_file(folder / name, write)
    if os.path.lexists(folder / f"{NAME}-journal"):  # SQLite would delete the file that a forged journal names
        raise BadInput(f"{shown_path(folder / f'{NAME}-journal')} is no part of a run: remove it.")


def _configured(db: sqlite3.Connection) -> sqlite3.Connection:
    for pragma in ("trusted_schema=OFF", "journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    return db


def _copy_to_memory(folder: Path) -> sqlite3.Connection:
    """Return a copy in memory, because SQLite cannot read a database in WAL mode from a read-only folder."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory(prefix="fedweave-") as temporary:
        copies, before = [Path(temporary) / name for name in (NAME, f"{NAME}-wal")], None
        for _ in range(COPIES):
            if (now := [_stamp(folder / copy.name) for copy in copies]) == before:
                break
            before = now  # if somebody writes meanwhile, the two files do not belong together
            for copy in copies:
                copy.unlink(missing_ok=True)
                with suppress(FileNotFoundError), open_inside(folder / copy.name, "rb") as source:
                    copy.write_bytes(source.read())
        with closing(sqlite3.connect(copies[0])) as copied:
            copied.backup(memory)
    return memory


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return when a file was changed, and its size; None where there is no file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def check_schema(db: sqlite3.Connection, tables: Mapping[str, Mapping[str, str]], write: bool) -> None:
    """Refuse a database that has code in it (views, triggers), other columns than a run has, or broken pages."""
    for kind, name in db.execute("SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index')"):
        raise ValueError(f"it has a {brief(kind)} {brief(name)!r}, which no run has")
    for name, columns in tables.items():
        found = [(column, hidden) for _, column, _, _, _, _, hidden in db.execute(f"PRAGMA table_xinfo({name})")]
        if found and found != [(column, 0) for column in columns][: len(found)]:
            raise ValueError(f"its table {name!r} has other columns than a run's")
    if write and (damage := db.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
        raise ValueError(brief(str(damage[0]).replace("\n", " ")))


def read_columns(
    db: sqlite3.Connection, table: str, kinds: Mapping[str, str], tail: str = "ORDER BY rowid", *values: Any
) -> dict[str, tuple[Any, ...]]:
    """Return the columns of a table, each with values of its kind alone."""
    blocks = list(read_blocks(db, table, kinds, tail, *values))
    return {column: tuple(chain.from_iterable(block[column] for block in blocks)) for column in kinds}


def read_blocks(
    db: sqlite3.Connection, table: str, kinds: Mapping[str, str], tail: str = "ORDER BY rowid", *values: Any
) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Yield the columns of so many rows at a time: as Python's numbers, ten million rows would take gigabytes."""
    names = ", ".join(f'"{column}"' for column in kinds)
    cursor = db.execute(f"SELECT {names} FROM {table} {tail}", values)
    while rows := cursor.fetchmany(BLOCK):
        found = dict(zip(kinds, zip(*rows, strict=True), strict=True))
        for column, content in found.items():
            kind = kinds[column].split()[0]
            if wrong := set(map(type, content)) - TYPES[kind]:
                raise ValueError(f"the column {column!r} of {table!r} must hold {kind}, not {wrong.pop().__name__}")
        yield found


@contextmanager
def reading(folder: Path | None) -> Generator[None]:
    """Raise errors of reading a damaged database as one sentence (BadInput)."""
    try:
        yield
    except BadInput:
        raise
    except (
        sqlite3.DatabaseError,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        MemoryError,
    ) as e:  # damaged rows can hold any value
        raise BadInput(f"{shown_path((folder or Path()) / NAME)} cannot be read: {brief(str(e))}.") from None
