"""Seconds per round against a bare eager PyTorch loop that takes the same steps: both sides in one run, alternating.

W1: 100 clients × 200 images of 28×28, 10 sampled, 2 epochs of batch 20, a small CNN.
W2: 1000 clients × 20 samples, 50 sampled, 5 epochs of batch 5, logistic regression.

The bare loop is given its best number of threads (1 or 2, whichever has the lower median); a turn is one round of each;
the figure is the median over turns of the ratio fedweave / bare. Use: python benchmarks/rounds.py [--turns 7]

--samplers: what practical importance sampling and practical DELTA cost beside uniform sampling, scores, local variances
and weights included, in W1 and in one run. They draw without replacement here, so that all sides train as many clients;
a turn is one round of each, in another order every turn.

--lazy: W1 with the images in a lazy data set that returns stored ones, against the same images as arrays; turns alike.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedweave import methods, models
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Population
from fedweave.data.columns import Items
from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.client_data import ClientData
from fedweave.local.torch.flat_module import initial_vector
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.sample import PracticalDelta, PracticalIS


class Work(NamedTuple):
    """One workload."""

    clients: int
    samples: int
    sampled: int
    epochs: int
    batch: int
    model: str
    lr: float = 0.05


WORKS = {"W1": Work(100, 200, 10, 2, 20, "cnn_small"), "W2": Work(1000, 20, 50, 5, 5, "logistic")}


def made_data(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Return random images and labels, (clients, samples, ...): the time does not depend on what they show."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((work.clients, work.samples, 1, 28, 28), dtype=np.float32)
    return x, rng.integers(0, 10, (work.clients, work.samples))


def bare_loop(work: Work, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """Return one round of FedAvg as anybody writes it in eager PyTorch."""
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    model: nn.Module = models.build(work.model, (1, 28, 28), 10)
    weights = list(model.parameters())
    optimizer, rng = torch.optim.SGD(weights, lr=work.lr), np.random.default_rng(1)
    server = [w.detach().clone() for w in weights]

    def one_round() -> None:
        total = [torch.zeros_like(w) for w in server]
        for client in rng.choice(work.clients, work.sampled, replace=False):
            with torch.no_grad():
                torch._foreach_copy_(weights, server)
            xs, ys = images[client], labels[client]
            for _ in range(work.epochs):
                for batch in torch.randperm(work.samples).split(work.batch):
                    optimizer.zero_grad()
                    F.cross_entropy(model(xs[batch]), ys[batch]).backward()
                    optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, weights)
        for w, t in zip(server, total, strict=True):
            w.copy_(t / work.sampled)

    return one_round


class Stored:
    """A map-style data set that returns stored images, as people write them."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self.x, self.y = torch.from_numpy(x), y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], int(self.y[i])


def fedweave_round(
    work: Work, x: np.ndarray, y: np.ndarray, workers: Pool, method: Method | None = None, lazy: bool = False
) -> Callable[[], None]:
    """Return one round of a method, everything in it: sampling, training, admission, aggregation, step, learning."""
    n = work.clients
    parts = list(np.arange(n * work.samples).reshape(n, work.samples))
    flat_x, flat_y = x.reshape(-1, 1, 28, 28), y.reshape(-1)
    images: Any = Items(Stored(flat_x, flat_y)) if lazy else flat_x
    data = ClientData(x=images, y=flat_y, test_x=images[:1], test_y=flat_y[:1], mean=(), std=(), parts=parts)
    method = method or methods.fedavg(work.sampled)
    model = lambda: models.build(work.model, (1, 28, 28), 10)  # noqa: E731
    engine = torch_simulator(model, data, method.solver, 0, workers)
    steps = work.epochs * -(-work.samples // work.batch)
    one = np.ones(n)
    population = Population(
        weight=one / n,
        samples=one * work.samples,
        steps=np.full(n, steps),
        batch_size=np.full(n, work.batch),
        loss_rate=0 * one,
        latency=one,
        available=one > 0,
    )
    state = first_state(method, initial_vector(model()), population, engine.layout.parameters)

    def one_round() -> None:
        nonlocal state
        state, _ = run_round(method, state, population, engine, work.lr, 0)

    return one_round


def seconds(function: Callable[[], None], threads: int) -> float:
    """Return how long one call takes with this many torch threads in the main process."""
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def measure(name: str, turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of the bare loop, of fedweave, and of their ratio."""
    work = WORKS[name]
    x, y = made_data(work)
    bare = bare_loop(work, x, y)
    with Workers(workers) as processes:
        ours = fedweave_round(work, x, y, processes)
        for warm in (bare, ours):
            warm()
            warm()
        rows = [(seconds(bare, 1), seconds(bare, 2), seconds(ours, 1)) for _ in range(turns)]
    one, two, mine = np.array(rows).T
    best = one if np.median(one) < np.median(two) else two  # the better setting, not the luckier turn
    ratio = mine / best
    return {
        "work": name,
        "turns": turns,
        "workers": workers,
        "bare_1_thread_s": float(np.median(one)),
        "bare_2_threads_s": float(np.median(two)),
        "fedweave_s": float(np.median(mine)),
        "ratio": float(np.median(ratio)),
        "ratio_range": [float(ratio.min()), float(ratio.max())],
    }


def samplers(turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds by uniform, practical IS and practical DELTA sampling, and ratios."""
    k, weigh = WORKS["W1"].sampled, InverseProbability()
    sides = {
        "uniform": {"method": methods.fedavg(k)},
        "practical_is": {"method": Method(PracticalIS(k, replacement=False), aggregator=weigh)},
        "practical_delta": {"method": Method(PracticalDelta(k, replacement=False), aggregator=weigh)},
    }
    return contest(sides, turns, workers)


def lazy(turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds on arrays and on lazy items, and ratios."""
    return contest({"arrays": {}, "lazy": {"lazy": True}}, turns, workers)


def contest(sides: dict[str, dict[str, Any]], turns: int, workers: int) -> dict[str, Any]:
    """Return medians over ``turns`` of rounds of W1 with these settings, and ratios to the first."""
    work = WORKS["W1"]
    x, y = made_data(work)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:  # each has its own processes: changing hands would cost more than what is measured
        rounds = {
            n: fedweave_round(work, x, y, stack.enter_context(Workers(workers)), **how) for n, how in sides.items()
        }
        for turn in range(turns + 2):  # the first two warm up
            names = list(rounds)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                taken[name].append(seconds(rounds[name], 1))
    base = np.array(taken[next(iter(sides))][2:])
    figures: dict[str, Any] = {"work": "W1", "turns": turns, "workers": workers}
    for name, values in taken.items():
        ratio = np.array(values[2:]) / base
        figures[f"{name}_s"] = float(np.median(values[2:]))
        figures[f"{name}_ratio"] = float(np.median(ratio))
        figures[f"{name}_quartiles"] = np.quantile(ratio, [0.25, 0.75]).round(3).tolist()
    return figures


def main() -> None:
    """Measure and print one JSON object per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, action="append", help="only this workload")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samplers", action="store_true", help="practical samplers against uniform, W1")
    parser.add_argument("--lazy", action="store_true", help="a lazy data set against arrays, W1")
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}, cores: {os.cpu_count()}", flush=True)
    for chosen, side in ((options.samplers, samplers), (options.lazy, lazy)):
        if chosen:
            print(json.dumps(side(options.turns, options.workers)), flush=True)
            return
    for name in options.work or WORKS:
        print(json.dumps(measure(name, options.turns, options.workers)), flush=True)


if __name__ == "__main__":
    main()
