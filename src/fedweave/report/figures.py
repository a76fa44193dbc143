"""The figures of the report as inline SVG: curves, participation, scores of clients, labels, accuracy per class."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from fedweave.report import units
from fedweave.report.clients import Participation, Ranked
from fedweave.report.curves import TOTAL_BYTES, Band, band, coincide, curve
from fedweave.report.summary import Groups
from fedweave.report.svg import INK, MUTED, Ink, canvas, simplify, to_svg
from fedweave.round.measures import LABELS as MEASURES
from fedweave.runs.results import Array

_NO_DATE: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
MANY_CLIENTS = 60
MANY_DOTS = 150
_BLUES = ("#f3f6fa", "#7fb0d8", "#0b4a82")
_METRICS = {
    "accuracy": ("Test accuracy, %", 100.0),
    "loss": ("Test loss", 1.0),
    "objective": ("Training loss over all clients", 1.0),
    **{name: (label, 1.0) for name, label in MEASURES.items()},
}
_UNITS = {
    "round": ((1.0, "round"),),
    "clock": ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")),
    "bytes_up": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
}
_UNITS[TOTAL_BYTES] = _UNITS["bytes_up"]
_ALONG = {
    "round": "{unit}",
    "clock": "simulated time, {unit}",
    "bytes_up": "uploaded by all clients, {unit}",
    TOTAL_BYTES: "uploaded and downloaded by all clients, {unit}",
}
_WORDS = {
    "round": "rounds",
    "clock": "simulated time",
    "bytes_up": "uploaded bytes",
    TOTAL_BYTES: "uploaded and downloaded bytes",
}


def metric_title(metric: str, on: str = "Test") -> tuple[str, float]:
    """Return what an axis of this metric is called, and by how much its values are multiplied."""
    title, scale = _METRICS.get(metric, (f"Test {metric}", 1.0))
    return title.replace("Test", on, 1), scale


def curves(groups: Groups, colors: dict[str, Ink], y: str, x: str, target: float | None = None) -> str | None:
    """Return column ``y`` against column ``x``, mean and min-max band per method; None if never measured."""
    drawn = _bands(groups, x, y)
    if not drawn:
        return None
    with canvas(4.7, 3.1) as figure:
        title = _draw_curves(figure.add_subplot(), drawn, colors, y, x, target)
        label = f"{title.split(',')[0]} against {_WORDS[x]}, one line per method: {', '.join(drawn)}"
        return to_svg(figure, f"{y}-{x.replace('_', '-')}", label)


def curve_sheet(groups: Groups, colors: dict[str, Ink], y: str, target: float | None, form: str) -> bytes | None:
    """Return column ``y`` against rounds, simulated time and bytes as one picture; None if never measured.

    ``form`` is png, svg or pdf.
    """
    sheet = {x: drawn for x in _ALONG if (drawn := _bands(groups, x, y))}
    if not sheet:
        return None
    with canvas(9.4, 6.6) as figure:
        for place, (x, drawn) in enumerate(sheet.items(), 1):
            _draw_curves(figure.add_subplot(2, 2, place), drawn, colors, y, x, target)
        looks: list[dict[str, Any]] = [{"color": colors[m].color, "linestyle": colors[m].line} for m in groups]
        lines = [Line2D([], [], linewidth=1.7, **look) for look in looks]
        figure.legend(lines, list(groups), loc="outside lower center", ncols=min(len(groups), 6), frameon=False)
        content = io.BytesIO()
        figure.savefig(content, format=form, dpi=200, facecolor="white", metadata=_NO_DATE[form])
        return content.getvalue()


def coinciding(groups: Groups, y: str) -> list[list[str]]:
    """Return the methods whose curves against rounds lie on each other."""
    return coincide(_bands(groups, "round", y))


def told_apart(drawn: Mapping[str, Band], colors: Mapping[str, Ink]) -> dict[str, Ink]:
    """Return colour and dash of curves: one that lies on another is dashed, so that both are seen."""
    under = {method: i for group in coincide(drawn) for i, method in enumerate(group)}
    return {m: Ink(colors[m].color, f"4 {4 * under[m]}") if under.get(m) else colors[m] for m in drawn}


def _bands(groups: Groups, x: str, y: str) -> dict[str, Band]:
    """Return the curves of each method that has any."""
    bands = {m: band([curve(run, x, y) for run in runs]) for m, runs in groups.items()}
    return {m: b for m, b in bands.items() if b is not None}


def _draw_curves(
    axes: Axes, drawn: dict[str, Band], colors: dict[str, Ink], y: str, x: str, target: float | None
) -> str:
    """Draw the curves of all methods with their target; return the title."""
    title, scale = metric_title(y)
    unit, name = _unit(x, max(_end(b) for b in drawn.values()))
    simplify(axes, grid="both")
    axes.set_title(title)
    axes.set_xlabel(_ALONG[x].format(unit=name))
    shown = told_apart(drawn, colors)
    for method, b in drawn.items():
        _draw_band(axes, b, shown[method], unit, scale, stairs=x != "round")
    axes.set_xlim(left=0)
    axes.margins(x=0.02)
    limits(axes, scale * np.concatenate([v for b in drawn.values() for v in _lines(b)]), y)
    if target is not None:
        _draw_target(axes, scale * target, " %" if y == "accuracy" else "")
    return title


def participation(part: Participation, method: str, ink: Ink, top: float, key: str) -> str:
    """Return how often each client was asked and answered, most asked first; methods share the limit ``top``."""
    with canvas(2.7, 1.8) as figure:
        axes = simplify(figure.add_subplot())
        asked, answered = _bin(part.asked), _bin(part.answered)
        edges = np.linspace(0.5, part.asked.size + 0.5, asked.size + 1)
        axes.stairs(100 * asked, edges, fill=True, color=ink.color, alpha=0.28, linewidth=0)
        axes.stairs(100 * answered, edges, fill=True, color=ink.color, alpha=0.85, linewidth=0)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 100 * top * 1.04))
        axes.set_title("% of rounds", color=MUTED, fontsize=8.5)
        axes.set_xlabel("clients, most asked first")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=2))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        label = f"{method}: share of rounds in which each client was asked (light) and answered (dark)"
        return to_svg(figure, key, label)


def client_scores(scores: dict[str, Ranked], colors: dict[str, Ink], metric: str) -> str:
    """Return the score of every client from the worst to the best, one line and band per method."""
    scale, unit = (100.0, ", %") if metric == "accuracy" else (1.0, "")
    with canvas(4.7, 3.1) as figure:
        axes = simplify(figure.add_subplot(), grid="both")
        for method, s in scores.items():
            mean, low, high = (scale * _bin(row) for row in (s.mean, s.low, s.high))
            edges = np.linspace(0, 100, mean.size + 1)
            how: dict[str, Any] = {"color": colors[method].color}
            if np.any(high > low):
                low, high = (np.append(row, row[-1:]) for row in (low, high))
                axes.fill_between(edges, low, high, step="post", alpha=0.16, linewidth=0, **how)
            axes.stairs(mean, edges, baseline=None, linestyle=colors[method].line, linewidth=1.7, **how)
        limits(axes, scale * np.concatenate([s.mean for s in scores.values()]), metric)
        axes.set_xlim(0, 100)
        axes.axvline(10, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
        axes.text(10, 1.015, " worst tenth", transform=axes.get_xaxis_transform(), ha="left", fontsize=8)
        axes.set_title(f"{units.heading(metric)} on each client's own test data{unit}", pad=16)
        axes.set_xlabel("clients, from the worst to the best, %")
        label = f"{units.heading(metric)} of the global model on each client's own test data: {', '.join(scores)}"
        return to_svg(figure, "client-scores", label)


def labels(counts: Array, names: Sequence[str] | None = None, above: Mapping[str, Array] | None = None) -> str:
    """Return clients × classes as a heat map, with the clients' sizes and other values of each client above it."""
    n, k = counts.shape
    many = n > MANY_CLIENTS
    strips = {"Samples per client": counts.sum(1), **(above or {})}
    if many:  # unsorted, a thousand clients look like noise
        order = np.lexsort((-counts.max(1), counts.argmax(1)))
        counts, strips = counts[order], {title: values[order] for title, values in strips.items()}
    high = 0.6 + min(2.6, 0.17 * k)
    with canvas(9.4, 0.3 + 0.8 * len(strips) + high) as figure:
        ratios = (*[0.8] * len(strips), high)
        grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios, width_ratios=(80, 1))
        for place, (title, values) in enumerate(strips.items()):
            axes = simplify(figure.add_subplot(grid[place, 0]))
            axes.stairs(np.nan_to_num(values), np.arange(n + 1) - 0.5, fill=True, color="#8fa3b8", linewidth=0)
            axes.set_title(title, fontsize=8.5, color=MUTED)
            axes.set(xlim=(-0.5, n - 0.5), xticks=[])
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        heat = figure.add_subplot(grid[-1, 0])
        # a square root keeps the small counts visible beside the large ones
        norm = PowerNorm(0.5, vmin=0, vmax=max(1, counts.max()))
        blues = LinearSegmentedColormap.from_list("labels", _BLUES)
        image = heat.imshow(counts.T, aspect="auto", interpolation="none", cmap=blues, norm=norm)
        heat.set(xlabel="clients, by their largest class" if many else "client", ylabel="class")
        _class_ticks(heat, k, names)
        heat.set_title("Samples per client and class", fontsize=8.5, color=MUTED)
        heat.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        heat.tick_params(length=0)
        heat.spines[:].set_visible(False)
        _scale_bar(figure, image, figure.add_subplot(grid[-1, 1]))
        return to_svg(figure, "labels", f"Label counts of {n} clients over {k} classes")


