"""Differences to the first method, seed by seed, as text for the terminal and the page."""

from __future__ import annotations

from fedweave.report import units
from fedweave.report.summary import Row


def paired_cells(paired: Row) -> list[str]:
    """Return a difference to the first method as text: itself, its interval, its verdict, and what could be shown."""
    write = units.difference(paired["metric"])
    low, high = write(paired["low"]), write(paired["high"])
    verdict, margin = paired["verdict"], paired["margin"]
    if verdict in ("better", "worse") and max(-paired["low"], paired["high"]) <= margin:  # significant, but small
        verdict += f", but within ± {write(margin).lstrip('+')}"
    return [write(paired["difference"]), f"{low} to {high}", verdict, write(paired["detectable"]).lstrip("+")]


def paired_note(paired: Row) -> str:
    """Say how the differences are to be read."""
    margin = units.difference(paired["metric"])(paired["margin"]).lstrip("+")
    return (
        f"t intervals over {paired['seeds']} paired seeds; better, worse: the interval excludes zero; equal: it "
        f"contains zero, and the difference is shown to be within ± {margin} of {paired['baseline']}; detectable: the "
        "smallest true difference that so many seeds show with a chance of 80 %."
    )
