"""Reports on runs: a table for the terminal and one self-contained HTML page."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from fedweave.core.crash_points import crash_point
from fedweave.report.summary import compare_rows as compare_rows
from fedweave.report.terminal import client_table as client_table
from fedweave.report.terminal import paired_table as paired_table
from fedweave.report.terminal import terminal_table as terminal_table
from fedweave.runs.results import Result
from fedweave.tables.files import write_file


def page(results: Sequence[Result], title: str | None = None) -> str:
    """Return the report as HTML: no script, no network, readable from a file, on a phone and on paper."""
    from fedweave.report import html  # loads matplotlib, which a table does not need

    return html.page(results, title)


def write(results: Sequence[Result], path: str | Path) -> Path:
    """Write the page to ``path`` atomically: a reader sees the old page or the new one, never half of it."""
    path = Path(path)
    if path.is_dir():  # fail before drawing the page, which takes seconds
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = page(results).encode()
    crash_point("report: page drawn")
    write_file(path, content)
    crash_point("report: page written")
    return path
