"""Hand-made runs for the report's tests: the shapes of the real ones, without training anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedweave.round.measures import of_clients
from fedweave.runs.results import Result, summarise


def tiny(
    method: str,
    accuracy: Sequence[float],
    seed: int = 0,
    target: float | None = 0.8,
    planned: int | None = None,
    seconds: float = 10.0,
    **changes: Any,
) -> Result:
    """Return a run whose every number can be worked out by hand: ``seconds`` and 1000 bytes per round."""
    n = len(accuracy)
    number = np.arange(1, n + 1)
    values = np.asarray(accuracy, dtype=float)
    rounds = {
        "round": number,
        "clock": seconds * number,
        "seconds": np.full(n, seconds),
        "device_seconds": np.full(n, 2 * seconds),
        "wall_seconds": 0.5 * number,
        "accuracy": values,
        "loss": 1 - values,
        "train_loss": 1 - values,
        "asked": np.full(n, 2),
        "received": np.full(n, 1),
        "refused": np.zeros(n, int),
        "abandoned": np.zeros(n, int),
        "bytes_up": 1000 * number,
        "bytes_down": 2000 * number,
        **changes,
    }
    clients = {
        "round": np.repeat(number, 2),
        "client": np.tile([0, 1], n),
        "count": np.ones(2 * n, int),
        "received": np.tile([True, False], n),
    }
    experiment = {"method": {"name": method}, "rounds": planned or n, "target": target, "seed": seed}
    manifest = {"labels": [[3, 1], [0, 4], [2, 2]], "command": f"fedweave run {method} --seed {seed}"}
    return Result(experiment, manifest, rounds, clients, _summary(method, rounds, target, seed))


def realistic(
    method: str, seed: int = 0, rounds: int = 40, clients: int = 50, classes: int = 10, speed: float = 1.0,
    end: float = 0.86, target: float | None = 0.8, link: float = 0.9,
) -> Result:  # fmt: skip
    """Return a noisy run as a comparison on MNIST leaves it."""
    rng = np.random.default_rng([seed, *method.encode()])
    number = np.arange(1, rounds + 1)
    curve = end - (end - 0.1) * np.exp(-number * speed / 7) + rng.normal(0, 0.012, rounds)
    world = np.random.default_rng(seed)
    labels = np.round(world.dirichlet([0.3] * classes, clients) * world.integers(40, 160, (clients, 1))).astype(int)
    odds = world.dirichlet([6.0] * clients)
    asked = np.concatenate([rng.choice(clients, min(10, clients), replace=False, p=odds) for _ in number])
    heard = rng.random(asked.size) < link
    seconds = rng.gamma(6, 1.6 / speed**0.3, rounds)
    columns = {
        "round": number,
        "clock": seconds.cumsum(),
        "seconds": seconds,
        "wall_seconds": 0.31 * number,
        "accuracy": curve,
        "loss": 2.3 * np.exp(-number * speed / 9) + 0.45 + rng.normal(0, 0.02, rounds),
        "refused": np.zeros(rounds, int),
        "abandoned": np.zeros(rounds, int),
        "bytes_up": np.cumsum(heard.reshape(rounds, -1).sum(1) * 87_432),
        "bytes_down": number * 10 * 87_432,
        "class_accuracy": np.clip(curve[:, None] + rng.normal(0, 0.07, (rounds, classes)), 0, 1),
    }
    rows = {
        "round": np.repeat(number, min(10, clients)),
        "client": asked,
        "count": np.ones(asked.size, int),
        "received": heard,
    }
    return Result(
        _experiment(method, seed, rounds, clients, target), _manifest(labels), columns, rows,
        _summary(method, columns, target, seed),
    )  # fmt: skip


def with_scores(run: Result, values: Sequence[float], untested: int = 0) -> Result:
    """Return the run with these scores of its clients in the last round, and worse ones in the round before."""
    n, last = len(values), int(run.rounds["round"][-1])
    rounds, value = np.repeat([last - 1, last], n), np.concatenate([np.asarray(values, float) / 2, values])
    scores = {"round": rounds, "client": np.tile(np.arange(n), 2), "value": value}
    higher = run.summary["higher_is_better"]
    summary = {**run.summary, **of_clients(np.asarray(values, float), higher)}
    manifest = {**run.manifest, "test_samples": [*[3] * n, *[0] * untested]}
    return replace(run, client_scores=scores, summary=summary, manifest=manifest)


def comparison(seeds: int = 2, **options: Any) -> list[Result]:
    """Return four methods on the same seeds."""
    methods = {
        "fedavg": (1.0, 0.86),
        "fedprox": (0.98, 0.862),
        "fedavgm": (1.6, 0.872),
        "fedyogi": (2.2, 0.884),
    }
    return [
        realistic(method, seed, speed=speed, end=end, **options)
        for method, (speed, end) in methods.items()
        for seed in range(seeds)
    ]


def _summary(method: str, rounds: dict[str, Any], target: float | None, seed: int) -> dict[str, Any]:
    return {"method": method, **summarise(rounds, target), "run": f"runs/{method}-{seed}"}


def _experiment(method: str, seed: int, rounds: int, clients: int, target: float | None) -> dict[str, Any]:
    parts: dict[str, Any] = {"name": method, "sampler": {"kind": "Uniform", "size": 10}}
    parts |= {"solver": {"kind": "Prox", "mu": 0.01}} if method == "fedprox" else {"solver": {"kind": "SGD"}}
    if method == "fedyogi":
        parts["server"] = {"kind": "Yogi", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    elif method == "fedavgm":
        parts["server"] = {"kind": "Momentum", "lr": 1.0, "beta": 0.9}
    else:
        parts["server"] = {"kind": "Add", "lr": 1.0}
    return {
        "method": parts,
        "data": "mnist5k",
        "partition": {"kind": "Dirichlet", "clients": clients, "alpha": 0.3},
        "model": "cnn_small",
        "system": {"kind": "Dynamic", "floor": 0.1, "period": 20},
        "rounds": rounds,
        "epochs": 1,
        "batch_size": 20,
        "lr": 0.05,
        "target": target,
        "seed": seed,
    }


def _manifest(labels: np.ndarray) -> dict[str, Any]:
    return {
        "command": "fedweave compare fedavg fedprox fedavgm fedyogi --data mnist5k --partition dirichlet:0.3 "
        "--clients 50 --per-round 10 --model cnn_small --system dynamic --rounds 40 --target 0.8 --seeds 2",
        "versions": {
            "fedweave": "0.1.0",
            "python": "3.11.7",
            "numpy": "2.4.6",
            "torch": "2.13.0",
            "scipy": "1.17.1",
        },
        "data": {
            "name": "mnist5k",
            "digest": "9f2c6a1de0b7" + 52 * "4",
        },
        "model": {"name": "cnn_small", "parameters": 21_858, "dim": 21_858},
        "device": "cpu, 2 threads (AMD EPYC 7B13, 7.8 GB memory)",
        "started": "2026-08-03T14:21:09+00:00",
        "labels": labels.tolist(),
    }
