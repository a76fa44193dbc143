"""End the processes of a fleet when the process that started them has ended, however it ended.

A program of its own: it waits for the end of its input, which comes when its parent closes the pipe or ends. Then it
ends every process that has the fleet's mark in its environment, and removes the fleet's folder and namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import psutil

MARK = "FEDWEAVE_FLEET"  # inherited by every process of a fleet, also by those that leave their parents
TRIES = 50  # repeated, because a process may start another in the meantime


def members(mark: str) -> list[psutil.Process]:
    """Return the running processes with this mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark and process.pid != os.getpid():
                found.append(process)
    return found


def main(mark: str, folder: str, *spaces: str) -> None:
    """Wait, then clean up."""
    sys.stdin.buffer.read()
    for _ in range(TRIES):
        left = members(mark)
        if not left:
            break
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=2)
    for space in spaces:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
