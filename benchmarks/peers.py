r"""Other libraries on W1 and W2, in one run with fedweave and the bare loop: rounds.py --against-peers.

Each library runs in a process of its own (the programs in peer/), keeps its data, model and workers ready, and does one
round when asked; a turn is one round of everybody, one after another, while the others wait. The figure is the median
over turns of the seconds of a peer over those of fedweave. All sample as many clients and take as many steps of plain
SGD on the same data and network. What differs: pfl samples with replacement and keeps its batches from pass to pass;
Flower's clients read a DataLoader. torch has one thread in each of Flower's two actors, and in pfl's only process.

Flower's simulation needs flwr and ray, which fedweave's extras install. The others have environments of their own:

    python -m venv pfl    && pfl/bin/pip install -c constraints.txt 'pfl[pytorch]==0.6.0'
    python -m venv fedjax && fedjax/bin/pip install fedjax==0.0.17 'jax<=0.4.30' 'jaxlib<=0.4.30' 'numpy<2' \
        dm-haiku==0.0.12
    FEDWEAVE_PFL=pfl/bin/python FEDWEAVE_FEDJAX=fedjax/bin/python python benchmarks/rounds.py --against-peers
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from works import WORKS, bare_loop, fedweave_round, made_data, seconds

from fedweave.engine.pool.processes import Workers

WARM_UP = 3
PYTHONS = {
    "flower": sys.executable,
    "pfl": os.environ.get("FEDWEAVE_PFL", sys.executable),
    "fedjax": os.environ.get("FEDWEAVE_FEDJAX", sys.executable),
}
NEEDS = {"flower": "flwr, ray", "pfl": "pfl", "fedjax": "fedjax"}
AIMS = {("W1", "flower"): 2.5, ("W2", "flower"): 30.0}  # times faster than it, at least


class Peer:
    """A library in a process of its own, which does a round for each line that it is sent."""

    def __init__(self, name: str, settings: dict[str, Any], log: Any):
        """Start the process; ``settings`` describe the work."""
        program = Path(__file__).parent / "peer" / f"with_{name}.py"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": ""}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "WORK": json.dumps(settings)}
        self._process = subprocess.Popen(
            [PYTHONS[name], str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            bufsize=1,
        )
        self.versions = self._reply()

    def round(self) -> float:
        """Have it do one round and return its seconds."""
        assert self._process.stdin
        self._process.stdin.write("round\n")
        return self._reply()["seconds"]

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("PEER "):  # libraries print other things too
                return json.loads(line.removeprefix("PEER "))
        raise RuntimeError(f"It ended with code {self._process.wait()}.")

    def close(self) -> None:
        """End the process, which ends by itself when nobody asks for more."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def installed(name: str) -> bool:
    """Return whether the library is there, after saying so if it is not."""
    found = subprocess.run([PYTHONS[name], "-c", f"import {NEEDS[name]}"], capture_output=True, check=False)
    if found.returncode:
        print(f"{name} is skipped: {PYTHONS[name]} cannot import {NEEDS[name]}. See benchmarks/peers.py.", flush=True)
    return not found.returncode


def against_peers(works: Sequence[str], turns: int, workers: int) -> None:
    """Measure and print one JSON object per workload, then a table."""
    names, figures = [name for name in PYTHONS if installed(name)], list[dict[str, Any]]()
    for work in works:
        figures.append(contest(work, names, turns, workers))
        print(json.dumps(figures[-1]), flush=True)
    for f in figures:
        for side, value in f["seconds"].items():
            aim = f["aims"].get(side)
            beside = "" if side == "fedweave" else f"{f['times_fedweave'][side]:8.2f} × fedweave"
            print(f"{f['work']:4}{side:16}{value * 1e3:10.1f} ms{beside}" + (f", aim {aim} or more" if aim else ""))


def contest(name: str, peers: Sequence[str], turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of everybody's rounds, and of their ratios to fedweave's."""
    work = WORKS[name]
    x, y = made_data(work)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        settings = {**work._asdict(), "folder": str(folder), "name": name}
        log = stack.enter_context(open(folder / "log", "w"))
        ours = fedweave_round(work, x, y, stack.enter_context(Workers(workers)))
        bare = bare_loop(work, x, y)
        cohort = ours()
        sides: dict[str, Callable[[], float]] = {
            "fedweave": lambda: seconds(ours, 1),
            "bare, 1 thread": lambda: seconds(bare, 1, cohort),
            "bare, 2 threads": lambda: seconds(bare, 2, cohort),
        }
        versions = {}
        for peer in peers:
            try:
                there = Peer(peer, settings, log)
                stack.callback(there.close)
                there.round()
            except RuntimeError as e:
                tail = (folder / "log").read_text().strip().splitlines()[-1:]
                print(f"{peer} is skipped on {name}: {e} {' '.join(tail)}", flush=True)
                continue
            sides[peer], versions[peer] = there.round, there.versions
        rows = [{side: one_round() for side, one_round in sides.items()} for _ in range(turns + WARM_UP)][WARM_UP:]
    taken = {side: np.array([row[side] for row in rows]) for side in sides}
    return {
        "work": name,
        "turns": turns,
        "workers": workers,
        "versions": versions,
        "seconds": {side: float(np.median(values)) for side, values in taken.items()},
        "times_fedweave": {s: float(np.median(values / taken["fedweave"])) for s, values in taken.items()},
        "aims": {peer: AIMS[name, peer] for peer in versions if (name, peer) in AIMS},
    }
