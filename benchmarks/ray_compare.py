"""What spreading a comparison over a Ray cluster saves: runs at the same time against the same runs one after another.

Four runs of two methods on MNIST-like images (100 clients x 60 samples, 10 a round, cnn_small), on one cluster of this
machine, alternating; the side that begins changes every turn. The digests of both sides must be the same.
Use: python benchmarks/ray_compare.py [--turns 7] [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

import fedweave as fw
from fedweave.engine.machine import processor
from fedweave.engine.pool.ray import RayActors


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (7000, 28, 28), np.uint8), rng.integers(0, 10, 7000)
    experiment = fw.Experiment(
        fw.methods.fedavg(10),
        fw.data.from_arrays(x[:6000], y[:6000], x[6000:], y[6000:]),
        fw.partition.IID(100),
        model="cnn_small",
        rounds=options.rounds,
        pool="ray",
    )
    methods, sides = [fw.methods.fedavg(10), fw.methods.fedyogi(10)], {"one_by_one_s": 1, "at_once_s": None}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    digests: set[tuple[str, ...]] = set()
    with RayActors("auto") as cluster:
        cluster.join()  # both sides find it running
        for turn in range(options.turns + 1):  # the first warms up
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                begin = time.perf_counter()
                found = fw.compare(methods, experiment, 2, at_once=sides[name])
                taken[name].append(time.perf_counter() - begin)
                digests.add(tuple(result.summary["digest"] for result in found.results))
        actors = cluster.count
    assert len(digests) == 1, "the same runs have other bits"
    one_by_one, at_once = (np.array(taken[name][1:]) for name in sides)
    ratio = at_once / one_by_one
    figures = {
        "turns": options.turns,
        "runs": 4,
        "rounds": options.rounds,
        "actors": actors,
        "load_before": load,
        "processor": processor(),
        **{name: float(np.median(seconds[1:])) for name, seconds in taken.items()},
        "ratio": float(np.median(ratio)),
        "ratio_quartiles": np.quantile(ratio, [0.25, 0.75]).round(3).tolist(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
