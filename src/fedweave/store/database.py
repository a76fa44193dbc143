"""Open the database of a run, to write it or to read it (also from a read-only folder)."""

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
    """Open the database of a run folder; without a folder, one in memory."""
    if folder is not None and not write and not os.access(folder, os.W_OK):
        return _copy_to_memory(folder)
    db = sqlite3.connect(":memory:" if folder is None else folder / NAME, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _copy_to_memory(folder: Path) -> sqlite3.Connection:
    """Return a copy in memory, because SQLite cannot read a database in WAL mode from a read-only folder."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory(prefix="fedweave-") as temporary:
        for name in (NAME, f"{NAME}-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(folder / name, Path(temporary) / name)
        with closing(sqlite3.connect(Path(temporary) / NAME)) as copy:
            copy.backup(memory)
    return memory


@contextmanager
def reading(folder: Path) -> Generator[None]:
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
    ) as e:  # damaged rows can hold any value
        raise BadInput(f"{str(folder / NAME)!r} cannot be read: {e}.") from None
