"""The database of a run: opened to be written, or read wherever it lies."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from fedweave.core.settings import BadInput

NAME = "run.sqlite"


def connect(folder: Path | None, write: bool = True) -> sqlite3.Connection:
    """Return the database of a run folder; without a folder, one in memory."""
    if folder is not None and not write and not os.access(folder, os.W_OK):
        return _copied(folder)
    db = sqlite3.connect(":memory:" if folder is None else folder / NAME, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _copied(folder: Path) -> sqlite3.Connection:
    """Return a copy in memory: SQLite does not read a database with a log where it cannot write beside it."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory(prefix="fedweave-") as place:
        for name in (NAME, f"{NAME}-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(folder / name, Path(place) / name)
        with closing(sqlite3.connect(Path(place) / NAME)) as copy:
            copy.backup(memory)
    return memory


@contextmanager
def reading(folder: Path) -> Generator[None]:
    """Say in one sentence that the rows of a run are damaged."""
    try:
        yield
    except BadInput:
        raise
    except (sqlite3.DatabaseError, TypeError, ValueError, LookupError, ArithmeticError) as e:  # values of any kind
        raise BadInput(f"{str(folder / NAME)!r} cannot be read: {e}.") from None
