"""What is drawn: panels of curves or bars over seeds, with the paper's own axes and published numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.record import Record, Records, beside

LABELS = {
    "round": "Round",
    "clock": "Simulated time, s",
    "accuracy": "Test accuracy",
    "loss": "Test loss",
    "train_loss": "Train loss",
    "objective": "Train loss",
    "diversity": "Gradient diversity",
    "bytes_up": "Uploaded bytes",
}


@dataclass(frozen=True)
class Line:
    """One curve: its points, and one row of values per seed."""

    name: str
    x: Array
    y: Array  # (seeds, points)


@dataclass(frozen=True)
class Bar:
    """One bar: one value per seed, and the published one."""

    name: str
    values: Array
    published: float | None = None
    group: str = ""


@dataclass(frozen=True)
class Panel:
    """One frame of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()
    log: Literal["", "x", "y", "xy"] = ""
    points: bool = False  # draw markers: few points, each of a setting of its own


Make = Callable[[Records], Panel]


def curves(
    title: str, y: str, x: str = "round", y_label: str = "", log: Literal["", "x", "y", "xy"] = "", smooth: int = 1
) -> Make:
    """Return a panel of a column of all arms over another; over time, seeds are brought to common times.

    ``smooth`` averages over so many rounds, as many papers do without saying.
    """

    def make(records: Records) -> Panel:
        lines = [Line(arm, *_common(runs, x, y, smooth)) for arm, runs in records.items() if y in runs[0].rounds]
        return Panel(title, LABELS.get(x, x), y_label or LABELS.get(y, y), lines, log=log)

    return make


def _common(runs: Sequence[Record], x: str, y: str, smooth: int) -> tuple[Array, Array]:
    """Return common points and the values of every run there: the last one evaluated before."""
    points = [np.asarray(r.rounds[x], float) for r in runs]
    values = [smoothed(np.asarray(r.rounds[y], float), smooth) for r in runs]
    seen = [np.isfinite(v) for v in values]
    points, values = ([a[s] for a, s in zip(many, seen, strict=True)] for many in (points, values))
    if any(not p.size for p in points):
        return np.empty(0), np.empty((len(runs), 0))
    if all(np.array_equal(p, points[0]) for p in points):
        return points[0], np.array(values)
    grid = np.linspace(max(p[0] for p in points), min(p[-1] for p in points), 200)
    rows = [v[np.searchsorted(p, grid, side="right") - 1] for p, v in zip(points, values, strict=True)]
    return grid, np.array(rows)


def smoothed(values: Array, width: int) -> Array:
    """Return the mean over the last ``width`` values, or as many as there are."""
    if width == 1:
        return values
    total = np.cumsum(np.concatenate([[0.0], values]))
    first = np.maximum(np.arange(values.size) + 1 - width, 0)
    return (total[1:] - total[first]) / (np.arange(values.size) + 1 - first)


def bars(
    title: str,
    of: Callable[..., float],
    y_label: str,
    published: Mapping[str, Any] | None = None,
    log: Literal["", "y"] = "",
    against: Callable[[str], str] | None = None,
) -> Make:
    """Return a panel with a bar for every arm, and the published number as a mark; ``against`` as in a measure."""

    def make(records: Records) -> Panel:
        given = {arm: v for arm, v in (published or {}).items() if isinstance(v, int | float)}
        numbers = {arm: [of(*runs) for runs in beside(records, arm, against)] for arm in records}
        found = [Bar(arm, np.array(values, float), given.get(arm)) for arm, values in numbers.items()]
        return Panel(title, "", y_label, bars=found, log=log)

    return make


def along(title: str, x_label: str, xs: Mapping[str, float], of: Callable[[Record], float], y_label: str) -> Make:
    """Return a panel of a measure along the arms' own values, such as α or the budget, as one line."""

    def make(records: Records) -> Panel:
        arms = [arm for arm in xs if arm in records]
        values = np.array([[of(r) for r in records[arm]] for arm in arms], float).T
        return Panel(title, x_label, y_label, [Line("", np.array([xs[a] for a in arms]), values)], points=True)

    return make
