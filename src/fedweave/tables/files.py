"""Atomic writes with one-sentence errors."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput


class NotStored(OSError):  # noqa: N818 - named for what happened, like FileNotFoundError
    """A run could not be written; what was saved before is intact."""


@contextmanager
def writable(path: Path) -> Generator[None]:
    """Raise errors of writing a path that the user named as one sentence (BadInput)."""
    try:
        yield
    except OSError as e:
        raise BadInput(f"{str(path)!r} cannot be written: {e.strerror}.") from None


@contextmanager
def storing(path: Path | None, size: int | None = None) -> Generator[None]:
    """Raise errors of writing a file of a run as one sentence: the file, the bytes needed and the bytes free."""
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
    """Write a file atomically: after a crash it holds either the old content or all of the new one."""
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
