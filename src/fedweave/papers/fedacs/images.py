"""FedACS's tables and figures on images: table 1 (figure 6), table 4 (figure 9), table 5 (figure 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods
from fedweave.core.records import Array
from fedweave.core.roles import System
from fedweave.core.settings import BadInput
from fedweave.data import Dataset, load
from fedweave.data.partition import Dirichlet, OneClass, Partition
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told, together
from fedweave.papers.common.training import TAIL, Trail, follow, smaller, spread
from fedweave.papers.fedacs.quadratics import FIGURE7
from fedweave.runs.experiment import Experiment
from fedweave.system import Dynamic, Static

CLIENTS = 20
NAMES: tuple[str, ...] = (
    "fedacs",
    "fedavg",
    "c-a-fedavg",
    "fedvarp",
    "fednova",
    "fedau",
    "os",
)  # as the paper lists them
CONTEST = {name: FIGURE7[name] for name in NAMES} | {
    "fedacs_measured": methods.fedacs_measured(6)  # beyond the paper
}
NEVER = (np.nan, np.nan)  # a dash in the paper's tables


class Size(NamedTuple):
    """How much of a published experiment is run."""

    train: int | None  # samples; None: all
    test: int | None
    pool: int  # images are averaged over so many pixels each way
    batch: int
    rounds: int
    seeds: int
    threshold: float | None = None  # accuracy whose first reaching is timed, where the paper's is out of reach


class Task(NamedTuple):
    """One column of a table: data, network (table 3), deal, and what the paper reports."""

    data: str
    model: str
    lr: float
    deal: Partition
    sizes: Mapping[Scale, Size]
    threshold: float
    reported: Sequence[tuple[float, float]]  # by NAMES: rounds to the threshold, device time relative to FedACS


SMOKE = Size(train=200, test=100, pool=2, batch=20, rounds=2, seeds=2)
GREY: dict[Scale, Size] = {
    "smoke": SMOKE,
    "laptop": Size(train=1000, test=1000, pool=2, batch=50, rounds=160, seeds=5, threshold=0.4),
    "paper": Size(train=None, test=None, pool=1, batch=512, rounds=200, seeds=5),
}
COLOUR: dict[Scale, Size] = {
    "smoke": SMOKE,
    "laptop": Size(train=1000, test=1000, pool=2, batch=50, rounds=60, seeds=5, threshold=0.2),
    "paper": Size(train=None, test=None, pool=1, batch=1024, rounds=200, seeds=5),
}


def _mnist(*reported: tuple[float, float]) -> Task:
    return Task("mnist", "cnn_fedacs_mnist", 0.02, OneClass(CLIENTS), GREY, 0.70, reported)


def _cifar10(alpha: float, threshold: float, *reported: tuple[float, float]) -> Task:
    return Task("cifar10", "cnn_fedacs_cifar10", 0.03, Dirichlet(CLIENTS, alpha), COLOUR, threshold, reported)


def _cinic10(*reported: tuple[float, float]) -> Task:
    return Task("cinic10", "cnn_fedacs_cinic10", 0.03, Dirichlet(CLIENTS, 0.1), COLOUR, 0.35, reported)


TABLE1 = {
    "mnist": _mnist((68, 1.0), (93, 1.38), (84, 1.51), (115, 2.05), (99, 1.70), NEVER, (72, 1.24)),
    "cifar10": _cifar10(0.1, 0.40, (100, 1.0), (143, 1.80), (130, 1.14), (165, 1.95), (161, 1.92), NEVER, (80, 0.74)),
    "cinic10": _cinic10((55, 1.0), (74, 1.27), (67, 1.16), (104, 1.94), (100, 1.90), NEVER, (65, 1.24)),
}
TABLE4 = {
    "mnist": _mnist((64, 1.0), (92, 1.50), (68, 1.17), (92, 1.59), (103, 1.83), NEVER, NEVER),
    "cifar10": _cifar10(0.1, 0.40, (68, 1.0), (112, 1.83), (101, 1.77), (148, 2.52), (117, 1.81), NEVER, (72, 1.34)),
    "cinic10": _cinic10((36, 1.0), (57, 1.56), (55, 1.43), (73, 1.98), (83, 2.33), NEVER, (47, 1.09)),
}
TABLE5 = {
    "0.05": _cifar10(0.05, 0.35, (107, 1.0), (149, 1.55), (142, 1.45), NEVER, NEVER, NEVER, (110, 1.02)),
    "0.2": _cifar10(0.2, 0.35, (51, 1.0), (88, 1.88), (88, 1.87), (156, 3.73), (125, 2.88), NEVER, (54, 1.18)),
    "0.35": _cifar10(0.35, 0.40, (36, 1.0), (88, 2.62), (90, 2.74), (159, 5.22), (94, 2.92), NEVER, (32, 0.94)),
}


def table1(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Table 1 and figure 6: seven methods in the dynamic world on MNIST, CIFAR-10 and CINIC-10."""
    return _table("fedacs/table1", TABLE1, Dynamic(unit="epochs"), scale, told, part)


