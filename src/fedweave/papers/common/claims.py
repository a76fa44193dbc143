"""The outcome of a reproduction: a table, the paper's claims with a verdict each, and how the runs were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.scale import Scale
from fedweave.runs.results import Result

Verdict = Literal["confirmed", "not confirmed", "not run at this scale"]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, and what we found."""

    text: str
    verdict: Verdict
    evidence: str

    @classmethod
    def judge(cls, text: str, holds: bool, evidence: str) -> Claim:
        """Return the claim with the verdict that follows from the evidence."""
        return cls(text, "confirmed" if holds else "not confirmed", evidence)

    @classmethod
    def not_run(cls, text: str, why: object = "too few rounds and seeds") -> Claim:
        """Return the claim without a verdict, and why there is none."""
        return cls(text, "not run at this scale", str(why))


@dataclass(frozen=True)
class Outcome:
    """A reproduced figure or table of a paper."""

    item: str
    scale: Scale
    rows: Sequence[Mapping[str, Any]]  # one mapping per line of the table, same keys
    claims: Sequence[Claim]
    notes: Sequence[str] = field(default=())
    runs: Sequence[Result] = field(default=())  # what can be drawn as a report

    @classmethod
    def not_run(cls, item: str, scale: Scale, text: str, why: object) -> Outcome:
        """Return an empty outcome with one claim, and why it was not run."""
        return cls(item, scale, [], [Claim.not_run(text, why)])

    def plain(self) -> dict[str, Any]:
        """Return everything but the runs as JSON-able data."""
        return {name: value for name, value in asdict(replace(self, runs=())).items() if name != "runs"}


def item_path(*parts: str | None) -> str:
    """Return the name of an item from its parts, such as fedacs/table1/mnist."""
    return "/".join(filter(None, parts))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error over seeds."""
    array = np.asarray(values, float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else np.nan


def percent(
    shares: Sequence[float] | Array, digits: int = 1, spread: Literal["error", "deviation"] = "error", sign: str = ""
) -> str:
    """Return the mean of shares with their standard error or standard deviation, in per cent."""
    mean, error = mean_and_error(np.asarray(shares, float).tolist())
    text = f"{100 * mean:{sign}.{digits}f}"
    if len(shares) < 2:
        return text
    return f"{text} ± {100 * (error if spread == 'error' else np.std(shares, ddof=1)):.{digits}f}"


def judge_lead(
    text: str, ours: Array, others: Mapping[str, Array], scale: Scale, unit: float = 100, sign: int = 1
) -> Claim:
    """Judge whether ours beats the best other by more than twice the error of their difference, seed by seed."""
    if scale == "smoke":
        return Claim.not_run(text)
    best = max(others, key=lambda n: sign * others[n].mean())
    lead, error = mean_and_error((sign * (ours - others[best])).tolist())
    values = f"{unit * ours.mean():.4g} against {unit * others[best].mean():.4g} of {best}"
    return Claim.judge(text, bool(lead > 2 * error), f"{values}, better by {unit * lead:.2g} ± {unit * error:.2g}")


def rename_runs(runs: Sequence[Result], name: str) -> list[Result]:
    """Return the runs under another method name, as a report shows it."""
    return [replace(r, summary={**r.summary, "method": name}) for r in runs]
