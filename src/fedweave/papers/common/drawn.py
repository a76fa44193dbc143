"""What a figure shows, as plain numbers: means and bands over seeds, few enough to be stored beside the measures.

Every figure is drawn from these, so that one drawn from a stored outcome is the same as one drawn after the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedweave.core.records import Array
from fedweave.core.typed_json import Checked
from fedweave.papers.common.panels import Bar, Line, Panel
from fedweave.statistics import mean_over_seeds

POINTS = 3000  # of all lines of an item, so that a stored outcome has some tens of kilobytes
MOST, LEAST = 200, 40  # points of a line
DIGITS = 5  # significant ones; a figure shows three

Numbers = list[float | None]  # None is no number


class DrawnLine(Checked):
    """A curve: the mean over the seeds, and the lowest and the highest seed."""

    name: str
    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


class DrawnBar(Checked):
    """A bar: the mean over the seeds with its 95 % interval, and the published number."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    published: float | None


class DrawnPanel(Checked):
    """One frame of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: list[DrawnLine]
    bars: list[DrawnBar]
    log: str
    points: bool


def summarize(columns: Mapping[str, Sequence[Panel]]) -> dict[str, list[DrawnPanel]]:
    """Return what the panels of every column of an item show."""
    lines = sum(len(panel.lines) for panels in columns.values() for panel in panels)
    points = min(max(POINTS // max(lines, 1), LEAST), MOST)
    return {column: [_panel(panel, points) for panel in panels] for column, panels in columns.items()}


def _panel(panel: Panel, points: int) -> DrawnPanel:
    return DrawnPanel(
        title=panel.title,
        x_label=panel.x_label,
        y_label=panel.y_label,
        lines=[_line(line, points) for line in panel.lines],
        bars=[_bar(bar) for bar in panel.bars],
        log=panel.log,
        points=panel.points,
    )


def _line(line: Line, points: int) -> DrawnLine:
    chosen = np.unique(np.linspace(0, line.x.size - 1, min(points, line.x.size)).round().astype(int))
    y = line.y[:, chosen]
    low, high = y.min(0), y.max(0)
    return DrawnLine(
        name=line.name, x=_short(line.x[chosen]), mean=_short(y.mean(0)), low=_short(low), high=_short(high)
    )


def _bar(bar: Bar) -> DrawnBar:
    seen = bar.values[np.isfinite(bar.values)]
    spread = mean_over_seeds(seen) if seen.size else None
    ends = spread.interval if spread and seen.size > 1 else (np.nan, np.nan)
    mean, low, high = _short(np.array([spread.mean if spread else np.nan, *ends]))
    return DrawnBar(name=bar.name, mean=mean, low=low, high=high, published=bar.published)


def _short(values: Array) -> Numbers:
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in values]
