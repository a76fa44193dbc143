"""Draw the panels of a figure as inline SVG, in the style of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fedweave.core.records import Array
from fedweave.papers.common.drawn import DrawnBar, DrawnLine, DrawnPanel, Numbers
from fedweave.report.svg import INK, MUTED, Ink, canvas, inks, simplify, to_svg

SHARES = ("accuracy", "share", "success")  # shown in per cent


def colors_of(panels: Sequence[DrawnPanel]) -> dict[str, Ink]:
    """Return one colour and dash for every method of a figure, the same in all its panels."""
    return inks(line.name for panel in panels for line in panel.lines)


def draw(panel: DrawnPanel, colors: Mapping[str, Ink], key: str) -> str:
    """Return a panel as an inline SVG; an empty one says so in its frame."""
    scale = 100.0 if any(word in panel.y_label.lower() for word in SHARES) and "%" not in panel.y_label else 1.0
    names = ", ".join(dict.fromkeys(part.name for part in (*panel.lines, *panel.bars) if part.name))
    with canvas(4.7, 3.1 if not panel.bars else 3.3) as figure:
        axes = simplify(figure.add_subplot(), grid="both" if panel.lines else "y")
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label + (", %" if scale == 100 else ""))
        for line in panel.lines:
            _draw_line(axes, line, colors[line.name], scale, panel.points)
        if panel.bars:
            _draw_bars(axes, panel.bars, scale)
        for axis, set_scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            if axis.axis_name in panel.log:
                set_scale("log")
                axis.set_major_formatter(_plain_number)
                axis.set_minor_formatter(_plain_number if _narrow(axis) else NullFormatter())
        if panel.x_label == "Round":
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return to_svg(figure, key, f"{panel.title}: {panel.y_label}, {names}")


_plain_number = FuncFormatter(lambda value, _: f"{value:g}")


def _narrow(axis: Axis) -> bool:
    """Return whether a logarithmic axis spans less than a decade, so that powers of ten alone would not label it."""
    low, high = axis.get_view_interval()
    return bool(high < 10 * low)


def _draw_line(axes: Axes, line: DrawnLine, ink: Ink, scale: float, points: bool) -> None:
    """Draw the mean over the seeds, and the range of the seeds as a band."""
    if not line.x:
        return
    x, mean, low, high = (_array(values) for values in (line.x, line.mean, line.low, line.high))
    marker = {"marker": "o", "markersize": 4} if points else {}
    axes.plot(x, scale * mean, color=ink.color, linestyle=ink.line, linewidth=1.6, **marker)
    if (low < high).any():
        axes.fill_between(x, scale * low, scale * high, color=ink.color, alpha=0.14, linewidth=0)


def _array(values: Numbers) -> Array:
    return np.array([np.nan if value is None else value for value in values])


def _draw_bars(axes: Axes, bars: Sequence[DrawnBar], scale: float) -> None:
    """Draw means with their t intervals, and published numbers as diamonds; say where there is no number."""
    for i, bar in enumerate(bars):
        if bar.mean is None:
            axes.text(i, 0.02, "none", transform=axes.get_xaxis_transform(), ha="center", color=MUTED, fontsize=7)
        else:
            axes.bar(i, scale * bar.mean, width=0.62, color="#7fb0d8", linewidth=0)
            if bar.low is not None and bar.high is not None:
                axes.plot([i, i], [scale * bar.low, scale * bar.high], color=INK, linewidth=1.1)
        if bar.published is not None:
            axes.plot(i, scale * bar.published, marker="D", color="#d55e00", markersize=5, linestyle="none")
    turn = 35 if sum(len(bar.name) for bar in bars) > 40 else 0
    axes.set_xticks(range(len(bars)), [bar.name for bar in bars], rotation=turn, ha="right" if turn else "center")
