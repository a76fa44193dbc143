"""Named moments of a run at which a test may strike, so that all of them are enumerated and none is guessed."""

from __future__ import annotations

from collections.abc import Callable

strike: Callable[[str], None] | None = None  # set by the fault suite alone


def crash_point(point: str) -> None:
    """Say that the run is at this point."""
    if strike is not None:
        strike(point)
