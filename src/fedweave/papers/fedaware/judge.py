"""What is read off FedAWARE's runs, and what the paper claims of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, Scale
from fedweave.papers.common.training import TAIL, leads
from fedweave.runs.results import Result

Runs = Mapping[str, Sequence[Result]]  # by method: one per seed

OURS = {"fedaware": "FedAWARE", "fedaware_unit": "FedAWARE with unit momenta (the authors' code)"}
READING = (
    "top is the best round, what the paper reports; ± the standard deviation over seeds; jitter the mean change of "
    "accuracy from round to round; diversity that of a round's answers, surrogate that of FedAWARE's momenta; quarters "
    "are means over the quarters of the rounds, in order."
)


def tops(runs: Sequence[Result]) -> Array:
    """Return the best accuracy of each run: the paper's measure."""
    return np.array([np.nanmax(r.rounds["accuracy"]) for r in runs])


def lasts(runs: Sequence[Result], column: str = "accuracy") -> Array:
    """Return each run's mean of a column over the last rounds."""
    return np.array([_finite_mean(r.rounds[column][-TAIL:]) for r in runs])


def jitters(runs: Sequence[Result]) -> Array:
    """Return how far each run's accuracy jumps from round to round at the end: the mean size of its changes."""
    return np.array([np.abs(np.diff(r.rounds["accuracy"][-TAIL:])).mean() for r in runs])


def quarters(runs: Sequence[Result], column: str) -> str:
    """Return a curve in four numbers: the means over the quarters of the rounds, and over seeds."""
    if any(column not in r.rounds for r in runs):
        return "—"
    parts = [np.array_split(r.rounds[column], 4) for r in runs]
    return " ".join(f"{_finite_mean(np.concatenate(quarter)):.3g}" for quarter in zip(*parts, strict=True))


def _finite_mean(values: Array) -> float:
    seen = values[np.isfinite(values)]
    return float(seen.mean()) if seen.size else float("nan")


def percent(shares: Array) -> str:
    """Return mean and standard deviation of shares, in per cent: as the paper writes them."""
    mean = f"{100 * shares.mean():.2f}"
    return f"{mean} ± {100 * shares.std(ddof=1):.2f}" if shares.size > 1 else mean


def row(where: str, name: str, runs: Sequence[Result], paper: str = "—") -> dict[str, Any]:
    """Return one line of a table."""
    since = ["—" if (s := r.summary.get("stalled_since")) is None else f"round {s}" for r in runs]
    return {
        "setting": where,
        "method": name,
        "top": percent(tops(runs)),
        "paper": paper,
        f"last {TAIL}": percent(lasts(runs)),
        "jitter": f"{100 * jitters(runs).mean():.2f}",
        "diversity, quarters": quarters(runs, "diversity"),
        "surrogate": quarters(runs, "surrogate_diversity"),
        "step length, quarters": quarters(runs, "step_length"),
        "stalled since": "—" if set(since) == {"—"} else ", ".join(since),
    }


def claims(where: str, runs: Runs, scale: Scale) -> list[Claim]:
    """Judge what the paper says of FedAWARE in one setting, for raw and for unit momenta."""
    said: dict[str, tuple[Callable[[Sequence[Result]], Array], float, int]] = {
        "has the highest top accuracy": (tops, 100, 1),
        f"has the highest mean accuracy of the last {TAIL} rounds": (lasts, 100, 1),
        "has the most stable curve": (jitters, 100, -1),
        "keeps the highest gradient diversity": (lambda r: lasts(r, "diversity"), 1, 1),
    }
    others = [n for n in runs if n not in OURS]
    return [
        leads(f"{where}: {called} {what}", measure(runs[n]), {o: measure(runs[o]) for o in others}, scale, unit, sign)
        for n, called in OURS.items()
        if n in runs
        for what, (measure, unit, sign) in said.items()
    ]


def deteriorate(mild: Runs, hard: Runs, scale: Scale) -> Claim:
    """Judge whether every method loses top accuracy from the mildest to the hardest setting."""
    text = "every method deteriorates from statistical-only to hybrid+"
    if scale == "smoke":
        return Claim(text, "not run at this scale", "too few rounds and seeds")
    lost = {n: 100 * float(tops(runs).mean() - tops(hard[n]).mean()) for n, runs in mild.items()}
    told = ", ".join(f"{n} {points:+.1f}" for n, points in lost.items())
    return Claim.judged(text, min(lost.values()) > 0, f"points lost: {told}")


def goes_with(text: str, a: Array, b: Array, scale: Scale) -> Claim:
    """Judge whether two quantities rise together: more pairs in the same order than in the other (Kendall)."""
    if scale == "smoke":
        return Claim(text, "not run at this scale", "too few rounds and seeds")
    pairs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(a.size) for j in range(i)]
    return Claim.judged(text, sum(pairs) > 0, f"{sum(p > 0 for p in pairs)} of {len(pairs)} pairs in that order")
