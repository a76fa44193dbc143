"""Print items that are not yet studies."""

from __future__ import annotations

import json as json_text
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fedweave.cli.progress import Count
from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.papers import earlier
from fedweave.tables.files import writable

if TYPE_CHECKING:
    from fedweave.papers.common.claims import Outcome
    from fedweave.papers.common.scale import Scale

ITEMS = earlier.ITEMS


def reproduce(item: str, scale: Scale, html: Path | None, json: bool) -> None:
    """Reproduce an item by its function, and print it."""
    if html is not None:
        _check_page(item, html)
    with Count(f"{item}, scale {scale}") as on_progress:
        outcome = earlier.reproduce(item, scale, on_progress)
    crash_point("reproduce: judged")
    if json:
        print(json_text.dumps(outcome.plain(), default=float, allow_nan=False))
        _draw(outcome, html)
        return
    if outcome.rows:
        table = Table(*outcome.rows[0], title=f"{outcome.item}, scale {outcome.scale}", title_justify="left")
        for row in outcome.rows:
            table.add_row(*("–" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
        screen = Console()
        Console(width=max(screen.width, 150) if not screen.is_terminal else None).print(
            table
        )  # not wrapped when written to a file
    for claim in outcome.claims:
        print(f"{claim.verdict}: {claim.text} ({claim.evidence})")
    print("\n".join(outcome.notes))
    _draw(outcome, html)


def _check_page(item: str, page: Path) -> None:
    """Refuse a page that could not be drawn or written, before hours of work."""
    if item in ITEMS and not earlier.has_runs(item):
        raise BadInput(f"--html: {item} has no runs to draw.")
    if os.path.isdir(page) or not os.access(page.parent, os.W_OK):
        raise BadInput(f"--html: {str(page)!r} cannot be written. Give a file in a folder that exists.")


def _draw(outcome: Outcome, page: Path | None) -> None:
    if page is None:
        return
    if not outcome.runs:
        raise BadInput(f"--html: {outcome.item} has no runs to draw.")
    from fedweave.report import write

    with writable(page):
        write(outcome.runs, page)
