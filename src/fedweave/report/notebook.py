"""Runs and comparisons as notebooks show them: a small table, a curve, no style sheet, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from fedweave.core.html import html_table
from fedweave.report import units
from fedweave.report.curves import curve
from fedweave.report.paired import paired_cells, paired_note
from fedweave.report.summary import best, compare_rows
from fedweave.report.sweep_terminal import judged_on, score_cells
from fedweave.report.terminal import caption, known_columns
from fedweave.runs.grid import point_text
from fedweave.runs.results import Array, Result

if TYPE_CHECKING:
    from fedweave.runs.sweep import Sweep

WIDTH, HEIGHT = 280, 90  # of a curve, without its labels
MOST_POINTS = 200


def result_html(result: Result) -> str:
    """Return a run as a table of its summary beside the curve of its metric."""
    s = result.summary
    rounds, planned = s["rounds"], result.experiment.get("rounds", s["rounds"])
    write = units.score(s["metric"])
    rows = {
        "rounds": f"{rounds}" if rounds == planned else f"{rounds} of {planned}",
        s["metric"]: f"{write(s['value'], None)} (best {write(s['best'], None)})" if s["value"] is not None else "",
        "loss": units.loss(s["loss"]) if s["loss"] is not None else "",
        "reached": _reached(result),
        "simulated time": units.seconds(s["simulated_seconds"]),
        "wall time": units.seconds(s["wall_seconds"]),
        "upload, download": f"{units.size(s['bytes_up'])}, {units.size(s['bytes_down'])}",
        "refused updates": str(s["refused"] or ""),
        "diverged": "yes" if s.get("diverged") else "",
        "abandoned rounds": str(s["abandoned"] or ""),
        "run": s["run"] or "",
    }
    table = html_table([pair for pair in rows.items() if pair[1]], title=f"{s['method']}, seed {s['seed']}")
    picture = _first_curve(result, (s["metric"], "objective", "train_loss"))
    return f'<div style="display: flex; flex-wrap: wrap; gap: 8px 32px; align-items: flex-start">{table}{picture}</div>'


def comparison_html(results: Sequence[Result]) -> str:
    """Return the means of every method, and the differences to the first one where there are several seeds."""
    rows = compare_rows(results)
    columns = known_columns(rows)
    winners = [best(rows, quantity) if quantity else None for _, quantity, _ in columns]
    html = html_table(
        [[row["method"], *(cell(row) for _, _, cell in columns)] for row in rows],
        head=["method", *(heading for heading, _, _ in columns)],
        bold=[[False, *(winner is row for winner in winners)] for row in rows],
        note=caption(rows),
    )
    paired = [row for row in rows if row["paired"] and row["paired"]["low"] is not None]
    if not paired:
        return html
    first = paired[0]["paired"]
    return html + html_table(
        [[row["method"], *paired_cells(row["paired"])] for row in paired],
        title=f"{first['metric']}: difference from {first['baseline']}, seed by seed",
        head=["method", "difference", "95 % interval", "verdict", "detectable"],
        note=paired_note(first),
    )


def sweep_html(sweep: Sweep) -> str:
    """Return every point with its mean and interval, the best of each method in bold, and the best on the test set."""
    if not (rows := sweep.summary):
        return html_table([], note="no run has a finished round")
    html = html_table(
        [[row["method"], point_text(row["point"]), *score_cells(row)] for row in rows],
        head=["method", "point", f"{judged_on(sweep)} {rows[0]['metric']}", "95 % interval"],
        bold=[[row["best"]] * 4 for row in rows],
    )
    if sweep.tested is None:
        return html
    tested = [(method, row) for method, row in sweep.best.items() if row["test"]]
    return html + html_table(
        [[method, point_text(row["point"]), *score_cells(row["test"])] for method, row in tested],
        title="best points on the test set",
        head=["method", "point", rows[0]["metric"], "95 % interval"],
    )


def _reached(result: Result) -> str:
    s, target = result.summary, result.experiment.get("target")
    if target is None:
        return ""
    goal = units.goal(target, s["metric"])
    if s["rounds_to_target"] is None:
        return f"never {goal}"
    return f"{goal} in {s['rounds_to_target']} rounds, {units.seconds(s['seconds_to_target'])} of simulated time"


def _first_curve(result: Result, names: Sequence[str]) -> str:
    """Return the curve of the first of these columns that has two points."""
    for name in names:
        x, y = curve(result, "round", name)
        if x.size > 1:
            return _svg(name, x, y, units.score(name))
    return ""


def _svg(name: str, x: Array, y: Array, write: units.Format) -> str:
    keep = np.unique(np.linspace(0, x.size - 1, min(x.size, MOST_POINTS)).astype(int))
    x, y = x[keep], y[keep]
    low, high = float(y.min()), float(y.max())
    across = WIDTH * (x - x[0]) / (x[-1] - x[0])
    up = HEIGHT * (1 - (y - low) / (high - low)) if high > low else np.full(y.size, HEIGHT / 2)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
    label = escape(
        f"{name}, rounds {x[0]:g} to {x[-1]:g}: from {write(y[0].item(), None)} to {write(y[-1].item(), None)}"
    )
    text = 'fill="currentColor" font-size="11" font-family="sans-serif"'
    return (
        f'<svg width="{WIDTH + 70}" height="{HEIGHT + 34}" viewBox="-4 -8 {WIDTH + 70} {HEIGHT + 34}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<path d="M0 {HEIGHT + 4}H{WIDTH}" stroke="currentColor" stroke-opacity=".35" fill="none"/>'
        f'<polyline points="{points}" fill="none" stroke="#3a8fd0" stroke-width="2" stroke-linejoin="round"/>'
        f'<text x="{WIDTH + 6}" y="4" {text}>{escape(write(high, None))}</text>'
        f'<text x="{WIDTH + 6}" y="{HEIGHT + 4}" {text}>{escape(write(low, None))}</text>'
        f'<text x="0" y="{HEIGHT + 20}" {text}>{escape(name)}, rounds {x[0]:g} to {x[-1]:g}</text></svg>'
    )
