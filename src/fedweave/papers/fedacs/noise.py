"""FedACS under differential privacy, which it claims to support because it needs only the sum of the updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods, privacy
from fedweave.aggregate import Private
from fedweave.data import load
from fedweave.data.partition import Dirichlet
from fedweave.papers.common.claims import Claim, Outcome, mean_and_error, percent
from fedweave.papers.common.parallel import Progress, run_seeds
from fedweave.papers.common.scale import Scale, reduce_data
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import run
from fedweave.system import Dynamic

CLIENTS, DRAWS, CLIP, LAST, DELTA = 200, 40, 0.5, 20, 1e-3
SIZES: dict[Scale, tuple[int, int, tuple[float, ...]]] = {  # seeds, rounds, noise multipliers
    "smoke": (1, 3, (1.0,)),
    "laptop": (5, 150, (0.5, 1.0, 2.0, 4.0)),
    "paper": (10, 300, (0.25, 0.5, 1.0, 2.0, 4.0)),
}


class PrivateRun(NamedTuple):
    """One run: its final accuracy and its privacy loss."""

    accuracy: float
    epsilon: float  # of the client received most often, against observers who know which clients took part
    probability: float  # of the client most likely to be drawn, per draw


def _run_private(experiment: Experiment) -> PrivateRun:
    result = run(experiment)
    epsilon = result.rounds.get("epsilon", np.zeros(1))[-1]
    likely = result.clients["expected"].max() / DRAWS
    return PrivateRun(float(result.rounds["accuracy"][-LAST:].mean()), float(epsilon), float(likely))


def private(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Accuracy and epsilon of FedACS and FedAvg by importance sampling, with and without noise, in a dynamic world."""
    privacy.needs_library()
    seeds, rounds, noises = SIZES[scale]
    data = reduce_data(load("mnist5k"), 4000, 1000, pool=2)
    plain = {"fedacs": methods.fedacs(DRAWS), "fedavg": methods.fedavg_is(DRAWS)}
    arms = {(name, 0.0): method for name, method in plain.items()} | {
        (name, z): replace(method, aggregator=Private(CLIP, z, DELTA)) for name, method in plain.items() for z in noises
    }
    experiments = {
        key: Experiment(
            method=method,
            data=data,
            partition=Dirichlet(CLIENTS, 0.1),
            model="logistic",
            system=Dynamic(unit="epochs"),
            rounds=rounds,
            lr=0.02,
            workers=1,
        )
        for key, method in arms.items()
    }
    runs = run_seeds(_run_private, experiments, seeds, on_progress)
    rows = [_row(name, z, private_runs, rounds) for (name, z), private_runs in runs.items()]
    claims = [_judge_private(z, runs, scale) for z in (0.0, *noises)]
    notes = (
        f"MNIST (4000 images of 14×14), logistic regression, {CLIENTS} clients, Dirichlet(0.1) labels, {DRAWS} draws",
        f"dynamic world; clip {CLIP}, δ = {DELTA:g}, {seeds} seeds, {rounds} rounds, mean accuracy of the last {LAST}",
        "ε known: to those who know who took part; secret: to those who do not, for the client most likely to be drawn",
    )
    return Outcome("fedacs/private", scale, rows, claims, notes)


def _row(name: str, z: float, private_runs: list[PrivateRun], rounds: int) -> dict[str, Any]:
    secret = privacy.epsilon(z, rounds, DRAWS, max(s.probability for s in private_runs), DELTA) if z else np.inf
    return {
        "method": name,
        "noise": z,
        "accuracy": percent([s.accuracy for s in private_runs]),
        "ε known": f"{max(s.epsilon for s in private_runs):.1f}" if z else "∞",
        "ε secret": f"{secret:.1f}" if z else "∞",
    }


def _judge_private(z: float, runs: dict[tuple[str, float], list[PrivateRun]], scale: Scale) -> Claim:
    text = f"noise {z:g}: FedACS is more accurate than FedAvg"
    ours, theirs = ([s.accuracy for s in runs[name, z]] for name in ("fedacs", "fedavg"))
    lead, error = mean_and_error([a - b for a, b in zip(ours, theirs, strict=True)])
    evidence = f"{100 * lead:+.1f} ± {100 * error:.1f} points"
    if scale == "smoke":
        return Claim.not_run(text, f"too few rounds and seeds: {evidence}")
    return Claim.judge(text, lead > 2 * error, evidence)
