"""The latency planner: how long it takes, and with --check whether anything better is found by other means.

Times are of one core (the process's own seconds, beside those of the clock): a given M for 10⁴, 10⁵ and 10⁶ clients,
and the whole plan for 100 clients against the exhaustive grid, each over uniform gaps and log-normal latencies and α
from small to large. --check: 200 instances of ten clients against the best of 50 starts of SLSQP, 200 of three clients
against a grid of the simplex, and 1,000 of up to 100 clients against uniform and norm selection.
Use: python benchmarks/latency_plan.py [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.solve import LatencyPlan, latency_plan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from solve.latency_oracle import instance, objective, slsqp_best

LATENCIES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform gaps": lambda rng, n: np.cumsum(rng.random(n)),
    "log-normal": lambda rng, n: rng.lognormal(0, 1, n),
}


def timed(*arguments: Any, **keywords: Any) -> tuple[LatencyPlan, float, float]:
    """Return the plan, the process's seconds and the clock's."""
    own, clock = time.process_time(), time.perf_counter()
    plan = latency_plan(*arguments, **keywords)
    return plan, time.process_time() - own, time.perf_counter() - clock


def given_size(n: int) -> dict[str, Any]:
    """Return the longest of the times for one M, over latencies, M and α."""
    rng, own, clock = np.random.default_rng(0), [], []
    for law, M, weight in product(LATENCIES.values(), (10, n // 100, n), (1.0, 1e3)):
        B = rng.random(n)
        alpha = weight * np.sqrt(B).sum() ** 2 / M  # so many times the other part of R under norm selection
        _, a, b = timed(law(rng, n), B, alpha, 1e-3, [M])
        own.append(a)
        clock.append(b)
    return {
        "clients": n,
        "solved": len(own),
        "median_s": float(np.median(own)),
        "longest_s": max(own),
        "clock_s": max(clock),
    }


def whole_plan(n: int = 100) -> dict[str, Any]:
    """Return the times of the fast and of the exhaustive search over all M, and the largest miss."""
    rng, fast, slow, miss = np.random.default_rng(1), [], [], []
    for law, weight, rounds in product(LATENCIES.values(), (1e-2, 1.0, 1e2), (10.0, 1e3)):
        delta, B = law(rng, n), rng.random(n)
        alpha = weight * np.sqrt(B).sum() ** 2 / 10
        found, a, _ = timed(delta, B, alpha, alpha / rounds)
        best, b, _ = timed(delta, B, alpha, alpha / rounds, exhaustive=True)
        fast.append(a)
        slow.append(b)
        miss.append(found.total_seconds / best.total_seconds - 1)
    return {
        "clients": n,
        "plans": len(fast),
        "fast_longest_s": max(fast),
        "exhaustive_longest_s": max(slow),
        "ratio": float(np.median(np.divide(fast, slow))),
        "largest_miss": max(miss),
    }


def against_slsqp(instances: int = 200, starts: int = 50) -> dict[str, Any]:
    """Return the largest relative excess over the best of many starts."""
    excess = []
    for i in range(instances):
        rng = np.random.default_rng([10, i])
        delta, B = instance(rng, 10)
        M = i % 10 + 1
        ours = objective(latency_plan(delta, B, 1.0, 1e-3, [M]).probability, delta, B, 1.0, M)
        excess.append(float(ours / slsqp_best(delta, B, 1.0, M, starts, rng) - 1))
    return {"against": f"SLSQP, {starts} starts", "instances": instances, "largest_excess": max(excess)}


def against_grid(instances: int = 200, parts: int = 800) -> dict[str, Any]:
    """Return the largest relative excess over the best point of a grid of the simplex of three clients."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(1, parts), np.arange(1, parts)))
    grid = np.stack([i, j, parts - i - j], 1)[i + j < parts] / parts
    excess = []
    for k in range(instances):
        rng = np.random.default_rng([3, k])
        delta, B = instance(rng, 3)
        M = k % 10 + 1
        ours = objective(latency_plan(delta, B, 1.0, 1e-3, [M]).probability, delta, B, 1.0, M)
        excess.append(float(ours / objective(grid, delta, B, 1.0, M).min() - 1))
    return {"against": f"grid of 1/{parts}", "instances": instances, "largest_excess": max(excess)}


def against_simple(instances: int = 1000) -> dict[str, Any]:
    """Return the largest relative excess over uniform and over norm selection, and the mean gains."""
    gains = []
    for i in range(instances):
        rng = np.random.default_rng([7, i])
        n = int(rng.integers(2, 101))
        delta, B = instance(rng, n)
        M = int(rng.integers(1, n + 1))
        ours = objective(latency_plan(delta, B, 1.0, 1e-3, [M]).probability, delta, B, 1.0, M)
        norm = np.sqrt(B) / np.sqrt(B).sum()
        gains.append([objective(p, delta, B, 1.0, M) / ours for p in (np.full(n, 1 / n), norm)])
    uniform, norm = np.array(gains).T
    return {
        "against": "uniform and norm selection",
        "instances": instances,
        "largest_excess": float(1 / min(uniform.min(), norm.min()) - 1),
        "mean_gain_over_uniform": float(uniform.mean()),
        "mean_gain_over_norm": float(norm.mean()),
    }


def main() -> None:
    """Measure, or check, and print one JSON object per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with other solvers instead of timing")
    checks = [against_slsqp, against_grid, against_simple]
    times = [whole_plan, *(partial(given_size, 10**power) for power in (4, 5, 6))]
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    for measure in checks if parser.parse_args().check else times:
        print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