def table4(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Table 4 and figure 9: the same in the static world."""
    return _table("fedacs/table4", TABLE4, Static(unit="epochs"), scale, told, part)


def table5(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Table 5 and figure 10: CIFAR-10 in the dynamic world, three degrees of skew (α)."""
    return _table("fedacs/table5", TABLE5, Dynamic(unit="epochs"), scale, told, part)


fig6, fig9, fig10 = table1, table4, table5  # the figures show the accuracies of the same runs


def _table(
    item: str, tasks: Mapping[str, Task], world: System, scale: Scale, told: Told | None, part: str | None
) -> Outcome:
    wanted = {name: task for name, task in tasks.items() if part in (None, name)}
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    notes = ["accuracy in %, mean ± standard error over seeds; steps are calibrated (I.2), T counts epochs"]
    for name, task in wanted.items():
        try:
            data = _data(task, scale)
        except BadInput as missing:
            claims.append(
                Claim(f"{name}: FedACS is the most accurate and the fastest", "not run at this scale", str(missing))
            )
            continue
        size = task.sizes[scale]
        experiment = Experiment(
            method=CONTEST["fedacs"],
            data=data,
            partition=task.deal,
            model=task.model,
            system=world,
            rounds=size.rounds,
            lr=task.lr,
            batch_size=size.batch,
            calibrate=True,
        )
        trails = contest(CONTEST, experiment, size.seeds, told)
        threshold = size.threshold or task.threshold
        rows += _rows(name, task, trails, threshold)
        claims += _claims(name, trails, threshold, scale)
        notes.append(
            f"{name}: {len(data.x)} training images of {data.shape[1]}×{data.shape[2]}, batch {size.batch}, "
            f"{size.rounds} rounds, {size.seeds} seeds; time to {threshold:.0%} (paper: {task.threshold:.0%})"
        )
    return Outcome(f"{item}/{part}" if part else item, scale, rows, claims, notes)


def _data(task: Task, scale: Scale) -> Dataset:
    size = task.sizes[scale]
    data = load("mnist5k" if scale == "smoke" and task.data == "mnist" else task.data)
    return data if size.train is None else smaller(data, size.train, size.test or size.train, size.pool)


def contest(
    methods: Mapping[str, Method], experiment: Experiment, seeds: int, told: Told | None
) -> dict[str, list[Trail]]:
    """Return the runs of every method over the seeds; for one seed all meet the same clients and world."""
    calls = {
        (name, seed): (replace(experiment, method=method, seed=seed),)
        for seed in range(seeds)
        for name, method in methods.items()
    }
    found = together(follow, calls, told)
    return {name: [found[name, seed] for seed in range(seeds)] for name in methods}


def _rows(task_name: str, task: Task, trails: Mapping[str, list[Trail]], threshold: float) -> list[dict[str, Any]]:
    reported = dict(zip(NAMES, task.reported, strict=True))
    fedacs = mean([t.seconds_to(threshold) for t in trails["fedacs"]])
    rows = []
    for name, runs in trails.items():
        paper_rounds, paper_time = reported.get(name, NEVER)
        rows.append(
            {
                "data": task_name,
                "method": name,
                "last 5": percent([t.last(5) for t in runs]),
                f"last {TAIL}": percent([t.last(TAIL) for t in runs]),
                "averaged": percent([t.averaged for t in runs]),
                "rounds": whole(mean([t.rounds_to(threshold) for t in runs])),
                "paper": whole(paper_rounds),
                "time": times(mean([t.seconds_to(threshold) for t in runs]) / fedacs),
                "paper time": times(paper_time),
                "local steps": int(np.mean([t.steps_done for t in runs])),
            }
            | saturation(runs)
        )
    return rows


def saturation(runs: Sequence[Trail]) -> dict[str, str]:
    """Return how much more the second half of the clients works than the first, and how much farther it gets."""
    heard, steps, reach = np.sum([(t.heard, t.steps, t.reach) for t in runs], axis=0).reshape(3, 2, -1).sum(axis=2)
    with np.errstate(invalid="ignore"):
        (slow, fast), (near, far) = steps / heard, reach / heard
    return {"steps, halves": f"{slow:.1f}/{fast:.1f}", "reach, halves": f"{near:.2f}/{far:.2f}"}


def percent(shares: Sequence[float]) -> str:
    """Return mean and standard error of shares, in per cent."""
    mean, error = spread(shares)
    return f"{100 * mean:.1f} ± {100 * error:.1f}" if len(shares) > 1 else f"{100 * mean:.1f}"


def whole(value: float) -> str:
    """Return a number of rounds, or a dash if it was not reached in every run."""
    return f"{value:.0f}" if np.isfinite(value) else "—"


def times(value: float) -> str:
    """Return a factor, or a dash."""
    return f"{value:.2f}×" if np.isfinite(value) else "—"


def _claims(name: str, trails: Mapping[str, list[Trail]], threshold: float, scale: Scale) -> list[Claim]:
    measures: dict[str, Callable[[Trail], float]] = {
        "accuracy of the last five rounds (the paper's measure)": lambda t: t.last(5),
        f"mean accuracy of the last {TAIL} rounds": lambda t: t.last(TAIL),
        f"accuracy of the mean of the last {TAIL} models": lambda t: t.averaged,
    }
    claims = [
        _leads(f"{name}: FedACS has the highest {text}", {n: np.array([f(t) for t in trails[n]]) for n in NAMES}, scale)
        for text, f in measures.items()
    ]
    rounds = {n: mean([t.rounds_to(threshold) for t in trails[n]]) for n in NAMES}
    told = ", ".join(f"{n} {whole(r)}" for n, r in rounds.items())
    text = f"{name}: FedACS needs the fewest rounds to {threshold:.0%}"
    if scale == "smoke":
        return [*claims, Claim(text, "not run at this scale", "too few rounds")]
    first = np.isfinite(rounds["fedacs"]) and rounds["fedacs"] <= np.nanmin(list(rounds.values()))
    return [*claims, Claim.judged(text, bool(first), told)]


def _leads(text: str, scores: Mapping[str, Array], scale: Scale) -> Claim:
    """Judge whether FedACS leads the best other by more than twice the error of their difference, seed by seed."""
    if scale == "smoke":
        return Claim(text, "not run at this scale", "too few rounds and seeds")
    best = max((n for n in scores if n != "fedacs"), key=lambda n: scores[n].mean())
    lead, error = spread((scores["fedacs"] - scores[best]).tolist())
    told = f"FedACS leads {best} by {100 * lead:.1f} ± {100 * error:.1f} points"
    return Claim.judged(text, lead > 2 * error, told)
