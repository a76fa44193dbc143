"""Reports on runs: a table for the terminal and one self-contained HTML page."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedweave.report.page import page as page
from fedweave.report.summary import compare_rows as compare_rows
from fedweave.report.terminal import terminal_table as terminal_table
from fedweave.runs.results import Result


def write(results: Sequence[Result], path: str | Path) -> Path:
    """Write the page to ``path`` atomically: a reader sees the old page or the new one, never half of it."""
    path = Path(path)
    if path.is_dir():  # fail before drawing the page, which takes seconds
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(page(results))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide the page from colleagues
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
