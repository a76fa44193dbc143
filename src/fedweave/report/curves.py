"""Curves of several seeds on one grid: their mean and their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.runs.results import Array, Result

MOST_POINTS = 400  # more than a screen can show, and the page stays small
LINE = 0.01  # the width of a line, as a share of the height of a figure
NEARLY = 0.95  # of the points
TOTAL_BYTES = "bytes_total"  # up and down
Curve = tuple[Array, Array]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest value where every seed has one, and each seed's own curve after that."""

    x: Array
    mean: Array
    low: Array
    high: Array
    tails: tuple[Curve, ...]


def curve(result: Result, x: str, y: str) -> Curve:
    """Return the evaluated points of column ``y`` against column ``x``, which may be all bytes that travelled."""
    columns = {name: values for name, values in result.rounds.items() if name in (x, y)}
    if x == TOTAL_BYTES:
        columns[x] = result.rounds["bytes_up"] + result.rounds["bytes_down"]
    if x not in columns or y not in columns:
        return np.empty(0), np.empty(0)
    along, values = (np.asarray(columns[name], dtype=float) for name in (x, y))
    seen = np.isfinite(values) & np.isfinite(along)
    return along[seen], values[seen]


def step(curve: Curve, grid: Array) -> Array:
    """Return the last known value at each point of ``grid``; no point may lie before the curve's first."""
    x, y = curve
    return y[np.searchsorted(x, grid, side="right") - 1]


def band(curves: Sequence[Curve]) -> Band | None:
    """Return mean and range over the seeds, None when none of them was evaluated.

    Between two evaluations a seed keeps its last measured value. The mean ends where the shortest seed ends, so
    that an interrupted run cannot distort it.
    """
    curves = [c for c in curves if c[0].size]
    if not curves:
        return None
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = _thin(grid[(grid >= first) & (grid <= last)])
    values = np.array([step(c, grid) for c in curves])
    tails = tuple(_tail(c, last) for c in curves if c[0][-1] > last)
    if not grid.size:  # the seeds never overlap: there is nothing to average
        return Band(grid, grid, grid, grid, tuple(curves))
    return Band(grid, values.mean(0), values.min(0), values.max(0), tails)


def coincide(bands: Mapping[str, Band]) -> list[list[str]]:
    """Return the groups of methods whose mean curves hide each other: nearly everywhere within a line's width."""
    ends = [v for b in bands.values() for v in (b.mean.min(initial=np.inf), b.mean.max(initial=-np.inf))]
    near, groups = LINE * max(max(ends, default=0.0) - min(ends, default=0.0), 0.0), list[list[str]]()
    for method, b in bands.items():
        for group in groups:
            other = bands[group[0]]
            if np.array_equal(b.x, other.x) and b.x.size and np.quantile(np.abs(b.mean - other.mean), NEARLY) <= near:
                group.append(method)
                break
        else:
            groups.append([method])
    return [group for group in groups if len(group) > 1]


def _tail(curve: Curve, start: float) -> Curve:
    x, y = curve
    if x[0] > start:
        return curve
    keep = np.concatenate([[start], _thin(x[x > start])])
    return keep, step((x, y), keep)


def _thin(grid: Array) -> Array:
    if grid.size <= MOST_POINTS:
        return grid
    return grid[np.unique(np.linspace(0, grid.size - 1, MOST_POINTS).astype(int))]
