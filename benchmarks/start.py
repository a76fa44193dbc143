"""Starting worker processes: forked by one that has loaded torch, against a new program for each of them.

Both sides start a pool, give it a trainer and end it again, alternating. "First" is the first pool of a main process,
"next" any later one. Memory is what all processes beside the main one take up together (proportional set size, which
divides a page among those that share it).
Use: python benchmarks/start.py [--turns 7] [--workers 2]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import psutil
from torch import nn

import fedweave as fw
from fedweave.core.randomness import Stream, rng_for
from fedweave.engine.pool import zygote
from fedweave.engine.pool.processes import Workers
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch.trainer import TorchTrainer

MB = 2**20


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


def main() -> None:
    """Measure both sides and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
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
    for _ in range(options.turns):
        zygote.FORKS = False
        found["programs"].append(pool(data, options.workers))
        zygote.FORKS = True
        zygote.close()
        found["forked, first"].append(pool(data, options.workers))
        found["forked, next"].append(pool(data, options.workers))
        zygote.close()
    plain = [seconds for seconds, _ in found["programs"]]
    for name, pairs in found.items():
        ratio = median(seconds / whole for (seconds, _), whole in zip(pairs, plain, strict=True))
        seconds, memory = (median(p[i] for p in pairs) for i in (0, 1))
        print(f"{name:14} {seconds:6.2f} s  {ratio:5.2f} of programs  {memory:6.0f} MB  ({options.workers} workers)")


if __name__ == "__main__":
    main()
