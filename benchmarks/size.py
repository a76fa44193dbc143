"""How cost grows: set-up and server work with up to a million clients, and rounds without end.

Set-up is all that happens before the first round: samples dealt, checked, counted, and the run made ready. Server work
is what a round of a whole run takes beside training and evaluation: the world, the draw, the admission, the
aggregation, what samplers learn, the rows in the database and the saved states. Both are processor time of the main
process, in a new process for every figure; memory is the peak of that process with Python, torch and the data in it.
--curves gives the exponent of the growth between the last two sizes: 1 is linear, 2 is quadratic.

Use: python benchmarks/size.py [--setup] [--server] [--curves] [--rounds], without an option all of them
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedweave as fw
from fedweave.core.randomness import Stream, rng_for
from fedweave.engine.machine import processor
from fedweave.engine.simulator import Simulator
from fedweave.runs.loop import workers_of
from fedweave.runs.session import prepare, versions

MILLION, PER_ROUND = 10**6, 1000
AIMS = {"setup_s": 10.0, "server_ms": 100.0, "peak_mb": 1000.0}
METHODS = ("fedavg", "fedacs", "fedacs_estimated", "oort", "fedpracdelta", "latency_optimal")
FORMS = ("natural", "iid", "dirichlet:0.5", "shards:2", "classes:2", "one-class:sorted", "split:0.1:0.5")
POINTS = (10, 10**3, 10**4, 10**5)  # rounds after which --rounds looks


def peak_mb() -> float:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def natural(clients: int, each: int = 2) -> fw.Dataset:
    """Return samples of ten classes, so many for each natural client."""
    rng, n = np.random.default_rng(0), clients * each
    x, y = rng.standard_normal((n, 8), dtype=np.float32), rng.integers(0, 10, n)
    return fw.data.from_arrays(x, y, x[:10_000], y[:10_000], name="natural", group=np.repeat(np.arange(clients), each))


def quadratics(clients: int, dim: int) -> fw.Dataset:
    """Return one target for each client, from which quadratics are made: they are solved, not trained."""
    x = np.random.default_rng(0).standard_normal((clients, dim), dtype=np.float32)
    return fw.data.from_arrays(x, x[:, 0], x[:10], x[:10, 0], name="quadratics", group=np.arange(clients))


def setup(clients: int) -> dict[str, Any]:
    """Return how long natural clients take until they are ready to train."""
    data = natural(clients)
    experiment = fw.Experiment(fw.methods.fedacs(10), data, model="logistic", system=fw.system.Dynamic(), workers=1)
    own, clock = time.process_time(), time.perf_counter()
    with workers_of(experiment) as workers:
        session = prepare(experiment, workers)
    own, clock = time.process_time() - own, time.perf_counter() - clock
    return {"clients": session.base.size, "setup_s": own, "clock_s": clock, "peak_mb": peak_mb()}


def split(form: str) -> dict[str, Any]:
    """Return how long a partition takes to deal two million samples to a million clients, with their test samples."""
    data, own = natural(MILLION), time.process_time()
    shares = fw.partition.parse(form, MILLION).split(data, rng_for(0, 0, Stream.PARTITION))
    train = time.process_time()
    assert len(shares.test[0])
    return {"partition": form, "train_s": train - own, "test_s": time.process_time() - train, "peak_mb": peak_mb()}


class Watch(fw.Callback):
    """Measures the rounds of a run: the seconds of the process beside training and evaluation, and its memory."""

    def __init__(self, at: Callable[[int], bool] = lambda _: True):
        self.rows, self._at, self._elsewhere = list[tuple[int, float, float]](), at, 0.0
        for name in ("train", "evaluate"):
            setattr(Simulator, name, self._timed(getattr(Simulator, name)))

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.process_time()
            try:
                return work(*arguments)
            finally:
                self._elsewhere += time.process_time() - begin

        return timed

    def begin(self, run: Any) -> None:
        """Look before the first round."""
        self._note(0)

    def round(self, run: Any, row: Any, state: Any) -> None:
        """Look after a round."""
        if self._at(row["round"]):
            self._note(row["round"])

    def _note(self, round: int) -> None:
        memory = psutil.Process().memory_info().rss / 2**20
        self.rows.append((round, time.process_time() - self._elsewhere, memory))

    def seconds(self) -> np.ndarray:
        """Return the server's seconds per round between two looks."""
        rounds, seconds = np.array([row[:2] for row in self.rows]).T
        return np.diff(seconds) / np.diff(rounds)


