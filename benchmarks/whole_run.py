"""Where the time of a whole `fedweave run` goes: start, data, preparation, training, evaluation, server, records.

W1 and W2 as in rounds.py, with 1,000 test images; MNIST: 100 clients, 10 of them a round, 5 epochs of batch 10, a small
CNN; each evaluated every round. Wall seconds of the main process by what it does; "start" begins with the process, and
"end" is from the last word to its end. With workers, evaluation beside training counts as training.

--start: seconds of `fedweave run` on digits with one round, of `list` and of `--help`, against another checkout; and of
Python alone and with torch, which a run needs.
--overlap: the MNIST run with evaluation every round against its training alone (evaluated after the last round only).
Both sides in one run, alternating; the figure is the median over turns of the ratio, also in
processor seconds, which other programs on the machine disturb less.

Use: python benchmarks/whole_run.py [--work W1] [--workers 1]
     python benchmarks/whole_run.py --start --against ../another-checkout [--turns 7]
     python benchmarks/whole_run.py --overlap [--turns 7] [--workers 2]
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

MADE = """
import numpy as np
import fedweave as fw

def made(clients, samples):
    rng, n = np.random.default_rng(0), clients * samples
    x, y = rng.standard_normal((n, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, n)
    group = np.repeat(np.arange(clients), samples)
    return fw.data.from_arrays(x, y, test_x=x[:1000], test_y=y[:1000], group=group)

W1, W2 = lambda: made(100, 200), lambda: made(1000, 20)
"""
WORKS = {
    "W1": "--data made:W1 --model cnn_small --per-round 10 --epochs 2 --batch-size 20 --rounds 10",
    "W2": "--data made:W2 --model logistic --per-round 50 --epochs 5 --batch-size 5 --rounds 50",
    "MNIST": "--data mnist --clients 100 --partition iid --model cnn_small --per-round 10 --epochs 5 --batch-size 10"
    " --rounds 3",
}
PARTS = {  # what a function of a module is for; time inside another part counts there
    "fedweave.runs.session": {"load_data": "data", "prepare": "preparation"},
    "fedweave.runs.loop": {"prepare": "preparation", "iterate": "server", "go_on": "records"},
    "fedweave.engine.simulator": {"Simulator.train": "training", "Simulator.evaluate": "evaluation"},
    "fedweave.cli.app": {"_training": "importing torch", "_say": "table"},
}


class Clock:
    """Adds up seconds by part; a part inside another interrupts it."""

    def __init__(self, begin: float):
        self.parts, self._now, self._since = {"start": 0.0}, "start", begin

    def turn(self, part: str) -> str:
        """Count for this part from now on; return the one before."""
        now, before = time.time(), self._now
        self.parts[before] = self.parts.get(before, 0.0) + now - self._since
        self._now, self._since = part, now
        return before

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return the function, which counts for this part."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before = self.turn(part)
            try:
                found = function(*args, **kwargs)
            finally:
                self.turn(before)
            return self._each(found, part) if function.__name__ == "iterate" else found

        return call

    def _each(self, found: Any, part: str) -> Any:
        while True:
            before = self.turn(part)
            try:
                step = next(found)
            except StopIteration:
                return
            finally:
                self.turn(before)
            yield step


def watched(begin: float, words: list[str]) -> None:
    """Do the command in this process and print the seconds of its parts."""
    clock, sys.argv = Clock(begin), ["fedweave", *words]
    from fedweave.cli import loading, program

    loading.load_ahead()  # as the program does first: what follows would otherwise be in its way

    def wrap(module: str) -> None:
        for path, part in PARTS[module].items():
            owner: Any = sys.modules[module]
            *names, last = path.split(".")
            for name in names:
                owner = getattr(owner, name)
            setattr(owner, last, clock.timed(getattr(owner, last), part))

    def prepare_parts() -> None:
        from fedweave.cli import app

        plain = app._training

        def training() -> Any:
            found = plain()
            for module in list(PARTS)[:-1]:
                wrap(module)
            return found

        app._training = training
        wrap("fedweave.cli.app")

    def say() -> None:
        clock.turn("end")
        print(json.dumps([clock.parts, time.time()]), file=sys.stderr, flush=True)

    atexit.register(say)
    with loading.uncollected():
        prepare_parts()
    program()


def profile(name: str, workers: int) -> dict[str, float]:
    """Return the seconds of the parts of one run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "made.py").write_text(MADE)
        words = ["run", "fedavg", *WORKS[name].split(), "--workers", str(workers), "--out", "run"]
        command = [sys.executable, str(Path(__file__).resolve()), "--watched", str(time.time()), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        end = time.time()
    parts, said = json.loads(done.stderr.splitlines()[-1])
    return {**parts, "end": end - said, "whole": sum(parts.values()) + end - said}


def start(against: Path, turns: int) -> dict[str, Any]:
    """Return seconds of short commands by this checkout and another, and ratios."""
    sides = {"here": Path(__file__).resolve().parents[1], "there": against.resolve()}
    commands = {"run": "run fedavg --data digits --rounds 1 --out", "list": "list", "help": "--help"}
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {c: {side: [] for side in sides} for c in commands}
    alone: dict[str, list[float]] = {"pass": [], "import torch": []}  # what no change of ours makes shorter
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns + 1):  # the first one compiles and warms up
            for command, words in commands.items():
                for side in list(sides)[:: 1 if turn % 2 else -1]:
                    given = words.split() + ([f"{folder}/{side}{turn}"] if command == "run" else [])
                    seconds = _seconds(["-m", "fedweave", *given], sides[side], folder)
                    taken[command][side] += [seconds] * (turn > 0)
            for program, found in alone.items():
                found += [_seconds(["-c", program], sides["here"], folder)[0]] * (turn > 0)
    figures: dict[str, Any] = {"turns": turns} | {f"{program}_s": median(found) for program, found in alone.items()}
    for command, by_side in taken.items():
        for i, unit in enumerate(("", "_processor")):
            figures |= {f"{command}_{side}{unit}_s": median(s[i] for s in found) for side, found in by_side.items()}
            figures[f"{command}{unit}_ratio"] = median(a[i] / b[i] for a, b in zip(*by_side.values(), strict=True))
    return figures


