"""FedACS's tables and figures on images: table 1 (figure 6), table 4 (figure 9), table 5 (figure 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods
from fedweave.core.records import Array
from fedweave.core.roles import System
from fedweave.core.settings import BadInput
from fedweave.data.partition import Dirichlet, OneClass, Partition
from fedweave.papers.common.claims import Claim, Outcome, item_path, mean_and_error, percent
from fedweave.papers.common.parallel import Progress, run_seeds
from fedweave.papers.common.scale import ImageSize, Scale, load_samples
from fedweave.papers.common.training import TAIL, Trajectory, run_and_measure
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
METHODS = {name: FIGURE7[name] for name in NAMES} | {
    "fedacs_measured": methods.fedacs_measured(6)  # beyond the paper
}
NEVER = (np.nan, np.nan)  # a dash in the paper's tables


@dataclass(frozen=True, kw_only=True)
class Size(ImageSize):
    """How much of a published experiment is run."""

    threshold: float | None = None  # replaces the published accuracy threshold where that is out of reach


class Task(NamedTuple):
    """One column of a table: data, network (table 3), partition, and what the paper reports."""

    data: str
    model: str
    lr: float
    partition: Partition
    sizes: Mapping[Scale, Size]
    threshold: float
    reported: Sequence[tuple[float, float]]  # by NAMES: rounds to the threshold, device time relative to FedACS


SMOKE = Size(train=200, test=100, pool=2, batch=20, rounds=2, seeds=2)
GREY: dict[Scale, Size] = {
    "smoke": SMOKE,
    "laptop": Size(train=1000, test=1000, pool=2, batch=50, rounds=160, seeds=5, threshold=0.4),
    "paper": Size(batch=512, rounds=200, seeds=5),
}
COLOUR: dict[Scale, Size] = {
    "smoke": SMOKE,
    "laptop": Size(train=1000, test=1000, pool=2, batch=50, rounds=60, seeds=5, threshold=0.2),
    "paper": Size(batch=1024, rounds=200, seeds=5),
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


def table1(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Table 1 and figure 6: seven methods in the dynamic world on MNIST, CIFAR-10 and CINIC-10."""
    return _table("fedacs/table1", TABLE1, Dynamic(unit="epochs"), scale, on_progress, part)