def class_accuracy(values: dict[str, Array], colors: dict[str, Ink], names: Sequence[str] | None = None) -> str:
    """Return the accuracy of each class, one dot per method; a heat map where there would be too many dots."""
    k = len(next(iter(values.values())))
    label = f"Final test accuracy of {k} classes for {', '.join(values)}"
    if k * len(values) > MANY_DOTS:
        return _class_heat(values, names, label)
    with canvas(9.4, 2.7) as figure:
        axes = simplify(figure.add_subplot())
        table = 100 * np.array(list(values.values()))
        place = np.arange(k)
        axes.vlines(place, table.min(0), table.max(0), color="#c9ced6", linewidth=1, zorder=1)
        apart = min(0.06, 0.5 / len(values))  # places equal values side by side
        for i, (method, row) in enumerate(zip(values, table, strict=True)):
            ink, where = colors[method], place + apart * (i - (len(values) - 1) / 2)
            face = "white" if ink.dash else ink.color  # hollow dots where a colour is used again
            axes.scatter(where, row, s=28, color=face, edgecolors=ink.color, linewidths=1.1, zorder=2)
        axes.set_title("Test accuracy per class, %")
        axes.set(xlabel="class", xlim=(-0.6, k - 0.4))
        _class_ticks(axes, k, names, along="x")
        return to_svg(figure, "class-accuracy", label)


