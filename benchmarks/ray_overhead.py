"""What Ray costs on one machine: rounds of W1 by Ray actors against the same rounds by worker processes.

Both sides are in one run, alternating, with as many actors as processes; a turn is one round of each, and the side
that begins changes every turn. Also how long each takes until its first round is done.
Use: python benchmarks/ray_overhead.py [--turns 15]
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack

import numpy as np
from works import WORKS, fedweave_round, made_data, seconds

from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.ray import RayActors


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    work = WORKS["W1"]
    x, y = made_data(work)
    taken: dict[str, list[float]] = {"processes": [], "ray": []}
    with ExitStack() as stack:
        pools = {"processes": Workers(options.workers), "ray": RayActors(options.workers)}
        rounds = {name: fedweave_round(work, x, y, stack.enter_context(pool)) for name, pool in pools.items()}
        for turn in range(options.turns + 3):  # the first three warm up
            for name in list(rounds)[:: 1 if turn % 2 else -1]:
                taken[name].append(seconds(rounds[name], 1))
    processes, ray = (np.array(taken[name][3:]) for name in ("processes", "ray"))
    ratio = ray / processes
    figures = {
        "work": "W1",
        "turns": options.turns,
        "workers": options.workers,
        "first_round_processes_s": taken["processes"][0],
        "first_round_ray_s": taken["ray"][0],
        "processes_s": float(np.median(processes)),
        "ray_s": float(np.median(ray)),
        "ratio": float(np.median(ratio)),
        "ratio_quartiles": np.quantile(ratio, [0.25, 0.75]).round(3).tolist(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
