"""FedACS on images: tables 1, 4 and 5 and figures 6, 9 and 10, which show the same runs, and effort that is measured.

Section 6 and appendices I.2 and I.5.1 say that step lengths are calibrated in all of them: the column "calibrated" is
the paper's own setting, one learning rate for all methods is shown beside it. Tables 2 and 3 are no experiments: see
``assumptions`` for table 2; table 3 has the networks and parameters that are used here. Figures 1, 2, 3 and 5 are
illustrations, figures 4, 7 and 8 are in ``quadratics``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from fedweave import methods
from fedweave.aggregate import Consistent
from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.partition import Dirichlet, OneClass, Partition
from fedweave.method import Method
from fedweave.papers.common.panels import Bar, Make, Panel, bars, curves
from fedweave.papers.common.record import Record, end_of, last, reached
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.common.study import Measure, Records, Study
from fedweave.papers.fedacs.quadratics import AS_FEDAVG, METHODS
from fedweave.runs.experiment import Experiment
from fedweave.sample import Weighted
from fedweave.statistics import censored
from fedweave.system import Dynamic, Static

CLIENTS, PER_ROUND, TAIL = 20, 6, 50
TEN: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}  # where the primary claim is decided
FIVE: Mapping[Scale, int] = {"smoke": 2, "laptop": 5, "paper": 5}
ROUNDS: Mapping[Scale, int] = {"smoke": 3, "laptop": 200, "paper": 200}


class Parameters(NamedTuple):
    """A column of table 3, and sizes: training images and batch, as published and on a laptop, scaled together.

    Loss, learning rate and batch are printed in merged columns; CIFAR-10 is taken to share CINIC-10's.
    """

    network: str
    lr: float
    sizes: Mapping[Scale, tuple[int, int]]


SMOKE = (200, 10)
PARAMETERS = {
    "mnist": Parameters(
        "cnn_fedacs_mnist", 0.02, {"smoke": SMOKE, "laptop": (6_000, 50), "paper": (60_000, 512)}
    ),
    "cifar10": Parameters(
        "cnn_fedacs_cifar10", 0.03, {"smoke": SMOKE, "laptop": (10_000, 205), "paper": (50_000, 1024)}
    ),
    "cinic10": Parameters(
        "cnn_fedacs_cinic10", 0.03, {"smoke": SMOKE, "laptop": (18_000, 205), "paper": (90_000, 1024)}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Two columns of a table: setting, target accuracy, and what the paper reports, in the order of METHODS."""

    data: str
    partition: Partition
    world: System
    target: float
    rounds: Sequence[float]  # to the target; nan: a dash, never
    seconds: Sequence[float]  # of all devices, to the target; its ratios differ from some that are printed

    def experiment(self, scale: Scale) -> Experiment:
        """Return the experiment of FedACS, with one learning rate for all methods."""
        p = PARAMETERS[self.data]
        return Experiment(
            method=METHODS["fedacs"],
            data=samples(self.data, scale),
            partition=self.partition,
            model=p.network if scale != "smoke" else "mlp",
            system=self.world,
            rounds=ROUNDS[scale],
            lr=p.lr,
            batch_size=p.sizes[scale][1],
        )

    def arms(self, scale: Scale, contest: Mapping[str, Method] = METHODS) -> Mapping[str, Experiment]:
        """Return one experiment for every method."""
        base = self.experiment(scale)
        return {name: replace(base, method=method) for name, method in contest.items()}

    def settings(self, scale: Scale) -> Mapping[str, Any]:
        """Return the settings that are printed side by side."""
        p, (images, batch) = PARAMETERS[self.data], PARAMETERS[self.data].sizes[scale]
        return {
            "data": self.data if scale != "smoke" else f"{self.data}, averaged over 2 × 2 pixels",
            "training images": images,
            "clients": CLIENTS,
            "participation": f"{PER_ROUND / CLIENTS:.0%}",
            "client sizes": "equal" if self.data == "mnist" else str(self.partition),
            "network": p.network if scale != "smoke" else "mlp",
            "rounds": ROUNDS[scale],
            "batch": batch,
            "steps an epoch": -(-images // CLIENTS // batch),
            "learning rate": p.lr,
            "tuning": "none; step lengths calibrated (I.2)",
        }


@cache
def samples(data: str, scale: Scale) -> Dataset:
    """Return the data; on a laptop a part of it, with 2,000 test images."""
    found, (images, _) = load_data(data, scale), PARAMETERS[data].sizes[scale]
    if scale == "paper":
        return found
    return reduce_data(found, images, 2000) if scale == "laptop" else reduce_data(found, images, 100, pool=2)


NEVER = np.nan
MIXED, SORTED = OneClass(CLIENTS), OneClass(CLIENTS, "sorted")
DYNAMIC, STATIC = Dynamic(unit="epochs"), Static(unit="epochs")  # on images T counts epochs
TABLE1 = {
    "mnist": Task(
        "mnist", MIXED, DYNAMIC, 0.70,
        (68, 93, 84, 115, 99, NEVER, 72), (3548.6, 5470.4, 4884.4, 7289.9, 6043.4, NEVER, 4391.9),
    ),
    "cifar10": Task(
        "cifar10", Dirichlet(CLIENTS, 0.1), DYNAMIC, 0.40,
        (100, 143, 130, 165, 161, NEVER, 80), (6928.9, 12482.0, 7917.0, 13479.8, 13314.8, NEVER, 5095.3),
    ),
    "cinic10": Task(
        "cinic10", Dirichlet(CLIENTS, 0.1), DYNAMIC, 0.35,
        (55, 74, 67, 104, 100, NEVER, 65), (11452.3, 14550.0, 13256.8, 22200.5, 21802.2, NEVER, 14248.9),
    ),
}  # fmt: skip
TABLE4 = {
    "mnist": Task(
        "mnist", MIXED, STATIC, 0.70,
        (64, 92, 68, 92, 103, NEVER, NEVER), (4307.7, 6458.7, 5039.2, 6846.9, 7893.4, NEVER, NEVER),
    ),
    "cifar10": Task(
        "cifar10", Dirichlet(CLIENTS, 0.1), STATIC, 0.40,
        (68, 112, 101, 148, 117, NEVER, 72), (4706.3, 8609.0, 8221.3, 11862.5, 8536.8, NEVER, 6307.7),
    ),
    "cinic10": Task(
        "cinic10", Dirichlet(CLIENTS, 0.1), STATIC, 0.35,
        (36, 57, 55, 73, 83, NEVER, 47), (12837.2, 19999.3, 18334.6, 25479.9, 29968.5, NEVER, 13953.2),
    ),
}  # fmt: skip
TABLE5 = {
    "0.05": Task(
        "cifar10", Dirichlet(CLIENTS, 0.05), DYNAMIC, 0.35,
        (107, 149, 142, NEVER, NEVER, NEVER, 110), (6186.2, 9591.7, 8982.4, NEVER, NEVER, NEVER, 6310.7),
    ),
    "0.2": Task(
        "cifar10", Dirichlet(CLIENTS, 0.2), DYNAMIC, 0.35,
        (51, 88, 88, 156, 125, NEVER, 54), (4747.3, 8930.0, 8873.4, 17728.6, 13690.4, NEVER, 5305.3),
    ),
    "0.35": Task(
        "cifar10", Dirichlet(CLIENTS, 0.35), DYNAMIC, 0.40,
        (36, 88, 90, 159, 94, NEVER, 32), (3391.5, 8918.3, 9293.9, 17733.9, 9901.3, NEVER, 3100.7),
    ),
}  # fmt: skip
# Whose classes: the paper deals one class to a client and does not say which. "different": neighbours own the same
# class, so the slow and the fast half have classes of their own, and nobody makes up for one that is lost.
OTHER_DEAL = {
    "table1/mnist-different": replace(TABLE1["mnist"], partition=SORTED),
    "table4/mnist-different": replace(TABLE4["mnist"], partition=SORTED),
}


def device_seconds(target: float) -> Callable[[Record], float]:
    """Return a measure: what all devices had computed when the target was first reached; nan if it never was."""

    def of(record: Record) -> float:
        hit = np.flatnonzero(record.rounds["accuracy"] >= target)
        return float(record.rounds["device_seconds"][: hit[0] + 1].sum()) if hit.size else np.nan

    return of


def all_device_seconds(record: Record) -> float:
    """Return what all devices computed, and one mean round: the first time that was not observed."""
    seconds = record.rounds["device_seconds"]
    return float(seconds.sum() * (1 + 1 / seconds.size))


def jitter(record: Record) -> float:
    """Return the mean absolute change of accuracy from round to round, over the last rounds."""
    return float(np.abs(np.diff(record.rounds["accuracy"][-TAIL:])).mean())


def measures(target: float) -> dict[str, Measure]:
    """Return the paper's measures (I.3.4), how restless a run is, and how much work its clients were asked for."""
    rounds = reached(target)
    return {
        "accuracy, last 5": Measure(last("accuracy", 5), "%"),
        f"accuracy, last {TAIL}": Measure(last("accuracy", TAIL), "%"),
        f"rounds to {target:.0%}": Measure(rounds, end=end_of(), digits=3),
        f"device seconds to {target:.0%}": Measure(device_seconds(target), end=all_device_seconds),
        f"never reaches {target:.0%}": Measure(lambda record: float(np.isnan(rounds(record))), "%"),
        "jitter": Measure(jitter, "%"),
        "steps of a client": Measure(lambda record: float(record.clients["steps"].mean()), ratio=True, digits=3),
    }


def ratios(title: str, measure: Measure, published: Mapping[str, float]) -> Make:
    """Return a panel of a time over FedACS's, seed by seed; a run that never arrived counts with its end."""

    def make(records: Records) -> Panel:
        times = {
            arm: np.array([censored([measure.of(r)], measure.end(r) if measure.end else np.nan)[0] for r in runs])
            for arm, runs in records.items()
        }
        marks = {arm: v / published["fedacs"] for arm, v in published.items() if np.isfinite(v)}
        found = [Bar(arm, t / times["fedacs"], marks.get(arm)) for arm, t in times.items()]
        return Panel(title, "", "Times FedACS's", bars=found)

    return make


ACCURACY = curves("Test accuracy, mean of ten rounds", "accuracy", smooth=10)
SAME_STEPS = "FedAvg, FedNova, FedAU and OS have the same learning rate in both columns, and so the same runs."


def _study(item: str, task: Task, shows: str, seeds: Mapping[Scale, int], figure: bool, notes: Sequence[str]) -> Study:
    target, found = f"{task.target:.0%}", measures(task.target)
    rounds, seconds = (dict(zip(METHODS, column, strict=True)) for column in (task.rounds, task.seconds))
    times = (
        ratios(f"Rounds to {target}", found[f"rounds to {target}"], rounds),
        ratios(f"Device time to {target}", found[f"device seconds to {target}"], seconds),
    )
    relative = ", ".join(f"{n} {s / seconds['fedacs']:.2f}" for n, s in seconds.items() if np.isfinite(s))
    final = bars("Last five rounds", last("accuracy", 5), "Test accuracy")
    return Study(
        name=f"fedacs/{item}",
        shows=shows,
        arms=task.arms,
        seeds=seeds,
        measures=found,
        panels=(ACCURACY, final) if figure else times,
        settings=task.settings,
        published={
            f"rounds to {target}": {n: "never" if np.isnan(v) else v for n, v in rounds.items()},
            f"device seconds to {target}": {n: "never" if np.isnan(v) else v for n, v in seconds.items()},
        },
        columns=("calibrated",),
        as_fedavg=AS_FEDAVG,
        notes=(
            "The paper calibrates step lengths (section 6, I.2); one learning rate for all is ours. " + SAME_STEPS,
            f"Device seconds: 0.1 a step here, a GPU's in the paper. By its seconds, in units of FedACS's: {relative}.",
            *notes,
        ),
    )


ERRATA = {  # where printed factors do not follow from the printed seconds
    "table1/mnist": "Printed factors of device time: FedAvg 1.38, c-a-FedAvg 1.51.",
    "table4/cifar10": "Printed factor of c-a-FedAvg's device time: 1.77.",
    "table5/0.2": "Printed factor of OS's device time: 1.18.",
    "table5/0.35": "Printed factor of OS's device time: 0.94.",
}
TABLES = {
    ("table1", "fig6", "dynamic world"): TABLE1,
    ("table4", "fig9", "static world"): TABLE4,
    ("table5", "fig10", "CIFAR-10, dynamic world, Dirichlet α"): TABLE5,
}


def _studies() -> list[Study]:
    found = []
    for (table, figure, where), tasks in TABLES.items():
        for name, task in tasks.items():
            seeds = TEN if (table, name) == ("table1", "mnist") else FIVE
            notes = [ERRATA[f"{table}/{name}"]] if f"{table}/{name}" in ERRATA else []
            told = f"rounds and device time to {task.target:.0%}, seven methods: {name}, {where}"
            found.append(_study(f"{table}/{name}", task, told, seeds, False, notes))
            found.append(_study(f"{figure}/{name}", task, f"test accuracy: {name}, {where}", seeds, True, notes))
    for item, task in OTHER_DEAL.items():
        told = f"the same as {item.removesuffix('-different')}, but slow and fast half own different classes"
        found.append(_study(item, task, told, FIVE, False, ()))
    return found


EFFORT: dict[str, Method] = {
    "fedavg": METHODS["fedavg"],
    "fedacs": METHODS["fedacs"],
    "fedacs_measured": methods.fedacs_measured(PER_ROUND),
    "consistent": Method(Weighted(PER_ROUND), aggregator=Consistent()),
    "consistent, measured": Method(Weighted(PER_ROUND), aggregator=Consistent(effort="measured")),
}


def _classes(begin: int, end: int) -> Measure:
    """Return the accuracy on some classes, over the last rounds."""
    return Measure(lambda record: float(np.nanmean(record.rounds["class_accuracy"][-TAIL:, begin:end])), "%")


def _effort(deal: str, task: Task) -> Study:
    return Study(
        name=f"fedacs/effort/{deal}",
        shows=f"beyond the paper: effort counted in steps or measured by displacement; halves own {deal} classes",
        arms=partial(task.arms, contest=EFFORT),
        seeds=FIVE,
        measures={**measures(task.target), "classes 0 to 4": _classes(0, 5), "classes 5 to 9": _classes(5, 10)},
        panels=(ACCURACY, bars(f"Last {TAIL} rounds", last("accuracy", TAIL), "Test accuracy")),
        settings=task.settings,
        columns=("calibrated",),
        as_fedavg=("fedavg",),
        notes=("MNIST in the dynamic world of table 1. Local training saturates: ten times the steps go less far.",),
    )


STUDIES: tuple[Study, ...] = (
    *_studies(),
    _effort("same", TABLE1["mnist"]),
    _effort("different", OTHER_DEAL["table1/mnist-different"]),
)
