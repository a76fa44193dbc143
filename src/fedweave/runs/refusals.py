"""Refused updates and divergence, in a line or two for a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedweave.core.records import ServerState
from fedweave.runs.callbacks import Callback, Row, Running

if TYPE_CHECKING:
    from fedweave.runs.results import Result


class Refusals(Callback):
    """Says why a run refused updates for the first time, and at its end in how many rounds it did."""

    def __init__(self, say: Callable[[str], object]):
        self._say, self._rounds = say, Counter[Running]()

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Say why updates were refused, in the first round of a run that did so."""
        if not row["refused"]:
            return
        self._rounds[run] += 1
        if self._rounds[run] == 1:
            why = next((f": {f.why}" for kind, f in run.failures if kind == "refused"), "")
            advice = " (a lower learning rate may help)" if "not finite" in why else ""
            updates = "an update" if row["refused"] == 1 else f"{row['refused']} updates"
            self._say(f"{run.label}, round {row['round']}: refused {updates}{why}{advice}")

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Say in how many rounds updates were refused, if in several."""
        if self._rounds[run] > 1:
            self._say(f"{run.label}: updates were refused in {self._rounds[run]} rounds")


def divergence(summary: Mapping[str, Any]) -> str:
    """Say that a run diverged, and how good it had been."""
    if not summary["diverged"]:
        return ""
    best = summary["best"]
    known = "" if best is None else f", best {summary['metric']} {best:.4g} at round {summary['best_round']}"
    return f"training diverged{known}: lower the learning rate"
