"""Seconds to plan FedDD's dropout rates for 10,000 clients, beside HiGHS on the same linear program.

Clients have the links and processors of the paper's table 4 and models of half to one and a half megabytes; penalties
from none to one beside which the time counts nothing. HiGHS runs as SciPy calls it, and without its presolve, which
takes longer than the rest because t is in every row. One thread, alternating; the median of the turns.
Use: python benchmarks/dropout_plan.py [--clients 10000] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, diags_array, hstack
from threadpoolctl import threadpool_limits

from fedweave.solve import dropout_plan
from fedweave.solve.dropout_plan import round_seconds

KEEP, MOST = 0.6, 0.8
Array = Any


def clients(n: int, seed: int = 0) -> tuple[tuple[Array, ...], Array]:
    """Return size, compute seconds, rates up and down, and contributions."""
    rng = np.random.default_rng(seed)
    size = 8e6 * rng.uniform(0.5, 1.5, n)
    compute = 500 * rng.uniform(1e6, 1e7, n) / rng.uniform(1e9, 1e10, n)
    return (size, compute, rng.uniform(1e3, 5e3, n), rng.uniform(4e4, 2e5, n)), rng.uniform(0, 3, n) / n


def by_highs(p: tuple[Array, ...], worth: Array, penalty: float, presolve: bool) -> Array:
    """Return the rates by SciPy's linprog, in units of the longest round."""
    size, compute, up, down = p
    link, n = size * (1 / up + 1 / down), size.size
    second = (compute + link).max()
    found = linprog(
        np.append(penalty * worth / second, 1.0),
        A_ub=hstack([diags_array(-link / second), csr_array(-np.ones((n, 1)))], format="csr"),
        b_ub=-(compute + link) / second,
        A_eq=csr_array(np.append(size / size.max(), 0.0)[None]),
        b_eq=[(1 - KEEP) * size.sum() / size.max()],
        bounds=np.column_stack([np.zeros(n + 1), np.append(np.full(n, MOST), np.inf)]),
        options={"presolve": presolve},
    )
    return found.x[:n]


def timed(work: Callable[[], Array]) -> tuple[float, Array]:
    """Return seconds and rates."""
    begin = time.perf_counter()
    rates = work()
    return time.perf_counter() - begin, rates


def measure(n: int, relative: float, turns: int) -> dict[str, Any]:
    """Return the median seconds of all sides and how far their objectives are apart."""
    p, worth = clients(n)
    penalty = relative * (p[1] + p[0] * (1 / p[2] + 1 / p[3])).max() / worth.sum()
    sides: dict[str, Callable[[], Array]] = {
        "ours": lambda: dropout_plan(*p, worth, KEEP, MOST, penalty),
        "highs": lambda: by_highs(p, worth, penalty, True),
        "highs_without_presolve": lambda: by_highs(p, worth, penalty, False),
    }
    rows = [{name: timed(work) for name, work in sides.items()} for _ in range(turns)]
    best = {name: round_seconds(rate, *p) + penalty * worth @ rate for name, (_, rate) in rows[-1].items()}
    spent = {name: np.median([row[name][0] for row in rows]) for name in sides}
    return {
        "clients": n,
        "penalty": relative,
        **{f"{name}_seconds": round(float(s), 4) for name, s in spent.items()},
        "slowest_of_ours": round(max(row["ours"][0] for row in rows), 4),
        "excess_over_highs": float((best["ours"] - best["highs"]) / best["highs"]),
    }


def main() -> None:
    """Measure and print one JSON object per penalty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    with threadpool_limits(1):
        for relative in (0.0, 0.01, 0.1, 1.0, 10.0, 1000.0):
            print(json.dumps(measure(options.clients, relative, options.turns)), flush=True)


if __name__ == "__main__":
    main()
