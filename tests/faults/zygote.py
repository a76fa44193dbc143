"""A program that imports fedweave once and forks for every run it is told to do: starting Python anew takes seconds.

It reads one JSON object per line and answers each with how the child ended: its exit code, or minus the signal.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import fedweave.store.run_folder as run_folder
from fedweave import fault
from fedweave.options import experiments_of
from fedweave.running import resume, run

run_folder.SAVE_SECONDS, run_folder.SAVE_SHARE = 0, 1  # a state after every round


def armed(strike: dict[str, Any]) -> Any:
    """Return what strikes when a point is passed for the n-th time: by kill -9, or as a disk that is full."""
    seen: Counter[str] = Counter()

    def at(point: str) -> None:
        seen[point] += 1
        if point == strike["point"] and seen[point] >= strike["nth"]:
            if strike["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return at


def child(job: dict[str, Any]) -> int:
    """Begin a run, or go on with it where there is one."""
    folder = Path(job["folder"])
    if job.get("strike"):
        fault.strike = armed(job["strike"])
    try:
        if folder.exists():
            resume(folder)
        else:
            (experiment,), _ = experiments_of([job["method"]], job["options"])
            run(experiment, folder)
    except BaseException as e:
        (folder.parent / "error.txt").write_text(f"{type(e).__name__}: {e}")
        if not isinstance(e, OSError):
            traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Do jobs until there are no more."""
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            os._exit(child(job))
        if job.get("after") is not None:
            time.sleep(job["after"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
