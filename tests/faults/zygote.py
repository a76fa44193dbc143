"""A program that imports fedweave once and forks for every run it is told to do: starting Python anew takes seconds.

It reads one JSON object per line and answers each with how the child ended: its exit code, or minus the signal.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import pickle
import resource
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import scipy.linalg

import fedweave.store.run_folder as run_folder
from fedweave import papers, report
from fedweave.cli import app as cli
from fedweave.cli.options import experiments_of
from fedweave.core import crash_points
from fedweave.models import nets
from fedweave.papers.common import drawing, parallel
from fedweave.papers.common.panels import curves
from fedweave.papers.common.record import last
from fedweave.papers.common.study import Measure, Study
from fedweave.runs import sweep as sweeping
from fedweave.runs.loop import load_result, resume, run

assert all((sweeping, drawing, nets, report, scipy.linalg))  # loaded before the first fork
run_folder.SAVE_SECONDS, run_folder.SAVE_SHARE = 0, 1  # a state after every round
parallel.PROCESSES = 1  # a reproduction's runs are killed with it


def tiny_arms(scale: Any) -> dict[str, Any]:
    """Return experiments that take no time."""
    (experiment,), _ = experiments_of(["fedavg"], {"data": "quadratics", "partition": "iid", "rounds": "3"})
    return {"fedavg": experiment}


tiny = Study(
    name="feddd/tiny",
    shows="for the fault suite",
    arms=tiny_arms,
    seeds={"smoke": 2, "laptop": 2, "paper": 2},
    measures={"loss": Measure(last("loss"))},
    panels=(curves("Loss", "loss"),),
)
cast(dict[str, Study], papers.studies())[tiny.name] = tiny
os.environ["FEDWEAVE_CACHE"] = "cache"  # in the folder of each command


def armed(point: str, nth: int, how: str) -> Any:
    """Return what strikes when a point is passed for the n-th time.

    ``how`` is a signal, which is sent once, or "lost" and a signal, whose exception Python drops; an error of the
    system, with which this and every later passage fails; "database", with which SQLite says that the disk is full; or
    "no handles", after which the system gives this process no further file.
    """
    seen: Counter[str] = Counter()

    def at(passed: str) -> None:
        seen[passed] += 1
        if passed != point or seen[point] < nth:
            return
        if how.startswith("lost SIG"):
            if seen[point] == nth:
                Dropping(how.removeprefix("lost "))
        elif how.startswith("SIG"):
            if seen[point] == nth:
                os.kill(os.getpid(), signal.Signals[how])
        elif how == "database":
            raise sqlite3.OperationalError("database or disk is full")
        elif how == "no handles":
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        else:
            code = getattr(errno, how)
            raise OSError(code, os.strerror(code))

    return at


class Dropping:
    """Sends a signal in the midst of its finalizer, where Python drops what the handler raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.Signals[self._name])


def as_anyone() -> None:
    """Give up root's right to write where permissions forbid it, which no test of permissions could bear."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def offline(log: Path) -> None:
    """Refuse every way out of this machine, also by name, and write down who tries; in child processes too."""
    guard = log.parent / "guard" / "sitecustomize.py"
    guard.parent.mkdir(exist_ok=True)
    guard.write_text(GUARD.format(log=str(log)))
    sys.path.insert(0, str(guard.parent))  # which worker processes inherit
    exec(compile(guard.read_text(), str(guard), "exec"), {})


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Stand where something was that must not be used."""
    raise SystemExit("pickle was asked to load")  # which nobody takes for a file of another kind


GUARD = """
import socket, sys

def hook(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and args[0].family == socket.AF_UNIX:
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        with open({log!r}, "a") as file:
            file.write(f"{{event}} {{args[1:]}}\\n")
        raise OSError(101, "Network is unreachable")

sys.addaudithook(hook)
with open({log!r}, "a") as file:
    file.write("guarded\\n")
"""


def command(job: dict[str, Any]) -> int:
    """Do what the program does with these words, or with several such lists joined by &&; output goes to files."""
    os.chdir(job["cwd"])
    for stream, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    job["begun"] = True
    code = 0
    for words in " ".join(job["argv"]).split(" && "):
        sys.argv = ["fedweave", *words.split()]
        try:
            cli.main()
        except SystemExit as e:
            code = code or int(e.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def child(job: dict[str, Any]) -> int:
    """Begin a run, go on with it where there is one, or only read it, without pickle; or do a command."""
    if job.get("strike"):
        crash_points.strike = armed(**job["strike"])
    if job.get("plain_page"):
        report.page = lambda results: f"<html>{len(results)} runs</html>\n"
        report.sweep_page = lambda sweep: f"<html>{len(sweep.results)} runs</html>\n"
    if job.get("as_anyone"):
        as_anyone()
    if job.get("no_data"):
        os.environ["FEDWEAVE_DATA"] = os.environ["XDG_CACHE_HOME"] = os.environ["HOME"] = job["cwd"]
    if job.get("offline"):
        offline(Path(job["offline"]))
    if "argv" in job:
        return command(job)
    folder = Path(job["folder"])
    try:
        if job.get("only_read"):
            pickle.load = pickle.loads = pickle.Unpickler = refuse
            load_result(folder)
        elif folder.exists():
            resume(folder)
        else:
            (experiment,), _ = experiments_of([job["method"]], job["options"])
            run(experiment, folder)
    except BaseException as e:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with suppress(NotADirectoryError):
            (folder.parent / "error.txt").write_text(f"{type(e).__name__}: {e}")
        if not isinstance(e, OSError):
            traceback.print_exc()
        return 1
    return 0


def ended(job: dict[str, Any]) -> int:
    """Return the exit code of a job, whatever happens in it: a child must never become a second zygote."""
    try:
        return child(job)
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt) and not job.get("begun"):
            return 130  # on a busy machine a signal comes before the command does: it is as if it had not been started
        traceback.print_exc()
        return 70


def main() -> None:
    """Do jobs until there are no more."""
    gc.freeze()  # a child that looks for garbage would copy all the memory that it shares
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            os._exit(ended(job))
        if job.get("after") is not None:
            time.sleep(job["after"])
            os.kill(pid, signal.Signals[job.get("by", "SIGKILL")])
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # taking everything apart again would take a second
