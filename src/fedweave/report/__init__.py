"""Reports on runs: a table for the terminal and one self-contained HTML page."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.report.notebook import comparison_html as comparison_html
from fedweave.report.notebook import result_html as result_html
from fedweave.report.notebook import sweep_html as sweep_html
from fedweave.report.summary import by_method, judged_by
from fedweave.report.summary import compare_rows as compare_rows
from fedweave.report.sweep_terminal import sweep_tables as sweep_tables
from fedweave.report.terminal import as_text as as_text
from fedweave.report.terminal import client_table as client_table
from fedweave.report.terminal import comparison_tables as comparison_tables
from fedweave.report.terminal import cost_table as cost_table
from fedweave.report.terminal import paired_table as paired_table
from fedweave.report.terminal import terminal_table as terminal_table
from fedweave.runs.results import Result
from fedweave.tables.files import write_file

if TYPE_CHECKING:
    from fedweave.runs.sweep import Sweep

FORMATS = ("png", "svg", "pdf")


def page(results: Sequence[Result], title: str | None = None) -> str:
    """Return the report as HTML: no script, no network, readable from a file, on a phone and on paper."""
    from fedweave.report import html  # loads matplotlib, which a table does not need

    return html.page(results, title)


def sweep_page(sweep: Sweep) -> str:
    """Return the page of a sweep as HTML: its best points, the metric against every swept field, and all points."""
    from fedweave.report import sweep as sweeps  # loads matplotlib

    return sweeps.page(sweep)


def write_curves(results: Sequence[Result], path: str | Path) -> Path:
    """Write the metric against rounds, simulated time and bytes as one picture: a .png, .svg or .pdf file."""
    path = Path(path)
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise BadInput(f"A figure is a file that ends in {', '.join(f'.{f}' for f in FORMATS)}. Got {str(path)!r}.")
    from fedweave.report import figures, svg  # loads matplotlib

    groups = by_method(results)
    (metric, *_), target = judged_by(groups)
    content = figures.curve_sheet(groups, svg.inks(groups), metric, target, form)
    content = content or figures.curve_sheet(groups, svg.inks(groups), "objective", None, form)
    if content is None:
        raise BadInput("There are no curves to draw: the runs were never evaluated.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path


def write(results: Sequence[Result], path: str | Path) -> Path:
    """Write the page to ``path`` atomically: a reader sees the old page or the new one, never half of it."""
    return _write(lambda: page(results), Path(path))


def write_sweep(sweep: Sweep, path: str | Path) -> Path:
    """Write the page of a sweep, as ``write`` does."""
    return _write(lambda: sweep_page(sweep), Path(path))


def _write(draw: Callable[[], str], path: Path) -> Path:
    if path.is_dir():  # fail before drawing the page, which takes seconds
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = draw().encode()
    crash_point("report: page drawn")
    write_file(path, content)
    crash_point("report: page written")
    return path
