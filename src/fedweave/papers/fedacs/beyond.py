"""Two questions that FedACS leaves open: what if links must be learned, and what if steps do not tell the distance."""

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
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told, together
from fedweave.papers.common.training import TAIL, Trail, follow, smaller, spread
from fedweave.papers.fedacs.images import percent, saturation
from fedweave.papers.fedacs.quadratics import means, walks
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


def links(scale: Scale, told: Told | None = None) -> Outcome:
    """How close FedACS comes when it learns loss rates and steps from what it sees (20 quadratics, 6 per round)."""
    seeds, rounds = LINKS_SIZES[scale]
    worlds: dict[str, System] = {"static": Static(), "dynamic": Dynamic()}
    found = walks(LINKS, worlds, 20, 0.002, rounds, False, seeds, told)
    rows = [means(key, ("world", "method"), runs) for key, runs in found.items()]
    by = {(row["world"], row["method"]): row["averaged"] for row in rows}
    claims = []
    for world in worlds:
        known, learned, fedavg = (by[world, n] for n in ("fedacs, known", "fedacs, estimated", "fedavg"))
        evidence = f"FedAvg {fedavg:.3f}, known {known:.3f}, learned {learned:.3f} from the optimum"
        removed = (fedavg - learned) > 0.75 * (fedavg - known)
        claims.append(
            Claim.judged(f"{world}: learned links do three quarters of what known ones do", removed, evidence)
        )
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


def effort(scale: Scale, told: Told | None = None) -> Outcome:
    """Effort counted in steps against effort measured by displacement: one class per client, both deals of the classes.

    "same": slow and fast half own the same classes. "different": each half owns classes of its own.
    """
    seeds, rounds, rates = EFFORT_SIZES[scale]
    data = smaller(load("mnist5k"), 1000, 1000, pool=2)
    deals = {"same": OneClass(20), "different": OneClass(20, "sorted")}
    calls = {
        (deal, lr, name, seed): (
            Experiment(
                method=method,
                data=data,
                partition=partition,
                model="mlp",
                system=Dynamic(unit="epochs"),
                rounds=rounds,
                lr=lr,
                batch_size=50,
                seed=seed,
                calibrate=True,
            ),
        )
        for deal, partition in deals.items()
        for lr in rates
        for seed in range(seeds)
        for name, method in EFFORT.items()
    }
    found = together(follow, calls, told)
    runs = {(d, lr, n): [found[d, lr, n, s] for s in range(seeds)] for d in deals for lr in rates for n in EFFORT}
    rows = [_effort_row(*key, trails) for key, trails in runs.items()]
    claims = [_worth(deal, runs, rates, scale) for deal in deals]
    notes = (
        f"MNIST (1000 images of 14×14), MLP, dynamic world, one step an epoch, {seeds} seeds, {rounds} rounds",
        "calibrated; accuracy in %, mean ± error over seeds; 0-4 and 5-9: of the averaged model on these classes",
    )
    return Outcome("fedacs/effort", scale, rows, claims, notes)


def _effort_row(deal: str, lr: float, name: str, trails: list[Trail]) -> dict[str, Any]:
    classes = np.mean([t.averaged_classes for t in trails], axis=0)
    return {
        "deal": deal,
        "lr": lr,
        "method": name,
        "last 5": percent([t.last(5) for t in trails]),
        f"last {TAIL}": percent([t.last(TAIL) for t in trails]),
        "averaged": percent([t.averaged for t in trails]),
        "0-4": f"{100 * classes[:5].mean():.0f}",
        "5-9": f"{100 * classes[5:].mean():.0f}",
        "local steps": int(np.mean([t.steps_done for t in trails])),
    } | saturation(trails)


def _worth(
    deal: str, runs: Mapping[tuple[str, float, str], list[Trail]], rates: tuple[float, ...], scale: Scale
) -> Claim:
    """Judge, each method at the learning rate that suits it best, whether measuring is better than counting."""
    text = f"{deal} classes: measured effort is more accurate than counted, each at its best learning rate"
    if scale == "smoke":
        return Claim(text, "not run at this scale", "too few rounds and seeds")
    best = {
        n: max((np.array([t.last(TAIL) for t in runs[deal, lr, n]]) for lr in rates), key=lambda a: a.mean())
        for n in EFFORT
    }
    lead, error = spread((best["fedacs_measured"] - best["fedacs"]).tolist())
    told = ", ".join(f"{n} {100 * a.mean():.1f}" for n, a in best.items())
    return Claim.judged(text, lead > 2 * error, f"{100 * lead:+.1f} ± {100 * error:.1f} points; {told}")
