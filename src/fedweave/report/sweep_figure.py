"""The metric of a sweep against one of its fields, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from fedweave.core.records import Array
from fedweave.report.curves import Band
from fedweave.report.figures import limits, metric_title, told_apart
from fedweave.report.summary import Row
from fedweave.report.svg import Ink, canvas, simplify, to_svg
from fedweave.runs.grid import label_text

DECADES = 20  # times the smallest value: from there on the axis is logarithmic


def against(rows: Sequence[Row], path: str, name: str, colors: Mapping[str, Ink], on: str, key: str) -> str | None:
    """Return the metric against the values of a field, each at its best point over the other fields."""
    having = [row for row in rows if path in row["point"]]
    lines = {m: found for m in colors if (found := best_by_value([r for r in having if r["method"] == m], path))}
    if not lines:
        return None
    labels = list(dict.fromkeys(row["point"][path] for row in having))
    title, scale = metric_title(having[0]["metric"], on)
    with canvas(4.7, 3.1) as figure:
        axes = simplify(figure.add_subplot(), grid="both")
        axes.set_title(title)
        axes.set_xlabel(name)
        along = _scale_axis(axes, labels)
        drawn = dict[str, Band]()
        for n, (method, found) in enumerate(lines.items()):
            aside = (n - (len(lines) - 1) / 2) * min(0.08, 0.6 / len(lines)) if along is None else 0.0
            places = [labels.index(v) + aside if along is None else along(v) for v in found]
            drawn[method] = _band(np.array(places, float), list(found.values()), scale)
        for method, ink in told_apart(drawn, colors).items():
            best = [i for i, row in enumerate(lines[method].values()) if row["best"]]
            _draw(axes, drawn[method], best, ink, joined=_numbers(labels))
        ends = [row[end] for found in lines.values() for row in found.values() for end in ("mean", "low", "high")]
        limits(axes, scale * np.array([end for end in ends if end is not None]), having[0]["metric"])
        return to_svg(figure, key, f"{title.split(',')[0]} against {path}: {', '.join(lines)}")


def best_by_value(rows: Sequence[Row], path: str) -> dict[Any, Row]:
    """Return for each value of a field the row with the best mean; those that diverged are left out."""
    found: dict[Any, Row] = {}
    for row in rows:
        if row["mean"] is None:
            continue
        value, sign = row["point"][path], 1 if row["higher_is_better"] else -1
        if value not in found or sign * row["mean"] > sign * found[value]["mean"]:
            found[value] = row
    return dict(sorted(found.items())) if _numbers(list(found)) else found


def _band(x: Array, rows: Sequence[Row], scale: float) -> Band:
    """Return the means of rows at these places, with their intervals as far as they are known."""
    ends = [[row["mean"] if row[end] is None else row[end] for row in rows] for end in ("mean", "low", "high")]
    return Band(x, *(scale * np.array(values) for values in ends), tails=())


def _draw(axes: Axes, b: Band, best: Sequence[int], ink: Ink, joined: bool) -> None:
    """Draw one method: a line with a band where the field has numbers, else points with bars."""
    x, mean, low, high = b.x, b.mean, b.low, b.high
    face = "white" if ink.dash else ink.color  # hollow where a colour is used again
    look: dict[str, Any] = {"color": ink.color, "markerfacecolor": face, "marker": "o", "markersize": 4}
    if joined and x.size > 1:
        axes.fill_between(x, low, high, color=ink.color, alpha=0.16, linewidth=0)
        axes.plot(x, mean, linewidth=1.7, linestyle=ink.line, **look)
    else:
        axes.vlines(x, low, high, color=ink.color, linewidth=1.4, alpha=0.6)
        axes.plot(x, mean, linestyle="none", **look)
    axes.plot(
        x[best], mean[best], "o", markersize=10, markerfacecolor="none", markeredgecolor=ink.color, linestyle="none"
    )


def _scale_axis(axes: Axes, labels: Sequence[Any]) -> Any:
    """Set up the horizontal axis; return where a number lies on it, None where values stand side by side."""
    numbers = sorted(v for v in labels if _numbers([v]))
    positive = [v for v in numbers if v > 0]
    wide = bool(positive) and positive[-1] >= DECADES * positive[0]
    if len(numbers) < len(labels) or (wide and numbers[0] <= 0):
        texts = [text if len(text := label_text(label)) <= 16 else f"{text[:15]}…" for label in labels]
        axes.set_xticks(range(len(labels)), texts)
        if sum(map(len, texts)) > 48:
            axes.tick_params(axis="x", rotation=30)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        return None
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    if len(numbers) <= 8:  # those that were tried
        axes.set_xticks(numbers, [f"{v:g}" for v in numbers])
    else:
        axes.xaxis.set_major_formatter("{x:g}")  # the usual one is written in mathtext, which is off
    return float


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