def _seconds(words: list[str], checkout: Path, cache: str) -> tuple[float, float]:
    """Return wall and processor seconds of Python with this checkout, compiled as an installed package is."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONPYCACHEPREFIX": f"{cache}/compiled"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def overlap(turns: int, workers: int) -> dict[str, Any]:
    """Return seconds of the MNIST run evaluated every round and of its training alone, and their ratio."""
    from fedweave.cli.options import experiments_of
    from fedweave.runs.loop import run_with, workers_of

    words = [word.removeprefix("--").replace("-", "_") for word in WORKS["MNIST"].split()]
    given = dict(zip(words[::2], words[1::2], strict=True)) | {"workers": str(workers)}
    sides = {"every_round": "1", "training_alone": given["rounds"]}
    taken: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    (first,), _ = experiments_of(["fedavg"], given)
    with workers_of(first) as pool:
        for turn in range(turns + 1):
            for side in list(sides)[:: 1 if turn % 2 else -1]:
                (experiment,), _ = experiments_of(["fedavg"], given | {"evaluate_every": sides[side]})
                before = _processor_seconds()
                result = run_with(experiment, None, (), None, pool)
                seconds = float(result.rounds["wall_seconds"][-1]), _processor_seconds() - before
                taken[side] += [seconds] * (turn > 0)
    figures: dict[str, Any] = {"turns": turns, "workers": workers}
    for i, unit in enumerate(("", "_processor")):
        ratio = [a[i] / b[i] for a, b in zip(*taken.values(), strict=True)]
        figures |= {f"{side}{unit}_s": median(s[i] for s in found) for side, found in taken.items()}
        figures |= {f"ratio{unit}": median(ratio), f"range{unit}": [min(ratio), max(ratio)]}
    return figures


def _processor_seconds() -> float:
    """Return what this process and its workers have used."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (here, *here.children(recursive=True)))


def main() -> None:
    """Measure and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, action="append", help="only this workload")
    parser.add_argument("--workers", type=int, help="training processes [1; with --overlap 2]")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--start", action="store_true", help="short commands, against another checkout")
    parser.add_argument("--against", type=Path, help="another checkout of fedweave")
    parser.add_argument("--overlap", action="store_true", help="evaluation every round against training alone")
    given = parser.parse_args()
    from fedweave.engine.machine import processor

    facts: dict[str, Any] = {"processor": processor(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    if given.start:
        facts["start"] = start(given.against, given.turns)
    elif given.overlap:
        facts["overlap"] = overlap(given.turns, given.workers or 2)
    else:
        facts |= {name: profile(name, given.workers or 1) for name in given.work or WORKS}
        names = [name for name in WORKS if name in facts]
        print(f"{'seconds':16}" + "".join(f"{name:>9}" for name in names))
        for part in dict.fromkeys(part for name in names for part in facts[name]):
            print(f"{part:16}" + "".join(f"{facts[name].get(part, 0.0):9.2f}" for name in names))
    print(json.dumps(facts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watched"]:
        watched(float(sys.argv[2]), sys.argv[3:])
    else:
        main()
