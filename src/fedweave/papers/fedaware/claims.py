"""FedAWARE's tables, and the paper's claims about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, judge_lead, percent
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.training import TAIL
from fedweave.runs.results import Result

Runs = Mapping[str, Sequence[Result]]  # by method: one per seed

OURS = {"fedaware": "FedAWARE", "fedaware_unit": "FedAWARE with unit momenta (the authors' code)"}
READING = (
    "top is the best round, what the paper reports; ± the standard deviation over seeds; jitter the mean change of "
    "accuracy from round to round; diversity that of a round's answers, surrogate that of FedAWARE's momenta; quarters "
    "are means over the quarters of the rounds, in order."
)


def top_accuracies(runs: Sequence[Result]) -> Array:
    """Return the best accuracy of each run: the paper's measure."""
    return np.array([np.nanmax(r.rounds["accuracy"]) for r in runs])


def final_means(runs: Sequence[Result], column: str = "accuracy") -> Array:
    """Return each run's mean of a column over the last rounds."""
    return np.array([_finite_mean(r.rounds[column][-TAIL:]) for r in runs])


def jitter(runs: Sequence[Result]) -> Array:
    """Return the mean absolute change of each run's accuracy from round to round, over the last rounds."""
    return np.array([np.abs(np.diff(r.rounds["accuracy"][-TAIL:])).mean() for r in runs])


def quarter_means(runs: Sequence[Result], column: str) -> str:
    """Return a curve as four numbers: the means over the quarters of the rounds and over seeds."""
    if any(column not in r.rounds for r in runs):
        return "—"
    parts = [np.array_split(r.rounds[column], 4) for r in runs]
    return " ".join(f"{_finite_mean(np.concatenate(quarter)):.3g}" for quarter in zip(*parts, strict=True))


def _finite_mean(values: Array) -> float:
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if seen.size else float("nan")


def table_row(where: str, name: str, runs: Sequence[Result], paper: str = "—") -> dict[str, Any]:
    """Return one line of a table."""
    since = ["—" if (s := r.summary.get("stalled_since")) is None else f"round {s}" for r in runs]
    return {
        "setting": where,
        "method": name,
        "top": percent(top_accuracies(runs), 2, "deviation"),
        "paper": paper,
        f"last {TAIL}": percent(final_means(runs), 2, "deviation"),
        "jitter": f"{100 * jitter(runs).mean():.2f}",
        "diversity, quarters": quarter_means(runs, "diversity"),
        "surrogate": quarter_means(runs, "surrogate_diversity"),
        "step length, quarters": quarter_means(runs, "step_length"),
        "stalled since": "—" if set(since) == {"—"} else ", ".join(since),
    }


def judge_claims(where: str, runs: Runs, scale: Scale) -> list[Claim]:
    """Judge the paper's claims about FedAWARE in one setting, for raw and for unit momenta."""
    measures: dict[str, tuple[Callable[[Sequence[Result]], Array], float, int]] = {
        "has the highest top accuracy": (top_accuracies, 100, 1),
        f"has the highest mean accuracy of the last {TAIL} rounds": (final_means, 100, 1),
        "has the most stable curve": (jitter, 100, -1),
        "keeps the highest gradient diversity": (lambda r: final_means(r, "diversity"), 1, 1),
    }
    others = [n for n in runs if n not in OURS]
    return [
        judge_lead(
            f"{where}: {called} {what}", measure(runs[n]), {o: measure(runs[o]) for o in others}, scale, unit, sign
        )
        for n, called in OURS.items()
        if n in runs
        for what, (measure, unit, sign) in measures.items()
    ]


def judge_deterioration(mild: Runs, hard: Runs, scale: Scale) -> Claim:
    """Judge whether every method loses top accuracy from the mildest to the hardest setting."""
    text = "every method deteriorates from statistical-only to hybrid+"
    if scale == "smoke":
        return Claim.not_run(text)
    lost = {n: 100 * float(top_accuracies(runs).mean() - top_accuracies(hard[n]).mean()) for n, runs in mild.items()}
    evidence = ", ".join(f"{n} {points:+.1f}" for n, points in lost.items())
    return Claim.judge(text, min(lost.values()) > 0, f"points lost: {evidence}")


def judge_correlation(text: str, a: Array, b: Array, scale: Scale) -> Claim:
    """Judge whether two quantities rise together: more concordant than discordant pairs (Kendall)."""
    if scale == "smoke":
        return Claim.not_run(text)
    pairs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(a.size) for j in range(i)]
    return Claim.judge(text, sum(pairs) > 0, f"{sum(p > 0 for p in pairs)} of {len(pairs)} pairs in that order")
