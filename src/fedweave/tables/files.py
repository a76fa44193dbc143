"""Files of a run: opened without following links, written atomically, with one-sentence errors."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedweave.core.crash_points import crash_point
from fedweave.core.errors import BadInput, brief
from fedweave.core.errors import NotStored as NotStored
from fedweave.core.typed_json import parse_json


@contextmanager
def writable(path: Path) -> Generator[None]:
    """Raise errors of writing a path that the user named as one sentence (BadInput)."""
    try:
        yield
    except NotStored as e:
        raise BadInput(str(e)) from None
    except (OSError, sqlite3.DatabaseError) as e:
        raise BadInput(f"{shown_path(path)} cannot be written: {_reason(e)}.") from None


@contextmanager
def storing(path: Path | None, size: int | None = None) -> Generator[None]:
    """Raise errors of writing a file of a run as one sentence: the file, the bytes needed and the bytes free."""
    try:
        yield
    except NotStored:
        raise
    except (OSError, sqlite3.DatabaseError) as e:
        if path:
            raise NotStored(f"{shown_path(path)} cannot be written: {_reason(e)}{_room(path.parent, size)}.") from e
        folder = _temporary()
        where = f" in {shown_path(folder)}" if folder else ""
        why = f"{_reason(e)}{_room(folder, size)}. TMPDIR can name another folder."
        raise NotStored(f"A temporary file{where} cannot be written: {why}") from e


def _temporary() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # there is none that can be written
        return None


def _reason(e: Exception) -> str:
    return e.strerror if isinstance(e, OSError) and e.strerror else str(e) or type(e).__name__


def shown_path(path: Path) -> str:
    """Return a path as errors show it, shortened where it is absurdly long."""
    text = str(path)
    return repr(text) if len(text) < 300 else f"{brief(text)!r}… ({len(text):,} characters)"


def _room(folder: Path | None, size: int | None) -> str:
    needed = [f"{size:,} bytes needed"] if size is not None else []
    try:
        free = [f"{shutil.disk_usage(folder).free:,} bytes free"] if folder else []
    except OSError:
        free = []
    return f" ({', '.join(needed + free)})" if needed + free else ""


def open_inside(path: Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Open a file of a run folder: never through a link, which may lead anywhere, and no pipe or device.

    What has a second name (a hard link) is not opened for writing in place. ``mode`` must not truncate.
    """
    return open(path, mode, buffering, opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    refuse_link(Path(path), write=bool(flags & (os.O_WRONLY | os.O_RDWR)))
    safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # the name may have changed since
    return os.open(path, flags | safe, 0o666)


def refuse_link(path: Path, write: bool) -> None:
    """Raise OSError for what is no file of its own: a link, a folder, a pipe; for writing also a second name."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EPERM, "it must be a file, and is a link, a folder or a device", str(path))
    if write and info.st_nlink > 1:
        raise OSError(errno.EPERM, "it has a second name elsewhere (a hard link); copy the folder", str(path))


def check_file(path: Path, write: bool) -> None:
    """Refuse with one sentence (BadInput) a file that ``open_inside`` would not open."""
    try:
        refuse_link(path, write)
    except OSError as e:
        raise BadInput(f"{shown_path(path)} cannot be used: {_reason(e)}.") from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file of a run folder, nothing where there is none; otherwise one sentence (BadInput)."""
    try:
        with open_inside(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except (OSError, MemoryError) as e:
        raise BadInput(f"{shown_path(path)} cannot be read: {_reason(e)}.") from None


def read_json(path: Path, kind: Any) -> Any:
    """Return the content of a JSON file of a run folder if it is a ``kind``; otherwise one sentence with its name."""
    if not os.path.lexists(path):
        raise BadInput(f"{shown_path(path)} is missing.")
    return parse_json(read_bytes(path), kind, shown_path(path))


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash it holds either the old content or all of the new one."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """Yield a temporary file that atomically takes the place of ``path`` at the end; a killed one is overwritten."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # a link that somebody put there is removed, not followed
    try:
        with temporary.open("xb") as file:
            crash_point("file opened")
            yield file
            file.flush()
            crash_point("file written")
            os.fsync(file.fileno())
        crash_point("file synced")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    crash_point("file renamed")
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
