"""A sweep as tables for the terminal, and the cells that its page has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from fedweave.report import units
from fedweave.report.summary import Row
from fedweave.runs.grid import label_text, point_text, short_names

if TYPE_CHECKING:
    from fedweave.runs.sweep import Sweep

MOST_FIELDS = 3  # that have a column each; more are one text


def judged_on(sweep: Sweep) -> str:
    """Return the samples on which the points of a sweep are judged, in a word."""
    return "validation" if sweep.validation else "test"


def field_columns(sweep: Sweep) -> dict[str, str]:
    """Return the headings of the swept fields by their paths."""
    return short_names(sweep.fields)


def score_cells(row: Row) -> list[str]:
    """Return the mean over the seeds and its 95 % interval as text."""
    if row["failed"]:
        return [f"diverged in {row['failed']} of {row['seeds']}", units.NONE]
    return [units.score(row["metric"])(row["mean"], None), units.interval(row["metric"], row["low"], row["high"])]


def sweep_tables(sweep: Sweep) -> list[Table]:
    """Return all points, and the best one of every method, each table at most 100 columns wide."""
    rows, seeds = sweep.summary, max(row["seeds"] for row in sweep.summary)
    over = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    tables = [_points(sweep, rows, f"{judged_on(sweep)} {rows[0]['metric']}, {over}")]
    if sweep.best:
        tables.append(_best(sweep))
    return tables


def _points(sweep: Sweep, rows: Sequence[Row], title: str) -> Table:
    table, fields = _table(title), field_columns(sweep)
    table.add_column("method", overflow="fold", max_width=24)
    single = len(fields) > MOST_FIELDS
    for heading in ["point"] if single else fields.values():
        table.add_column(heading, overflow="fold", max_width=40 if single else 16)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        values = [label_text(row["point"][path]) if path in row["point"] else units.NONE for path in fields]
        point = [point_text(row["point"])] if single else values
        cells = (*point, *score_cells(row), "best" if row["best"] else "")
        table.add_row(*(Text(cell) for cell in (row["method"], *cells)), style="bold" if row["best"] else "")
    table.caption = how_runs_ended(rows)
    return table


def how_runs_ended(rows: Sequence[Row]) -> str | None:
    """Return how many runs are not done, or ended earlier than their experiment says; None where all went on."""
    runs, said = sum(row["seeds"] for row in rows), list[str]()
    if unfinished := sum(row["unfinished"] for row in rows):
        said.append(f"{unfinished} of {runs} runs are unfinished.")
    if ended := sum(row["ended_early"] for row in rows):
        said.append(f"{ended} of {runs} runs ended at the target or by patience: their values are of different rounds.")
    return " ".join(said) or None


def _best(sweep: Sweep) -> Table:
    tested = sweep.tested is not None
    how = "on the test set" if tested else "so far" if sweep.validation else "chosen on the test set: optimistic"
    table = _table(f"best points {how}")
    table.add_column("method", overflow="fold", max_width=24)
    table.add_column("point", overflow="fold", max_width=30)
    for heading in (judged_on(sweep), *(("test", "95 % interval") if tested else ("95 % interval",))):
        table.add_column(heading, justify="right", no_wrap=True)
    for method, row in sweep.best.items():
        mean, interval = score_cells(row)
        test = [mean, *(score_cells(row["test"]) if row["test"] else [units.NONE] * 2)] if tested else [mean, interval]
        table.add_row(*(Text(cell) for cell in (method, point_text(row["point"]), *test)))
    table.caption = how_runs_ended([row["test"] for row in sweep.best.values() if row["test"]])
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.pad_edge, table.caption_justify = False, "left"
    return table
