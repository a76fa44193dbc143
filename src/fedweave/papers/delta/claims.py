"""DELTA's tables, and its claims, judged by differences between runs of the same seed against their error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, judge_lead, percent
from fedweave.papers.common.scale import Scale
from fedweave.papers.delta.setup import BEST, SMOOTHED, Trajectory

Runs = Mapping[str, Sequence[Trajectory]]  # by method: one per seed
Reported = tuple[str, str]  # accuracy in per cent and rounds, as printed
UNREPORTED: Reported = ("—", "—")
OURS = "fedpracdelta"
READING = (
    f"best: mean of the {BEST} highest accuracies, the paper's measure; last: mean of the last tenth of the rounds; −: "
    "difference of the same seeds; ±: standard error over seeds; rounds: first evaluation that reached that accuracy, "
    f"(k/n) in k of n runs; smoothed: first mean of {SMOOTHED} evaluations that did; 1000 steps: local steps of all "
    "clients until then; weight: largest of one update in the direction, of the whole run and of the mean round."
)


def format_rounds(rounds: Sequence[float]) -> str:
    """Return the mean over the runs that reached the threshold, and how many did."""
    seen = [r for r in rounds if np.isfinite(r)]
    share = "" if len(seen) == len(rounds) else f" ({len(seen)}/{len(rounds)})"
    return f"{np.mean(seen):.0f}{share}" if seen else "—"


def table_row(
    name: str, runs: Sequence[Trajectory], rival: tuple[str, Sequence[Trajectory]], threshold: float, printed: Reported
) -> dict[str, Any]:
    """Return one line of a table; ``rival`` is the method it is compared with, seed by seed."""
    pairs = list(zip(runs, rival[1], strict=True))
    weights = [c.largest_weight[np.isfinite(c.largest_weight)] for c in runs]
    known = all(w.size for w in weights)
    return {
        "method": name,
        "best": percent([c.best() for c in runs], 2),
        "paper": printed[0],
        f"best − {rival[0]}": percent([c.best() - r.best() for c, r in pairs], 2, sign="+"),
        "last": percent([c.last for c in runs], 2),
        f"last − {rival[0]}": percent([c.last - r.last for c, r in pairs], 2, sign="+"),
        "to": f"{threshold:.0%}",
        "rounds": format_rounds([c.rounds_to(threshold) for c in runs]),
        "paper's": printed[1],
        "smoothed": format_rounds([c.rounds_to(threshold, SMOOTHED) for c in runs]),
        "steps/round": f"{np.mean([c.steps.mean() for c in runs]):.0f}",
        "1000 steps": format_rounds([c.steps_to(threshold) / 1000 for c in runs]),
        "weight": f"{np.max([w.max() for w in weights]):.3g}, {np.mean([w.mean() for w in weights]):.3g}"
        if known
        else "—",
    }


def table_rows(
    runs: Runs, threshold: float, reported: Mapping[str, Reported], rival: str, **where: str
) -> list[dict[str, Any]]:
    """Return a line for every method, each compared with ``rival``."""
    other = rival, runs[rival]
    return [where | table_row(n, r, other, threshold, reported.get(n, UNREPORTED)) for n, r in runs.items()]


def best_accuracies(runs: Sequence[Trajectory]) -> Array:
    """Return the best accuracy of each run, the paper's measure."""
    return np.array([c.best() for c in runs])


def final_accuracies(runs: Sequence[Trajectory]) -> Array:
    """Return the final accuracy of each run."""
    return np.array([c.last for c in runs])


def rounds_to_threshold(runs: Sequence[Trajectory], threshold: float) -> Array:
    """Return the rounds to the threshold; a run that never reached it counts as one round more than it had."""
    return np.array([np.nan_to_num(c.rounds_to(threshold), nan=len(c.steps) + 1.0) for c in runs])


def judge_claims(where: str, runs: Runs, threshold: float, scale: Scale, ours: str = OURS) -> list[Claim]:
    """Judge the claim of all the paper's tables: our sampler is the most accurate and the fastest."""
    others = {n: r for n, r in runs.items() if n.split(",")[0] != ours}  # without variants of ours
    where = f"{where}: " if where else ""
    return [
        judge_lead(
            f"{where}{ours} has the highest best {BEST}",
            best_accuracies(runs[ours]),
            {n: best_accuracies(r) for n, r in others.items()},
            scale,
        ),
        judge_lead(
            f"{where}{ours} has the highest accuracy at the end",
            final_accuracies(runs[ours]),
            {n: final_accuracies(r) for n, r in others.items()},
            scale,
        ),
        judge_lead(
            f"{where}{ours} needs the fewest rounds to {threshold:.0%}",
            rounds_to_threshold(runs[ours], threshold),
            {n: rounds_to_threshold(r, threshold) for n, r in others.items()},
            scale,
            unit=1,
            sign=-1,
        ),
    ]
