"""One writer per run folder: a lock that the operating system releases when its process ends, however it ends."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from fedweave.core.settings import BadInput, brief
from fedweave.tables.files import open_inside, storing

# Of a run: a process has it open; nobody has; its process died before it closed it; or that cannot be known from here.
Writer = Literal["writing", "closed", "killed", "unknown"]


def take(folder: Path) -> IO[str]:
    """Lock a folder until the returned file is released; refuse while another process holds the lock."""
    with storing(folder / ".lock"):
        file = open_inside(folder / ".lock", "a+")
    try:
        _lock(file)
    except OSError:
        file.seek(0)
        holder = brief(file.readline(200).strip(), 200) or "another process"
        file.close()
        raise BadInput(
            f"The run {str(folder)!r} is being written by {holder}. Wait for it, or stop it first."
        ) from None
    since = datetime.now(UTC).isoformat(" ", "seconds")
    with storing(folder / ".lock"):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()} since {since}\nopen\n")
        file.flush()
    return file


def release(file: IO[str] | None) -> None:
    """Give the lock back if there is one, and mark it so: what is open while its process is gone was killed."""
    if file is None or file.closed:
        return
    with suppress(OSError):  # such as a full disk: then it is not known how the run ended
        file.seek(0)
        holder = file.readline()
        file.truncate(0)
        file.write(f"{holder}closed\n")
        file.flush()
    file.close()


def writer(folder: Path) -> Writer:
    """Return whether a process is writing the run; a process on another host, say, cannot be seen.

    The lock itself is not tried: whoever tries it has it for a moment, and a run that begins then would be refused.
    Older versions did not mark what they closed, so of their runs nobody can say that they were killed.
    """
    try:
        with open_inside(folder / ".lock", "r") as file:
            holder = re.fullmatch(r"process (\d{1,9}) on (.*) since .*(?:\n(open|closed)\n)?", file.read(1000))
    except FileNotFoundError:
        return "closed"
    except (OSError, ValueError):
        return "unknown"
    if holder is not None and holder[3] == "closed":
        return "closed"
    if holder is None or holder[2] != platform.node() or not os.path.isdir("/proc/self/fd"):
        return "unknown"
    gone: Writer = "killed" if holder[3] else "closed"
    try:
        files = [f"/proc/{holder[1]}/fd/{name}" for name in os.listdir(f"/proc/{holder[1]}/fd")]
    except PermissionError:  # somebody else's process
        return "writing"
    except OSError:
        return gone
    opened = set()
    for file in files:
        with suppress(OSError):  # closed since
            opened.add(os.readlink(file))
    here = os.path.realpath(folder / ".lock") in opened  # else its number belongs to another process by now
    return "writing" if here else gone


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
