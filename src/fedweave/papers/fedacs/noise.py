"""FedACS claims to go with differential privacy, since it needs only the sum of what arrives: here it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods, privacy
from fedweave.aggregate import Private
from fedweave.data import load
from fedweave.data.partition import Dirichlet
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told, together
from fedweave.papers.common.training import smaller, spread
from fedweave.papers.fedacs.images import percent
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import run
from fedweave.system import Dynamic

CLIENTS, DRAWS, CLIP, LAST, DELTA = 200, 40, 0.5, 20, 1e-3
SIZES: dict[Scale, tuple[int, int, tuple[float, ...]]] = {  # seeds, rounds, noise multipliers
    "smoke": (1, 3, (1.0,)),
    "laptop": (5, 150, (0.5, 1.0, 2.0, 4.0)),
    "paper": (10, 300, (0.25, 0.5, 1.0, 2.0, 4.0)),
}


class Spent(NamedTuple):
    """One run: how good it was at the end, and what it gave away."""

    accuracy: float
    epsilon: float  # of the client heard most, to those who know who took part
    probability: float  # of the client most likely to be drawn, per draw


def _spent(experiment: Experiment) -> Spent:
    result = run(experiment)
    epsilon = result.rounds.get("epsilon", np.zeros(1))[-1]
    likely = result.clients["expected"].max() / DRAWS
    return Spent(float(result.rounds["accuracy"][-LAST:].mean()), float(epsilon), float(likely))


def private(scale: Scale, told: Told | None = None) -> Outcome:
    """Accuracy and epsilon of FedACS and FedAvg by importance sampling, with and without noise, in a dynamic world."""
    seeds, rounds, noises = SIZES[scale]
    data = smaller(load("mnist5k"), 4000, 1000, pool=2)
    plain = {"fedacs": methods.fedacs(DRAWS), "fedavg": methods.fedavg_is(DRAWS)}
    zoo = {(name, 0.0): method for name, method in plain.items()} | {
        (name, z): replace(method, aggregator=Private(CLIP, z, DELTA)) for name, method in plain.items() for z in noises
    }
    calls = {
        (name, z, seed): (
            Experiment(
                method=method,
                data=data,
                partition=Dirichlet(CLIENTS, 0.1),
                model="logistic",
                system=Dynamic(unit="epochs"),
                rounds=rounds,
                lr=0.02,
                seed=seed,
                workers=1,
            ),
        )
        for (name, z), method in zoo.items()
        for seed in range(seeds)
    }
    found = together(_spent, calls, told)
    runs = {key: [found[*key, seed] for seed in range(seeds)] for key in zoo}
    rows = [_row(name, z, spent, rounds) for (name, z), spent in runs.items()]
    claims = [_lead(z, runs, scale) for z in (0.0, *noises)]
    notes = (
        f"MNIST (4000 images of 14×14), logistic regression, {CLIENTS} clients, Dirichlet(0.1) labels, {DRAWS} draws",
        f"dynamic world; clip {CLIP}, δ = {DELTA:g}, {seeds} seeds, {rounds} rounds, mean accuracy of the last {LAST}",
        "ε known: to those who know who took part; secret: to those who do not, for the client most likely to be drawn",
    )
    return Outcome("fedacs/private", scale, rows, claims, notes)


def _row(name: str, z: float, spent: list[Spent], rounds: int) -> dict[str, Any]:
    secret = privacy.epsilon(z, rounds, DRAWS, max(s.probability for s in spent), DELTA) if z else np.inf
    return {
        "method": name,
        "noise": z,
        "accuracy": percent([s.accuracy for s in spent]),
        "ε known": f"{max(s.epsilon for s in spent):.1f}" if z else "∞",
        "ε secret": f"{secret:.1f}" if z else "∞",
    }


def _lead(z: float, runs: dict[tuple[str, float], list[Spent]], scale: Scale) -> Claim:
    text = f"noise {z:g}: FedACS is more accurate than FedAvg"
    ours, theirs = ([s.accuracy for s in runs[name, z]] for name in ("fedacs", "fedavg"))
    lead, error = spread([a - b for a, b in zip(ours, theirs, strict=True)])
    evidence = f"{100 * lead:+.1f} ± {100 * error:.1f} points"
    if scale == "smoke":
        return Claim(text, "not run at this scale", f"too few rounds and seeds: {evidence}")
    return Claim.judged(text, lead > 2 * error, evidence)
