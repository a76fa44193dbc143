"""Memory of the main process: 1,000 clients on full MNIST, and what 1,000 more rounds add.

Peak resident memory is set against the data set itself plus what Python with torch takes before any data is loaded.
Use: FEDWEAVE_DATA=folder python benchmarks/memory.py
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from typing import Any

import psutil

import fedweave as fw
from fedweave.runs.loop import run

MB = 2**20


def thousand_clients() -> dict[str, Any]:
    """Return the peak of a run with 1,000 clients on all of MNIST, 50 per round, in MB."""
    before = psutil.Process().memory_info().rss
    data = fw.data.load("mnist")
    size = sum(a.nbytes for a in (data.x, data.y, data.test_x, data.test_y))
    experiment = fw.Experiment(
        fw.methods.fedavg(50),
        data,
        fw.partition.Dirichlet(clients=1000, alpha=0.3),
        model="cnn_small",
        rounds=6,
        workers=2,
    )
    run(experiment)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "data_set_mb": size / MB,
        "python_and_torch_mb": before / MB,
        "peak_mb": peak / MB,
        "peak_minus_data_mb": (peak - size) / MB,
    }


def thousand_rounds() -> dict[str, Any]:
    """Return how much 1,000 rounds add after 200 that fill the caches, in MB."""
    me, seen = psutil.Process(), {}

    def look(row: Mapping[str, Any]) -> None:
        if row["round"] in (200, 1200):
            seen[row["round"]] = me.memory_info().rss

    experiment = fw.Experiment(
        fw.methods.fedavg(10),
        "digits",
        fw.partition.IID(clients=50),
        model="mlp",
        rounds=1200,
        evaluate_every=50,
        workers=2,
    )
    run(experiment, callbacks=look)
    return {"growth_of_1000_rounds_mb": (seen[1200] - seen[200]) / MB}


if __name__ == "__main__":
    print(json.dumps(thousand_clients()))
    print(json.dumps(thousand_rounds()))
