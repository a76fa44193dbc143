"""Starting: commands that train nothing against Python itself, and worker processes against new programs.

Commands: ``fedweave --help``, ``list``, ``doctor`` and ``python -c pass`` are started in turn, after one turn that does
not count (it writes the compiled sources). The difference to Python's own start of the same turn is in seconds, on the
clock and of the processor; the first output comes with the last, since each command prints once.

Workers: a pool is started, given a trainer and ended again, forked by a process that has loaded torch or started as
new programs. "First" is the first pool of a main process, "next" any later one. Memory is what all processes beside the
main one take up together (proportional set size, which divides a page among those that share it).
Use: python benchmarks/start.py [--turns 7] [--workers 2] [--only commands|workers]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median

import psutil
from torch import nn

import fedweave as fw
from fedweave.core.randomness import Stream, rng_for
from fedweave.engine.machine import CPUINFO, processor_name
from fedweave.engine.pool import zygote
from fedweave.engine.pool.processes import Workers
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch.trainer import TorchTrainer

MB = 2**20
AIM = 1 / 3  # seconds more than Python's own start
PROGRAMS = {
    "python -c pass": ["-c", "pass"],
    "fedweave --help": ["-m", "fedweave", "--help"],
    "fedweave list": ["-m", "fedweave", "list"],
    "fedweave doctor": ["-m", "fedweave", "doctor"],
}


def start(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds that a program takes, on the clock and of the processor."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(turns: int) -> None:
    """Print how much longer than Python itself each command takes."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as compiled:  # sources are compiled once, wherever they lie
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(turns + 1):
            for name, words in PROGRAMS.items():
                found[name].append(start(words, environment))
    print(f"processor: {processor_name(CPUINFO)}; load {os.getloadavg()[0]:.1f}; medians of {turns} turns")
    plain = found["python -c pass"][1:]
    print(f"{'python -c pass':16} {median(s for s, _ in plain):6.3f} s, processor {median(c for _, c in plain):6.3f} s")
    for name in list(PROGRAMS)[1:]:
        more = [(a - c, b - d) for (a, b), (c, d) in zip(found[name][1:], plain, strict=True)]
        clock, used = (median(pair[i] for pair in more) for i in (0, 1))
        print(f"{name:16} {clock:+6.3f} s, processor {used:+6.3f} s (aim: at most {AIM:.2f} s more)")


def trainer(data: ClientData) -> TorchTrainer:
    """Return the trainer of a small network."""
    return TorchTrainer(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, SGD(), 0, "cpu")


def pool(data: ClientData, count: int) -> tuple[float, float]:
    """Return the seconds until a pool has its trainer, and its memory in MB."""
    begin = time.perf_counter()
    with Workers(count) as workers:
        workers.load(trainer, data, count)
        took = time.perf_counter() - begin
        return took, sum(p.memory_full_info().pss for p in psutil.Process().children(recursive=True)) / MB


def pools(turns: int, count: int) -> None:
    """Print what starting a pool costs in each of three ways."""
    digits = fw.data.load("digits")
    parts = fw.partition.IID(4).split(digits, rng_for(0, 0, Stream.PARTITION)).train
    data = ClientData(
        x=digits.x,
        y=digits.y,
        test_x=digits.test_x,
        test_y=digits.test_y,
        mean=digits.mean,
        std=digits.std,
        parts=parts,
    )
    found: dict[str, list[tuple[float, float]]] = {"programs": [], "forked, first": [], "forked, next": []}
    for _ in range(turns):
        zygote.FORKS = False
        found["programs"].append(pool(data, count))
        zygote.FORKS = True
        zygote.close()
        found["forked, first"].append(pool(data, count))
        found["forked, next"].append(pool(data, count))
        zygote.close()
    plain = [seconds for seconds, _ in found["programs"]]
    for name, pairs in found.items():
        ratio = median(seconds / whole for (seconds, _), whole in zip(pairs, plain, strict=True))
        seconds, memory = (median(p[i] for p in pairs) for i in (0, 1))
        print(f"{name:14} {seconds:6.2f} s  {ratio:5.2f} of programs  {memory:6.0f} MB  ({count} workers)")


def main() -> None:
    """Measure both sides and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=["commands", "workers"])
    options = parser.parse_args()
    if options.only != "workers":
        commands(options.turns)
    if options.only != "commands":
        pools(options.turns, options.workers)


if __name__ == "__main__":
    main()
