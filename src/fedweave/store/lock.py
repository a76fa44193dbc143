"""One writer per run folder: a lock that the operating system releases when its process ends, however it ends."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fedweave.core.settings import BadInput, brief
from fedweave.tables.files import open_inside, storing


def take(folder: Path) -> IO[str]:
    """Lock a folder until the returned file is closed; refuse while another process holds the lock."""
    with storing(folder / ".lock"):
        file = open_inside(folder / ".lock", "a+")
    try:
        _lock(file)
    except OSError:
        file.seek(0)
        holder = brief(file.read(200).strip(), 200) or "another process"
        file.close()
        raise BadInput(
            f"The run {str(folder)!r} is being written by {holder}. Wait for it, or stop it first."
        ) from None
    since = datetime.now(UTC).isoformat(" ", "seconds")
    with storing(folder / ".lock"):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()} since {since}")
        file.flush()
    return file


def is_held(folder: Path) -> bool | None:
    """Return whether a process is writing the run; None if that cannot be known, as for one on another host.

    The lock itself is not tried: whoever tries it has it for a moment, and a run that begins then would be refused.
    """
    try:
        with open_inside(folder / ".lock", "r") as file:
            holder = re.fullmatch(r"process (\d{1,9}) on (.*) since .*", file.read(1000))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return None
    if holder is None or holder[2] != platform.node() or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        files = [f"/proc/{holder[1]}/fd/{name}" for name in os.listdir(f"/proc/{holder[1]}/fd")]
    except PermissionError:  # somebody else's process
        return True
    except OSError:
        return False
    opened = set()
    for file in files:
        with suppress(OSError):  # closed since
            opened.add(os.readlink(file))
    return os.path.realpath(folder / ".lock") in opened  # else its number belongs to another process by now


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: a byte far behind the text, since nobody else can read what is locked
        import msvcrt

        os.lseek(file.fileno(), 2**30, os.SEEK_SET)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        os.lseek(file.fileno(), 0, os.SEEK_SET)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
