"""Differences to the first method, seed by seed, as text for the terminal and the page."""

from __future__ import annotations

from fedweave.report import units
from fedweave.report.summary import Row


def paired_cells(paired: Row) -> list[str]:
    """Return a difference to the first method as text: itself, its interval, its verdict, and what could be shown."""
    write = units.difference(paired["metric"])
    low, high = write(paired["low"]), write(paired["high"])
    return [write(paired["difference"]), f"{low} to {high}", paired["verdict"], write(paired["detectable"]).lstrip("+")]


def paired_note(paired: Row) -> str:
    """Say how the differences are to be read."""
    margin = units.difference(paired["metric"])(paired["margin"]).lstrip("+")
    return (
        f"t intervals over {paired['seeds']} paired seeds; equal: shown to be within ± {margin} of "
        f"{paired['baseline']}; detectable: the smallest true difference that so many seeds show with a chance of 80 %."
    )
