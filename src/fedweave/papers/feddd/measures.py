"""What FedDD measures: final accuracy, time to a target over FedAvg's (T2A), accuracy of rare classes, bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.panels import Line, Make, Panel, bars, curves
from fedweave.papers.common.record import Record, Records, end_of, last, reached
from fedweave.papers.common.study import Measure

LAST, TAIL = 10, 50  # last rounds: whose mean is the final accuracy, and whose changes are the jitter
SHARES = (0.9, 0.95)  # relative targets, of FedAvg's final accuracy
RARE = (0, 1, 2)  # section 6.7
READING = (
    f"final accuracy is the mean of the last {LAST} rounds; T2A the simulated time to an accuracy over FedAvg's, of "
    "targets that the text prints and of shares of FedAvg's final accuracy; behind FedDD the final accuracies' "
    f"difference; jitter the mean change of accuracy from round to round over the last {TAIL}; sent the share of the "
    "whole models' bytes that went up, messages as they are encoded."
)
final = last("accuracy", LAST)


def always(arm: str) -> Callable[[str], str]:
    """Return that all arms are measured against this one."""
    return lambda _: arm


def time_over(reference: str, target: float, share: bool = False, time: str = "clock") -> Measure:
    """Return the time to a target accuracy over that of the reference arm; ``share``: of the reference's final one.

    A reference that never arrives counts with the first time that it did not observe.
    """

    def at(record: Record, other: Record) -> float:
        return reached(target * final(other) if share else target, time=time)(record)

    def unit(other: Record) -> float:
        found = at(other, other)
        return found if np.isfinite(found) else end_of(time)(other)

    return Measure(
        lambda record, other: at(record, other) / unit(other),
        end=lambda record, other: end_of(time)(record) / unit(other),
        digits=3,
        against=always(reference),
    )


def sent(record: Record) -> float:
    """Return the uploaded share of the bytes of all clients' whole models."""
    whole = record.values["model"]["fleet_bytes"]
    return float(record.rounds["bytes_up"][-1] / (record.rounds["round"].size * whole))


def jitter(record: Record) -> float:
    """Return the mean absolute change of accuracy from round to round, over the last rounds."""
    return float(np.abs(np.diff(record.rounds["accuracy"][-TAIL:])).mean())


def early(record: Record) -> float:
    """Return the mean accuracy of the first quarter of the rounds."""
    accuracy = record.rounds["accuracy"]
    return float(accuracy[: max(accuracy.size // 4, 1)].mean())


def by_class(record: Record) -> Array:
    """Return the final accuracy of each class."""
    return np.nanmean(record.rounds["class_accuracy"][-LAST:], axis=0)


def owners_heard(record: Record) -> float:
    """Return the share of the owners of rare classes that answered at least once after the first round."""
    labels = np.asarray(record.values["labels"])[:, RARE]
    clients = record.clients
    answered = np.unique(clients["client"][(clients["round"] > 1) & (clients["received"] == 1)])
    return float(np.isin(np.flatnonzero(labels.any(1)), answered).mean())


FINAL = Measure(final, "%")
COST = {"round, s": Measure(lambda r: float(r.rounds["seconds"].mean()), ratio=True), "sent": Measure(sent, "%")}
JITTER = Measure(jitter, "%")
BEHIND = Measure(lambda record, ours: final(ours) - final(record), "%", against=always("feddd"))
CLASSES = {
    "rare classes": Measure(lambda r: float(by_class(r)[list(RARE)].mean()), "%"),
    "common classes": Measure(lambda r: float(np.delete(by_class(r), RARE).mean()), "%"),
    **{f"class {c}": Measure(lambda r, c=c: float(by_class(r)[c]), "%") for c in RARE},
    "worst class": Measure(lambda r: float(by_class(r).min()), "%"),
    "best class": Measure(lambda r: float(by_class(r).max()), "%"),
    "worst rare class": Measure(lambda r: float(by_class(r)[list(RARE)].min()), "%"),
    "best rare class": Measure(lambda r: float(by_class(r)[list(RARE)].max()), "%"),
    "owners heard": Measure(owners_heard, "%"),
}


def times_to(targets: Sequence[float]) -> dict[str, Measure]:
    """Return T2A of absolute targets and of shares of FedAvg's final accuracy."""
    absolute = {f"T2A, {100 * t:.0f} %": time_over("fedavg", t) for t in targets}
    return absolute | {f"T2A, {s:g} FedAvg": time_over("fedavg", s, share=True) for s in SHARES}


def shown_times(targets: Sequence[float], published: Mapping[str, Mapping[str, Any]]) -> tuple[Make, ...]:
    """Return a panel of bars for every target: figures 7 and 10."""
    return tuple(
        bars(name, measure.of, "Time over FedAvg's", published.get(name), against=measure.against)
        for name, measure in times_to(targets).items()
    )


def accuracy_of_classes(records: Records) -> Panel:
    """Draw the accuracy of each class: figure 21."""
    lines = []
    for arm, runs in records.items():
        rows = np.array([by_class(record) for record in runs])
        lines.append(Line(arm, np.arange(rows.shape[1]), rows))
    return Panel("Accuracy of each class (0, 1, 2 are rare)", "Class", "Test accuracy", lines, points=True)


OVER_ROUNDS = curves("Accuracy over rounds", "accuracy")
OVER_TIME = curves("Accuracy over time", "accuracy", "clock")
