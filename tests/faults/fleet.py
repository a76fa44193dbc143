"""Runs in child processes, how they ended, and what they left behind."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedweave

THOROUGH = bool(os.environ.get("FEDWEAVE_FAULTS"))  # set by `make faults`; the suite takes a sample of the cases
STRINGS = 100_000 if THOROUGH else 2_000  # of rubbish
SOURCE = Path(fedweave.__file__).parent
_POINTS = sorted(
    {
        node.args[0].value
        for file in SOURCE.rglob("*.py")
        if "crash_point(" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "crash_point"
        if node.args and isinstance(node.args[0], ast.Constant)
    }
)
POINTS = [point for point in _POINTS if ": " not in point]  # of a run; those of commands begin with their names
COMMAND_POINTS = {
    command: [point for point in _POINTS if point.startswith(f"{command}: ")]
    for command in ("compare", "reproduce", "report", "export")
}
WORLD = {
    "data": "quadratics",
    "partition": "iid",
    "system": "dynamic",
    "clients": "7",
    "per_round": "3",
    "rounds": "6",
    "audit": "true",
}
RUNS: dict[str, tuple[str, dict[str, str]]] = {  # what each one puts at stake is a different kind of state
    "acs": ("fedacs_estimated", WORLD),
    "scaffold": ("scaffold", WORLD),
    "aware": ("fedaware", {**WORLD, "tables": "disk"}),
    "varp": ("fedvarp", {**WORLD, "tables": "disk"}),
    "latency": ("latency_optimal", {**WORLD, "rounds": "8"}),
    "delta": ("fedpracdelta", WORLD),
    "dropout": ("feddd", {**WORLD, "system": "wireless", "tables": "disk"}),
    "buffered": ("scaffold", {**WORLD, "pacing": "buffered:5:2:2"}),  # who is under way
    "workers": ("fedyogi", {**WORLD, "data": "digits", "workers": "2"}),  # evaluated beside the next round
}
CHOSEN = list(RUNS) if THOROUGH else ["scaffold", "aware", "buffered"]
STRUCK = list(RUNS) if THOROUGH else ["aware", "buffered"]  # which has what scaffold has, and more


class Zygote:
    """The program that forks a child per run."""

    def __init__(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # every child would start threads again
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, name: str, folder: Path, **how: Any) -> int:
        """Begin or go on with a run; return its exit code, or minus the signal that ended it."""
        method, options = RUNS[name]
        return self._do({"method": method, "options": options, "folder": str(folder), **how})

    def command(self, *words: str, cwd: Path, **how: Any) -> tuple[int, str, str]:
        """Do what the program does with these words; return exit code, output and errors."""
        code = self._do({"argv": words, "cwd": str(cwd), **how})
        return code, *((cwd / name).read_text() for name in ("out.txt", "err.txt"))

    def _do(self, job: dict[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def left(folder: Path) -> tuple[tuple[str, bytes, bytes, bytes], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return what a finished run left: its last and its best model, and its rows without those that tell the time."""
    result = fedweave.load_result(folder)
    rounds = {k: v for k, v in result.rounds.items() if k != "wall_seconds"}
    models = result.summary["digest"], *(result.best[name].tobytes() for name in ("x", "round", "value"))
    return models, rounds, result.clients


def assert_same(folder: Path, whole: Path) -> None:
    """Assert that a run ended as the undisturbed one did, every round exactly once."""
    (models, rounds, clients), (want, *tables) = left(folder), left(whole)
    assert models == want
    assert rounds["round"].tolist() == list(range(1, rounds["round"].size + 1))
    for found, wanted in zip((rounds, clients), tables, strict=True):
        assert found.keys() == wanted.keys()
        for column in wanted:
            np.testing.assert_array_equal(found[column], wanted[column], err_msg=column)
    assert (folder / "audit.jsonl").read_bytes() == (whole / "audit.jsonl").read_bytes()


def gone(folder: Path) -> None:
    """Remove a run and what was being made of it."""
    for each in (folder, folder.with_name(f".{folder.name}.new")):
        shutil.rmtree(each, ignore_errors=True)


def rubbish(seed: int, valid: bytes) -> Iterator[bytes]:
    """Yield random bytes, and valid content with a few bytes changed, cut or doubled."""
    rng = np.random.default_rng(seed)
    for n in range(STRINGS):
        if n % 2:
            yield rng.bytes(int(rng.integers(0, 300)))
            continue
        broken = bytearray(valid)
        for _ in range(int(rng.integers(1, 6))):
            at = int(rng.integers(0, len(broken)))
            way = int(rng.integers(3))
            if way == 0:
                broken[at] = int(rng.integers(256))
            elif way == 1:
                del broken[at : at + int(rng.integers(1, 20))]
            else:
                broken[at:at] = broken[at : at + int(rng.integers(1, 20))]
            broken = broken or bytearray(b"x")
        yield bytes(broken)
