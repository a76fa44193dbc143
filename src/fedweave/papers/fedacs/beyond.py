"""Two questions beyond FedACS: learning the links, and measuring effort where steps do not tell the distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.aggregate import Anonymous, Consistent
from fedweave.core.roles import System
from fedweave.data import load
from fedweave.data.partition import OneClass
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, mean_and_error, percent
from fedweave.papers.common.parallel import Progress, run_seeds
from fedweave.papers.common.scale import Scale, reduce_data
from fedweave.papers.common.training import TAIL, Trajectory, run_and_measure
from fedweave.papers.fedacs.images import saturation
from fedweave.papers.fedacs.quadratics import mean_row, run_worlds
from fedweave.runs.experiment import Experiment
from fedweave.sample import ACS, Weighted
from fedweave.system import Dynamic, Static

LINKS: dict[str, Method] = {
    "fedavg": methods.fedavg_is(6),
    "fedacs, known": methods.fedacs(6),
    "fedacs, estimated": methods.fedacs_estimated(6),
    "fedacs, estimated, never forgets": Method(ACS(6, links="estimated", memory=1.0), aggregator=Anonymous()),
    "fedacs, estimated, forgets fast": Method(ACS(6, links="estimated", memory=0.9), aggregator=Anonymous()),
}
LINKS_SIZES: dict[Scale, tuple[int, int]] = {"smoke": (1, 600), "laptop": (6, 6000), "paper": (6, 6000)}


def links(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """How close FedACS comes when it estimates loss rates and steps (20 quadratics, 6 per round)."""
    seeds, rounds = LINKS_SIZES[scale]
    worlds: dict[str, System] = {"static": Static(), "dynamic": Dynamic()}
    found = run_worlds(LINKS, worlds, 20, 0.002, rounds, False, seeds, on_progress)
    rows = [mean_row(key, ("world", "method"), runs) for key, runs in found.items()]
    by = {(row["world"], row["method"]): row["averaged"] for row in rows}
    claims = []
    for world in worlds:
        known, learned, fedavg = (by[world, n] for n in ("fedacs, known", "fedacs, estimated", "fedavg"))
        evidence = f"FedAvg {fedavg:.3f}, known {known:.3f}, learned {learned:.3f} from the optimum"
        removed = (fedavg - learned) > 0.75 * (fedavg - known)
        claims.append(Claim.judge(f"{world}: learned links do three quarters of what known ones do", removed, evidence))
    notes = (f"{seeds} seeds, {rounds} rounds, the last 30 % measured, the same learning rate 0.002 for all.",)
    return Outcome("fedacs/links", scale, [_plain(row) for row in rows], claims, notes)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: row[k] for k in ("world", "method", "raw", "averaged", "noise")}


EFFORT: dict[str, Method] = {
    "fedavg": methods.fedavg_is(6),
    "fedacs": methods.fedacs(6),
    "fedacs_measured": methods.fedacs_measured(6),
    "consistent": Method(Weighted(6), aggregator=Consistent()),
    "consistent, measured": Method(Weighted(6), aggregator=Consistent(effort="measured")),
}
EFFORT_SIZES: dict[Scale, tuple[int, int, tuple[float, ...]]] = {  # seeds, rounds, learning rates
    "smoke": (1, 3, (0.05,)),
    "laptop": (5, 160, (0.02, 0.05, 0.1)),
    "paper": (10, 400, (0.01, 0.02, 0.05, 0.1)),
}


def effort(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Effort counted in steps against effort measured by displacement: one class per client, two orders of the classes.

    "same": slow and fast half own the same classes. "different": each half owns classes of its own.
    """
    seeds, rounds, rates = EFFORT_SIZES[scale]
    data = reduce_data(load("mnist5k"), 1000, 1000, pool=2)
    partitions = {"same": OneClass(20), "different": OneClass(20, "sorted")}
    experiments = {
        (order, lr, name): Experiment(
            method=method,
            data=data,
            partition=partition,
            model="mlp",
            system=Dynamic(unit="epochs"),
            rounds=rounds,
            lr=lr,
            batch_size=50,
            calibrate=True,
        )
        for order, partition in partitions.items()
        for lr in rates
        for name, method in EFFORT.items()
    }
    runs = run_seeds(run_and_measure, experiments, seeds, on_progress)
    rows = [_effort_row(*key, trajectories) for key, trajectories in runs.items()]
    claims = [_judge_effort(order, runs, rates, scale) for order in partitions]
    notes = (
        f"MNIST (1000 images of 14×14), MLP, dynamic world, one step an epoch, {seeds} seeds, {rounds} rounds",
        "calibrated; accuracy in %, mean ± error over seeds; 0-4 and 5-9: of the averaged model on these classes",
    )
    return Outcome("fedacs/effort", scale, rows, claims, notes)


def _effort_row(deal: str, lr: float, name: str, trajectories: list[Trajectory]) -> dict[str, Any]:
    classes = np.mean([t.averaged_classes for t in trajectories], axis=0)
    return {
        "deal": deal,
        "lr": lr,
        "method": name,
        "last 5": percent([t.last(5) for t in trajectories]),
        f"last {TAIL}": percent([t.last(TAIL) for t in trajectories]),
        "averaged": percent([t.averaged for t in trajectories]),
        "0-4": f"{100 * classes[:5].mean():.0f}",
        "5-9": f"{100 * classes[5:].mean():.0f}",
        "local steps": int(np.mean([t.steps_done for t in trajectories])),
    } | saturation(trajectories)


def _judge_effort(
    deal: str, runs: Mapping[tuple[str, float, str], list[Trajectory]], rates: tuple[float, ...], scale: Scale
) -> Claim:
    """Judge whether measuring is better than counting, each method at its best learning rate."""
    text = f"{deal} classes: measured effort is more accurate than counted, each at its best learning rate"
    if scale == "smoke":
        return Claim.not_run(text)
    best = {
        n: max((np.array([t.last(TAIL) for t in runs[deal, lr, n]]) for lr in rates), key=lambda a: a.mean())
        for n in EFFORT
    }
    lead, error = mean_and_error((best["fedacs_measured"] - best["fedacs"]).tolist())
    evidence = ", ".join(f"{n} {100 * a.mean():.1f}" for n, a in best.items())
    return Claim.judge(text, lead > 2 * error, f"{100 * lead:+.1f} ± {100 * error:.1f} points; {evidence}")