def run(experiment: fw.Experiment, watch: Watch) -> None:
    """Run an experiment in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        fw.run(experiment, Path(folder) / "run", callbacks=watch)


def server(method: str) -> dict[str, Any]:
    """Return what a round asks of the server with a million clients, a thousand of them asked."""
    world = fw.system.Latency() if method.startswith("latency") else fw.system.Dynamic()
    watch, make = Watch(), getattr(fw.methods, method)
    run(fw.Experiment(make(PER_ROUND), natural(MILLION), model="logistic", system=world, rounds=20, workers=1), watch)
    ms = 1e3 * watch.seconds()
    longest = {"longest_ms": ms.max(), "in_round": int(ms.argmax()) + 1}  # the latency plan, or a saved state
    return {"method": method, "server_ms": float(np.median(ms)), **longest, "peak_mb": peak_mb()}


def point(clients: int, asked: int, dim: int) -> dict[str, Any]:
    """Return the server's time per round on quadratics."""
    watch, data = Watch(), quadratics(clients, dim)
    method, system = fw.methods.fedacs(asked), fw.system.Dynamic()
    run(fw.Experiment(method, data, model="quadratic", system=system, rounds=20, workers=1, evaluate_every=20), watch)
    return {
        "N": clients,
        "K": asked,
        "D": dim,
        "server_ms": 1e3 * float(np.median(watch.seconds())),
        "peak_mb": peak_mb(),
    }


def rounds() -> dict[str, Any]:
    """Return the server's time per round and the memory after so many rounds of 5 of 20 clients."""
    watch, data = Watch(lambda round: round in POINTS or round in [p - p // 10 for p in POINTS]), quadratics(20, 4)
    method, system = fw.methods.fedacs(5), fw.system.Dynamic()
    run(fw.Experiment(method, data, model="quadratic", system=system, rounds=POINTS[-1], workers=1), watch)
    seconds = dict(zip([row[0] for row in watch.rows[1:]], 1e3 * watch.seconds(), strict=True))
    memory = {row[0]: row[2] for row in watch.rows}
    found = [{"after": p, "server_ms": seconds[p], "memory_mb": memory[p]} for p in POINTS]
    return {"rounds": found, "flat": found[-1]["server_ms"] / found[1]["server_ms"], "peak_mb": peak_mb()}


def curves() -> Iterator[dict[str, Any]]:
    """Yield the server's time against the number of clients, of those asked and of parameters, and its exponents."""
    ways = {
        "N": [(n, 100, 4) for n in (10**3, 10**4, 10**5, 10**6)],
        "K": [(10**5, k, 4) for k in (10, 100, 10**3, 10**4)],
        "D": [(200, 100, d) for d in (10**2, 10**3, 10**4, 10**5)],
    }
    for letter, points in ways.items():
        curve = [fresh("point", *map(str, p)) for p in points]
        (a, before), (b, last) = ((p[letter], p["server_ms"]) for p in curve[-2:])
        yield {"against": letter, "curve": curve, "exponent": math.log(last / before) / math.log(b / a)}


def fresh(what: str, *arguments: str) -> dict[str, Any]:
    """Return a figure from a process of its own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--one", what, *arguments]
    done = subprocess.run(command, env={**os.environ, **threads}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print one JSON object per figure, with the aims beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("setup", "server", "curves", "rounds"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    if one := given.pop("one"):
        numbers = [int(text) if text.isdigit() else text for text in one[1:]]
        print(json.dumps(globals()[one[0]](*numbers)))
        return
    wanted = [option for option, chosen in given.items() if chosen] or list(given)
    print(json.dumps({"processor": processor(), "versions": versions(), "load": os.getloadavg()[0], "aims": AIMS}))
    figures = {
        "setup": [*(("setup", str(n)) for n in (10**4, 10**5, 10**6)), *(("split", form) for form in FORMS)],
        "server": [("server", method) for method in METHODS],
        "rounds": [("rounds",)],
    }
    for option in wanted:
        for found in curves() if option == "curves" else (fresh(*figure) for figure in figures[option]):
            print(json.dumps({option: found}), flush=True)


if __name__ == "__main__":
    main()
