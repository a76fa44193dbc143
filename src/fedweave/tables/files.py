"""Files that are either the old ones or the whole new ones, and one sentence when a disk does not want to."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput


class NotStored(OSError):  # noqa: N818 - it says what happened, as FileNotFoundError does
    """A run could not be written; what was saved before is intact."""


@contextmanager
def writable(path: Path) -> Generator[None]:
    """Say in one sentence that what the user named cannot be written."""
    try:
        yield
    except OSError as e:
        raise BadInput(f"{str(path)!r} cannot be written: {e.strerror}.") from None


@contextmanager
def storing(path: Path | None, size: int | None = None) -> Generator[None]:
    """Say which file of a run could not be written, how many bytes it has and how many are free."""
    try:
        yield
    except NotStored:
        raise
    except (OSError, sqlite3.OperationalError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise NotStored(f"{str(path or 'a temporary file')!r} cannot be written: {why}{_room(path, size)}.") from e


def _room(path: Path | None, size: int | None) -> str:
    needed = [f"{size:,} bytes needed"] if size is not None else []
    try:
        free = [f"{shutil.disk_usage(path.parent).free:,} bytes free"] if path else []
    except OSError:
        free = []
    return f" ({', '.join(needed + free)})" if needed + free else ""


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` so that after a crash the file is either the old one or the whole new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        crash_point("file opened")
        file.write(content)
        file.flush()
        crash_point("file written")
        os.fsync(file.fileno())
    crash_point("file synced")
    temporary.replace(path)
    crash_point("file renamed")
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
