"""FedACS on images: tables 1, 4 and 5 and figures 6, 9 and 10, which show the same runs, and effort that is measured.

Section 6 and appendices I.2 and I.5.1 say that step lengths are calibrated in all of them: the column "calibrated" is
the paper's own setting, one learning rate for all methods is shown beside it. Tables 2 and 3 are no experiments: see
``arithmetic`` for table 2; table 3 has the networks and parameters that are used here. Figures 1, 2, 3 and 5 are
illustrations, figures 4, 7 and 8 are in ``quadratics``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from fedweave import methods
from fedweave.aggregate import Consistent
from fedweave.method import Method
from fedweave.papers.common.panels import Bar, Make, Panel, bars, curves
from fedweave.papers.common.record import Record, end_of, last, reached
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Records, Study
from fedweave.papers.fedacs.quadratics import AS_FEDAVG, METHODS
from fedweave.papers.fedacs.setup import OTHER_DEAL, PER_ROUND, TABLE1, TABLE4, TABLE5, Task
from fedweave.sample import Weighted
from fedweave.statistics import censored

TAIL = 50  # last rounds
TEN: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}  # where the primary claim is decided
FIVE: Mapping[Scale, int] = {"smoke": 2, "laptop": 5, "paper": 5}


def device_seconds(target: float) -> Callable[[Record], float]:
    """Return a measure: what all devices had computed when the target was first reached; nan if it never was."""

    def of(record: Record) -> float:
        hit = np.flatnonzero(record.rounds["accuracy"] >= target)
        return float(record.rounds["device_seconds"][: hit[0] + 1].sum()) if hit.size else np.nan

    return of


def most_device_seconds(record: Record) -> float:
    """Return the device time of R + 1 rounds in which all asked clients take the most steps: later than any run ends.

    A run that never arrived counts with it. Its own total would not do: FedACS's rounds are the cheapest, so that of
    two methods that never arrive it would seem to be the faster one.
    """
    seconds, steps = record.rounds["device_seconds"], record.clients["steps"]
    return float((seconds.size + 1) * PER_ROUND * steps.max() * seconds.sum() / steps.sum())


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
        f"device seconds to {target:.0%}": Measure(device_seconds(target), end=most_device_seconds),
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
    ("table1", "fig6", "dynamic world,"): TABLE1,
    ("table4", "fig9", "static world,"): TABLE4,
    ("table5", "fig10", "CIFAR-10, dynamic world, α ="): TABLE5,
}
LABELS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cinic10": "CINIC-10"}
DEAL = "The paper does not say who owns which class. Here slow and fast half own the same, in {}-different others."


def _studies() -> list[Study]:
    found = []
    for (table, figure, where), tasks in TABLES.items():
        for name, task in tasks.items():
            seeds = TEN if (table, name) == ("table1", "mnist") else FIVE
            notes = [ERRATA[f"{table}/{name}"]] if f"{table}/{name}" in ERRATA else []
            notes += [DEAL.format(f"fedacs/{table}/mnist")] if name == "mnist" else []
            setting = f"{where} {LABELS.get(name, name)}"
            shows = f"rounds and device time to {task.target:.0%}, seven methods: {setting}"
            found.append(_study(f"{table}/{name}", task, shows, seeds, False, notes))
            found.append(
                _study(f"{figure}/{name}", task, f"test accuracy of seven methods: {setting}", seeds, True, notes)
            )
    for item, task in OTHER_DEAL.items():
        shows = f"the same as {item.removesuffix('-different')}, but slow and fast half own different classes"
        found.append(_study(item, task, shows, FIVE, False, ()))
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
