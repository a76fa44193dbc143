"""Run folders for the tests of the page: many rounds written at once, and a run that another program writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from fedweave.store.schema import CLIENTS, ROUNDS, create_tables, insert_rows

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"


def accuracy(round: int) -> float:
    """Return the accuracy of every made-up run: a curve with one needle in it."""
    return 0.99 if round == 4321 else 0.9 - 0.8 / (1 + round / 50)


def made(folder: Path, rounds: int = 3, planned: int | None = None, clients: int = 4, **settings) -> Path:
    """Make a run folder; in round r the clients r and r + 1 (mod ``clients``) are asked, and the first answers."""
    folder.mkdir(parents=True)
    method = {"name": settings.pop("method", "fedavg")}
    experiment = {
        "method": method,
        "seed": 0,
        "rounds": planned or rounds,
        "target": None,
        "data": "digits",
        **settings,
    }
    task = {"primary": "accuracy", "higher_is_better": True}
    manifest = {"data": {"name": "digits"}, "versions": {}, "clients": clients, "task": task, "experiment": experiment}
    for name, content in (("experiment.json", experiment), ("manifest.json", manifest)):
        (folder / name).write_text(json.dumps(content))
    with closing(sqlite3.connect(folder / "run.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")
        create_tables(db, write=True)
        db.execute("BEGIN")
        insert_rows(db, "rounds", (_round(r) for r in range(1, rounds + 1)))
        insert_rows(db, "clients", (_client(r, i, clients) for r in range(1, rounds + 1) for i in range(2)))
        insert_rows(db, "measures", ((r, "diversity", 1 / r) for r in range(1, min(rounds, 50) + 1)))
        db.execute("COMMIT")
    return folder


def many(folder: Path, count: int, rounds: int = 2) -> list[str]:
    """Make so many equal runs in a folder, and return their names."""
    names = [f"run-{i:03d}" for i in range(count)]
    first = made(folder / names[0], rounds)
    for name in names[1:]:
        shutil.copytree(first, folder / name)
    return names


def _round(r: int) -> tuple:
    values = {
        "round": r, "clock": 1.5 * r, "seconds": 1.5, "device_seconds": 2.0, "wall_seconds": 0.1 * r,
        "accuracy": accuracy(r), "loss": 1 - accuracy(r), "train_loss": 1 - accuracy(r), "asked": 2, "received": 1,
        "refused": 0, "bytes_up": 1000 * r, "bytes_down": 2000 * r, "class_accuracy": "[]", "abandoned": 0,
    }  # fmt: skip
    return tuple(values[column] for column in ROUNDS)


def _client(r: int, i: int, clients: int) -> tuple:
    values = dict.fromkeys(CLIENTS, 0) | {"round": r, "client": (r + i) % clients, "count": 1, "received": int(i == 0)}
    return tuple(values[column] for column in CLIENTS)


def contents(folder: Path) -> dict[str, tuple]:
    """Return all that can be seen of the files in a folder: names, times of change, sizes and digests."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (info.st_mtime_ns, info.st_ino, info.st_size, info.st_mode, digest)
    return found


WRITER = """
import os, sys
from pathlib import Path
from store import toy_runs
folder, number = Path(sys.argv[1]), 0
store = toy_runs.RunFolder.create(folder, {**toy_runs.EXPERIMENT, "rounds": int(sys.argv[2])}, toy_runs.MANIFEST)
for line in sys.stdin:
    word, _, count = line.strip().partition(" ")
    if word == "add":
        for _ in range(int(count)):
            number += 1
            store.add(toy_runs.row(number, accuracy=number / 10, diversity=1 / number), toy_runs.clients(number), [])
    elif word == "save":
        store.save(toy_runs.state(number), always=True)
    elif word == "close":
        store.close()
    print(line.strip(), flush=True)
"""


class Writer:
    """A run under way in another process: it writes when asked, and answers when it has."""

    def __init__(self, folder: Path, rounds: int = 9):
        self.folder = folder
        path = os.pathsep.join(map(str, (SOURCE, TESTS)))
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __call__(self, *lines: str) -> None:
        for line in lines:
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline().strip() == line

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