def _class_heat(values: dict[str, Array], names: Sequence[str] | None, label: str) -> str:
    table = 100 * np.array(list(values.values()))
    with canvas(9.4, 1.1 + 0.22 * len(values)) as figure:
        grid = figure.add_gridspec(1, 2, width_ratios=(80, 1))
        axes = figure.add_subplot(grid[0])
        blues = LinearSegmentedColormap.from_list("classes", _BLUES)
        image = axes.imshow(table, aspect="auto", interpolation="none", cmap=blues)
        axes.set_title("Test accuracy per class, %")
        axes.set_xlabel("class")
        _class_ticks(axes, table.shape[1], names, along="x")
        axes.set_yticks(range(len(values)), list(values))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _scale_bar(figure, image, figure.add_subplot(grid[1]))
        return to_svg(figure, "class-accuracy", label)


def _draw_band(axes: Axes, b: Band, ink: Ink, unit: float, scale: float, stairs: bool) -> None:
    how: dict[str, Any] = {"color": ink.color, "linestyle": ink.line}
    how |= {"drawstyle": "steps-post"} if stairs else {}
    if np.any(b.high > b.low):
        axes.fill_between(
            b.x / unit, scale * b.low, scale * b.high, color=ink.color, alpha=0.16, linewidth=0,
            step="post" if stairs else None,
        )  # fmt: skip
    marker: dict[str, Any] = {"marker": "o", "markersize": 4} if b.x.size == 1 else {}
    axes.plot(b.x / unit, scale * b.mean, linewidth=1.7, **how, **marker)
    for x, y in b.tails:
        axes.plot(x / unit, scale * y, linewidth=0.8, alpha=0.6, **how)


def _lines(b: Band) -> list[Array]:
    return [b.mean, *(tail for _, tail in b.tails)]


def limits(axes: Axes, values: Array, y: str) -> None:
    """Use a log scale for a loss or length that spans decades (one method diverged); keep accuracies within 100 %."""
    if y != "accuracy" and values.min() > 0 and values.max() > 100 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")  # the usual one is written in mathtext, which is off
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif y == "accuracy":
        low, high = axes.get_ylim()
        axes.set_ylim(max(0.0, low), min(100.0, high) if values.max() < 99 else 100.5)


def _draw_target(axes: Axes, target: float, unit: str) -> None:
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        if target <= 0:  # has no place there
            return
        factor = (high / low) ** 0.06
        axes.set_ylim(min(low, target / factor), max(high, target * factor))
    else:
        margin = 0.06 * (high - low)
        axes.set_ylim(min(low, target - (2 if unit else margin)), max(high, target + margin))
    axes.axhline(target, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    # outside the frame: inside, some curve always runs through it
    where = axes.get_yaxis_transform()
    axes.text(1.012, target, f"target\n{target:g}{unit}", transform=where, va="center", fontsize=8, linespacing=1.15)


def _class_ticks(axes: Axes, k: int, names: Sequence[str] | None, along: str = "y") -> None:
    every = 1 if k <= (12 if along == "y" else 30) else -(-k // (12 if along == "y" else 20))
    ticks = np.arange(0, k, every)
    texts = [names[i] if names and i < len(names) else str(i) for i in ticks.tolist()]
    axis = axes.yaxis if along == "y" else axes.xaxis
    axis.set_ticks(ticks, texts, rotation=90 if along == "x" and max(map(len, texts)) > 5 else 0)


def _scale_bar(figure: Figure, image: Any, axes: Axes) -> None:
    bar = figure.colorbar(image, cax=axes, ticks=MaxNLocator(4, integer=True))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)


def _bin(shares: Array, most: int = 200) -> Array:
    """Average neighbours in rank, because a small figure cannot show a thousand steps."""
    return shares if shares.size <= most else np.array([part.mean() for part in np.array_split(shares, most)])


def _unit(x: str, end: float) -> tuple[float, str]:
    """Return the largest unit in which the axis reaches at least two."""
    return next(((u, name) for u, name in _UNITS[x] if end >= 2 * u), _UNITS[x][-1])


def _end(b: Band) -> float:
    return max([*(b.x[-1:].tolist()), *(x[-1] for x, _ in b.tails)])