def table4(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Table 4 and figure 9: the same in the static world."""
    return _table("fedacs/table4", TABLE4, Static(unit="epochs"), scale, on_progress, part)


def table5(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Table 5 and figure 10: CIFAR-10 in the dynamic world, three degrees of skew (α)."""
    return _table("fedacs/table5", TABLE5, Dynamic(unit="epochs"), scale, on_progress, part)


fig6, fig9, fig10 = table1, table4, table5  # the figures show the accuracies of the same runs


def _table(
    item: str, tasks: Mapping[str, Task], world: System, scale: Scale, on_progress: Progress | None, part: str | None
) -> Outcome:
    wanted = {name: task for name, task in tasks.items() if part in (None, name)}
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    notes = ["accuracy in %, mean ± standard error over seeds; steps are calibrated (I.2), T counts epochs"]
    for name, task in wanted.items():
        try:
            data = load_samples(task.data, scale, task.sizes[scale])
        except BadInput as missing:
            claims.append(Claim.not_run(f"{name}: FedACS is the most accurate and the fastest", missing))
            continue
        size = task.sizes[scale]
        experiment = Experiment(
            method=METHODS["fedacs"],
            data=data,
            partition=task.partition,
            model=task.model,
            system=world,
            rounds=size.rounds,
            lr=task.lr,
            batch_size=size.batch,
            calibrate=True,
        )
        experiments = {n: replace(experiment, method=method) for n, method in METHODS.items()}
        trajectories = run_seeds(run_and_measure, experiments, size.seeds, on_progress)
        threshold = size.threshold or task.threshold
        rows += _rows(name, task, trajectories, threshold)
        claims += _claims(name, trajectories, threshold, scale)
        notes.append(
            f"{name}: {len(data.x)} training images of {data.shape[1]}×{data.shape[2]}, batch {size.batch}, "
            f"{size.rounds} rounds, {size.seeds} seeds; time to {threshold:.0%} (paper: {task.threshold:.0%})"
        )
    return Outcome(item_path(item, part), scale, rows, claims, notes)


def _rows(
    task_name: str, task: Task, trajectories: Mapping[str, list[Trajectory]], threshold: float
) -> list[dict[str, Any]]:
    reported = dict(zip(NAMES, task.reported, strict=True))
    fedacs = mean([t.seconds_to(threshold) for t in trajectories["fedacs"]])
    rows = []
    for name, runs in trajectories.items():
        paper_rounds, paper_time = reported.get(name, NEVER)
        rows.append(
            {
                "data": task_name,
                "method": name,
                "last 5": percent([t.last(5) for t in runs]),
                f"last {TAIL}": percent([t.last(TAIL) for t in runs]),
                "averaged": percent([t.averaged for t in runs]),
                "rounds": format_rounds(mean([t.rounds_to(threshold) for t in runs])),
                "paper": format_rounds(paper_rounds),
                "time": format_factor(mean([t.seconds_to(threshold) for t in runs]) / fedacs),
                "paper time": format_factor(paper_time),
                "local steps": int(np.mean([t.steps_done for t in runs])),
            }
            | saturation(runs)
        )
    return rows


def saturation(runs: Sequence[Trajectory]) -> dict[str, str]:
    """Return the mean steps and displacements of the first and the second half of the clients."""
    answers, steps, reach = np.sum([(t.answers, t.steps, t.reach) for t in runs], axis=0).reshape(3, 2, -1).sum(axis=2)
    with np.errstate(invalid="ignore"):
        (slow, fast), (near, far) = steps / answers, reach / answers
    return {"steps, halves": f"{slow:.1f}/{fast:.1f}", "reach, halves": f"{near:.2f}/{far:.2f}"}


def format_rounds(value: float) -> str:
    """Return a number of rounds, or a dash if it was not reached in every run."""
    return f"{value:.0f}" if np.isfinite(value) else "—"


def format_factor(value: float) -> str:
    """Return a factor, or a dash."""
    return f"{value:.2f}×" if np.isfinite(value) else "—"


def _claims(name: str, trajectories: Mapping[str, list[Trajectory]], threshold: float, scale: Scale) -> list[Claim]:
    measures: dict[str, Callable[[Trajectory], float]] = {
        "accuracy of the last five rounds (the paper's measure)": lambda t: t.last(5),
        f"mean accuracy of the last {TAIL} rounds": lambda t: t.last(TAIL),
        f"accuracy of the mean of the last {TAIL} models": lambda t: t.averaged,
    }
    claims = [
        _judge_lead(
            f"{name}: FedACS has the highest {text}",
            {n: np.array([f(t) for t in trajectories[n]]) for n in NAMES},
            scale,
        )
        for text, f in measures.items()
    ]
    rounds = {n: mean([t.rounds_to(threshold) for t in trajectories[n]]) for n in NAMES}
    evidence = ", ".join(f"{n} {format_rounds(r)}" for n, r in rounds.items())
    text = f"{name}: FedACS needs the fewest rounds to {threshold:.0%}"
    if scale == "smoke":
        return [*claims, Claim.not_run(text, "too few rounds")]
    first = np.isfinite(rounds["fedacs"]) and rounds["fedacs"] <= np.nanmin(list(rounds.values()))
    return [*claims, Claim.judge(text, bool(first), evidence)]


def _judge_lead(text: str, scores: Mapping[str, Array], scale: Scale) -> Claim:
    """Judge whether FedACS leads the best other by more than twice the error of their difference, seed by seed."""
    if scale == "smoke":
        return Claim.not_run(text)
    best = max((n for n in scores if n != "fedacs"), key=lambda n: scores[n].mean())
    lead, error = mean_and_error((scores["fedacs"] - scores[best]).tolist())
    evidence = f"FedACS leads {best} by {100 * lead:.1f} ± {100 * error:.1f} points"
    return Claim.judge(text, lead > 2 * error, evidence)
