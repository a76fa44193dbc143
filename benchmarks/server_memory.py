"""FedAWARE's server step with 1,000 clients of 10⁶ parameters and 100 answers: its time and its memory.

The step is ``Aware.combine``: mix the answers into the momenta, renew their rows of the Gram matrix, solve for the
shortest combination and combine the momenta; they are nearly orthogonal here, so that every one of them carries weight.
The other side is the least that any such step must do, one pass U @ M.T over the same numbers as one array in memory,
with its better number of threads (1 or all). Both alternate in one process, and the ratio is the median over turns.
Peak memory is that of another process, which has only the table and takes the same steps.

Use: python benchmarks/server_memory.py [ram] [disk]; needs 10 GB of memory, and 5 GB of disk in the temporary folder.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedweave.aggregate import Aware
from fedweave.core.records import Cohort, Layout, Population, Replies, View
from fedweave.runs.loop import deterministic
from fedweave.tables.rows import Rows, Where

CLIENTS, DIM, ANSWERS, TURNS, SHIFT = 1_000, 10**6, 100, 3, 977
AWARE = Aware()
GB = 2**30


def numbers(first: int, count: int) -> np.ndarray:
    """Return some rows of the table: not worth waiting for good random numbers, but all different."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((1, DIM), dtype=np.float32)
    return np.concatenate([np.roll(base, SHIFT * i, axis=1) for i in range(first, first + count)])


def filled(where: Where) -> Rows:
    """Return the table, every row written."""
    rows = Rows.zeros(CLIENTS, DIM, where=where)
    for i in range(0, CLIENTS, 10):
        rows = rows.replaced(np.arange(i, i + 10), numbers(i, 10))
    return rows


def started(where: Where) -> dict[str, Any]:
    """Return FedAWARE's state once everyone was heard; shifts of one signal have its autocorrelation as products."""
    signal = np.fft.rfft(numbers(0, 1)[0])
    lag = SHIFT * np.subtract.outer(np.arange(CLIENTS), np.arange(CLIENTS)) % DIM
    gram = np.fft.irfft(np.abs(signal) ** 2, DIM)[lag]
    return {"momentum": filled(where), "gram": gram, "weights": np.zeros(CLIENTS)}


def round_of_answers() -> tuple[View, Cohort, Replies]:
    """Return a round in which 100 clients answer."""
    n, k, one = CLIENTS, ANSWERS, np.ones(CLIENTS)
    population = Population(
        weight=one / n,
        samples=one,
        steps=one.astype(int),
        batch_size=one,
        loss_rate=0 * one,
        latency=one,
        available=one > 0,
    )
    layout = Layout(names=("x",), shapes=((DIM,),), parameters=DIM)
    view = View(
        round=1,
        x=np.zeros(DIM, np.float32),
        population=population,
        layout=layout,
        lr=0.1,
        effort_of=lambda steps: steps,
    )
    ids = np.sort(np.random.default_rng(1).choice(n, k, replace=False))
    some = np.ones(k)
    replies = Replies(
        received=some > 0,
        updates=numbers(n, k),
        steps=some,
        loss=some,
        first_gradient=some,
        seconds=some,
        bytes_up=some,
    )
    return view, Cohort(ids=ids, count=np.ones(k, int), expected=np.full(k, k / n)), replies


def seconds(work: Callable[[], Any]) -> float:
    """Return how long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def time_of(where: Where) -> dict[str, Any]:
    """Return the step's time over that of one pass."""
    state, happened = started(where), round_of_answers()
    M, U = state["momentum"][np.arange(CLIENTS)], happened[-1].updates
    passes: dict[str, list[float]] = {"1": [], "all": []}
    steps: list[float] = []
    for turn in range(TURNS + 1):  # the first one warms up
        for threads, found in passes.items():
            with threadpool_limits(1, "blas") if threads == "1" else nullcontext():
                found.append(seconds(lambda: U @ M.T))
        with deterministic():
            begin = time.perf_counter()
            _, state = AWARE.combine(state, *happened)
            steps.append(time.perf_counter() - begin)
        print(
            f"  turn {turn}: pass {passes['1'][-1]:.2f} {passes['all'][-1]:.2f} s, step {steps[-1]:.2f} s",
            file=sys.stderr,
        )
    better = min(passes, key=lambda threads: statistics.median(passes[threads][1:]))
    ratios = [s / p for s, p in zip(steps[1:], passes[better][1:], strict=True)]
    return {
        "table": where,
        "pass_seconds": round(statistics.median(passes[better][1:]), 2),
        "pass_threads": better,
        "step_seconds": round(statistics.median(steps[1:]), 2),
        "ratio": round(statistics.median(ratios), 2),
    }


def memory_of(where: Where) -> dict[str, Any]:
    """Return the peak of this process, which must have done nothing else."""
    state, happened = started(where), round_of_answers()
    with deterministic():
        for _ in range(2):
            _, state = AWARE.combine(state, *happened)
    peak, table = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 4 * CLIENTS * DIM
    return {
        "table_gb": round(table / GB, 2),
        "peak_gb": round(peak / GB, 2),
        "beside_the_table_gb": round((peak - (table if where == "ram" else 0)) / GB, 2),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        print(json.dumps(memory_of(sys.argv[2])))  # pyright: ignore[reportArgumentType]
    else:
        chosen, peaks = sys.argv[1:] or ["ram", "disk"], {}
        for where in chosen:  # before this process grows: on Linux a child's peak begins at its parent's
            child = subprocess.run([sys.executable, __file__, "memory", where], check=True, capture_output=True)
            peaks[where] = json.loads(child.stdout)
        for where in chosen:
            print(json.dumps(time_of(where) | peaks[where]))  # pyright: ignore[reportArgumentType]
