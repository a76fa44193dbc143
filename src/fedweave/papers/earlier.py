"""Items that are not yet studies: a function each, which returns a table and claims."""

from __future__ import annotations

from importlib import import_module

from fedweave.papers.common.claims import Outcome
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale

# Names and what they show; the code is imported when needed. A third part narrows an item down.
ITEMS = {}


def has_runs(item: str) -> bool:
    """Return whether the outcome of an item has runs that can be drawn as a report."""
    paper, name, *_ = item.split("/")
    return paper == "feddd" and name not in ("fig2", "fig3")


def reproduce(item: str, scale: Scale = "smoke", on_progress: Progress | None = None) -> Outcome:
    """Reproduce a figure or table by its function."""
    paper, name, *part = item.split("/")
    return getattr(import_module(f"fedweave.papers.{paper}"), name)(scale, on_progress, *part)
