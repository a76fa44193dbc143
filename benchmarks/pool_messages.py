"""Messages of a round between the main process and its workers: through shared memory, against the pipe alone.

The workers do not train: each call brings the jobs of its clients and takes updates back, as in W2 (50 clients, 7,850
parameters, two calls), W1 (10 × 21,840, two) and a network of 11 million parameters (2 clients, two). Both sides in one
run, alternating; wall and the main process's processor milliseconds a round, medians, and the median of the ratios.

Use: python benchmarks/pool_messages.py [--turns 51]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from fedweave.engine.machine import processor
from fedweave.engine.pool.processes import Workers
from fedweave.engine.simulator import Received
from fedweave.local.client_data import ClientData
from fedweave.local.trainer import Jobs

WORKS = {"W2": (50, 7_850), "W1": (10, 21_840), "11 million": (2, 11_000_000)}


def nobody(data: ClientData) -> None:
    """Stand for a trainer."""


def answer(trainer: None, x: np.ndarray, jobs: Jobs) -> Received:
    """Return updates as if these clients had trained."""
    count = jobs.client.size
    return Received(np.zeros((count, x.size), np.float32), np.ones(count), np.ones(count))


def pool(stack: ExitStack, shared: bool) -> Workers:
    """Return two workers, with shared memory or without."""
    one = np.zeros((1, 1), np.float32)
    data = ClientData(x=one, y=one[0], test_x=one, test_y=one[0], mean=(), std=(), parts=[np.zeros(1, int)])
    found, workers = getattr(os, "memfd_create", None), stack.enter_context(Workers(2))
    if not shared and found:
        del os.memfd_create
    workers.load(nobody, data, 2)
    if found:
        os.memfd_create = found
    return workers


def one_round(workers: Workers, clients: int, dim: int) -> tuple[float, float]:
    """Return wall and processor milliseconds of the messages of a round."""
    x, count = np.zeros(dim, np.float32), np.full(clients // 2, 1)
    jobs = Jobs(client=count, steps=count, batch_size=count, dispatch=count, lr=count * 0.1)
    begin, used = time.perf_counter(), time.process_time()
    for _ in workers.map(x, [(answer, (jobs,))] * 2):
        pass
    return 1e3 * (time.perf_counter() - begin), 1e3 * (time.process_time() - used)


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=51)
    turns = parser.parse_args().turns
    figures: dict[str, Any] = {"processor": processor(), "load_before": os.getloadavg()[0], "turns": turns}
    with ExitStack() as stack:
        sides = [pool(stack, shared=True), pool(stack, shared=False)]
        for name, (clients, dim) in WORKS.items():
            rounds = [[one_round(side, clients, dim) for side in sides] for _ in range(turns + 3)][3:]
            for i, unit in enumerate(("wall", "processor")):
                figures[f"{name} {unit}"] = {
                    "shared_ms": median(both[0][i] for both in rounds),
                    "pipe_ms": median(both[1][i] for both in rounds),
                    "ratio": median(both[0][i] / both[1][i] for both in rounds),
                }
    print(json.dumps(figures))


if __name__ == "__main__":
    import pool_messages  # functions of the main program would be sent by value, which costs more than all the rest

    pool_messages.main()
