"""What is read off DELTA's runs, and how its claims are judged: differences of the same seed, against their error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, Scale
from fedweave.papers.common.training import leads, spread
from fedweave.papers.delta.stage import BEST, SMOOTHED, Course

Runs = Mapping[str, Sequence[Course]]  # by method: one course per seed
Reported = tuple[str, str]  # accuracy in per cent and rounds, as printed
UNREPORTED: Reported = ("—", "—")
OURS = "fedpracdelta"
READING = (
    f"best: mean of the {BEST} highest accuracies, the paper's measure; last: mean of the last tenth of the rounds; −: "
    "difference of the same seeds; ±: standard error over seeds; rounds: first evaluation that reached that accuracy, "
    f"(k/n) in k of n runs; smoothed: first mean of {SMOOTHED} evaluations that did; 1000 steps: local steps of all "
    "clients until then; weight: largest of one update in the direction, of the whole run and of the mean round."
)


def percent(shares: Sequence[float], sign: str = "") -> str:
    """Return mean and standard error of shares, in per cent."""
    mean, error = spread(shares)
    return f"{100 * mean:{sign}.2f} ± {100 * error:.2f}" if len(shares) > 1 else f"{100 * mean:{sign}.2f}"


def reached(rounds: Sequence[float]) -> str:
    """Return the mean of those that got there and how many did."""
    seen = [r for r in rounds if np.isfinite(r)]
    share = "" if len(seen) == len(rounds) else f" ({len(seen)}/{len(rounds)})"
    return f"{np.mean(seen):.0f}{share}" if seen else "—"


def row(
    name: str, runs: Sequence[Course], rival: tuple[str, Sequence[Course]], threshold: float, told: Reported
) -> dict[str, Any]:
    """Return one line of a table; ``rival`` is what it is set against, seed by seed."""
    pairs = list(zip(runs, rival[1], strict=True))
    weights = [c.heaviest[np.isfinite(c.heaviest)] for c in runs]
    known = all(w.size for w in weights)
    return {
        "method": name,
        "best": percent([c.best() for c in runs]),
        "paper": told[0],
        f"best − {rival[0]}": percent([c.best() - r.best() for c, r in pairs], "+"),
        "last": percent([c.last for c in runs]),
        f"last − {rival[0]}": percent([c.last - r.last for c, r in pairs], "+"),
        "to": f"{threshold:.0%}",
        "rounds": reached([c.rounds_to(threshold) for c in runs]),
        "paper's": told[1],
        "smoothed": reached([c.rounds_to(threshold, SMOOTHED) for c in runs]),
        "steps/round": f"{np.mean([c.steps.mean() for c in runs]):.0f}",
        "1000 steps": reached([c.steps_to(threshold) / 1000 for c in runs]),
        "weight": f"{np.max([w.max() for w in weights]):.3g}, {np.mean([w.mean() for w in weights]):.3g}"
        if known
        else "—",
    }


def table(
    runs: Runs, threshold: float, reported: Mapping[str, Reported], rival: str, **where: str
) -> list[dict[str, Any]]:
    """Return a line for every method, each set against ``rival``."""
    other = rival, runs[rival]
    return [where | row(n, r, other, threshold, reported.get(n, UNREPORTED)) for n, r in runs.items()]


def bests(runs: Sequence[Course]) -> Array:
    """Return the paper's measure of each run."""
    return np.array([c.best() for c in runs])


def lasts(runs: Sequence[Course]) -> Array:
    """Return the accuracy of each run at its end."""
    return np.array([c.last for c in runs])


def waits(runs: Sequence[Course], threshold: float) -> Array:
    """Return the rounds to the threshold; a run that never got there counts as one round more than it had."""
    return np.array([np.nan_to_num(c.rounds_to(threshold), nan=len(c.steps) + 1.0) for c in runs])


def claims(where: str, runs: Runs, threshold: float, scale: Scale, ours: str = OURS) -> list[Claim]:
    """Judge what the paper says in all its tables: our sampler is the most accurate and the fastest."""
    others = {n: r for n, r in runs.items() if n.split(",")[0] != ours}  # a variant of ours is no rival
    where = f"{where}: " if where else ""
    return [
        leads(f"{where}{ours} has the highest best {BEST}", bests(runs[ours]), each(bests, others), scale),
        leads(f"{where}{ours} has the highest accuracy at the end", lasts(runs[ours]), each(lasts, others), scale),
        leads(
            f"{where}{ours} needs the fewest rounds to {threshold:.0%}",
            waits(runs[ours], threshold),
            {n: waits(r, threshold) for n, r in others.items()},
            scale,
            unit=1,
            sign=-1,
        ),
    ]


def each(measure: Any, runs: Runs) -> dict[str, Array]:
    """Return a measure of every method's runs."""
    return {n: measure(r) for n, r in runs.items()}
