"""One draw among a million clients, with its law computed anew: fedweave's sampler against NumPy's own choice.

A turn is one draw of each; the figure is the median over turns, and the ratio of the two. Peak memory is what the draw
adds, in arrays of N doubles. Use: python benchmarks/draw.py [--clients 1000000] [--cohort 1000] [--turns 15]
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc

import numpy as np

from fedweave.core.records import Array, Layout, Population, View
from fedweave.local.solvers import SGD
from fedweave.sample import ACS
from fedweave.system import Dynamic


def view(n: int, round: int) -> View:
    """Return a round's view of ``n`` clients in the dynamic world of FedACS."""
    one = np.ones(n)
    base = Population(
        weight=one / n,
        samples=one,
        steps=np.ones(n, np.int64),
        batch_size=np.ones(n, np.int64),
        loss_rate=0 * one,
        latency=one,
        available=one > 0,
    )
    population = Dynamic().population(base, round, 0)
    layout = Layout(names=("x",), shapes=((1,),), parameters=1)
    return View(
        round=round,
        x=np.zeros(1),
        population=population,
        layout=layout,
        lr=0.1,
        effort_of=lambda steps: SGD().effort(steps, 0.1),
    )


def plain(now: View, cohort: int, rng: np.random.Generator) -> Array:
    """The same law as eq. 15 is printed, and NumPy's draw."""
    p = now.population
    score = p.weight / ((1 - p.loss_rate) * p.steps)
    return np.unique(rng.choice(p.size, cohort, p=score / score.sum()), return_counts=True)[0]


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    sampler, rng, ours, theirs = ACS(args.cohort), np.random.default_rng(0), [], []
    for turn in range(args.turns + 1):  # the first one warms up
        mine, other = view(args.clients, turn), view(args.clients, turn)  # each its own: nothing is remembered
        begin = time.perf_counter()
        sampler.draw({}, mine, rng)
        middle = time.perf_counter()
        plain(other, args.cohort, rng)
        ours.append(middle - begin)
        theirs.append(time.perf_counter() - middle)
    now = view(args.clients, 1)
    tracemalloc.start()
    sampler.draw({}, now, rng)
    added = tracemalloc.get_traced_memory()[1] / (8 * args.clients)
    figures = {
        "clients": args.clients,
        "cohort": args.cohort,
        "draw_ms": round(1e3 * float(np.median(ours[1:])), 1),
        "numpy_choice_ms": round(1e3 * float(np.median(theirs[1:])), 1),
        "ratio": round(float(np.median(np.array(ours[1:]) / np.array(theirs[1:]))), 2),
        "peak_in_arrays_of_clients": round(added, 1),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
