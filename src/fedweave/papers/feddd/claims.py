"""FedDD's tables, and how its claims are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, percent
from fedweave.papers.common.scale import Scale
from fedweave.runs.results import Result, to_target

Runs = Mapping[str, Sequence[Result]]  # by method: one per seed

LAST = 10  # last rounds, whose mean is the final accuracy: with three classes per client single rounds vary a lot
TARGETS = (0.8, 0.9, 0.95)  # of FedAvg's final accuracy
READING = (
    f"final is the mean of the last {LAST} rounds, ± the standard deviation over seeds; time is the simulated time to "
    "an accuracy over FedAvg's, in brackets the rounds, — never reached; sent is the share of the whole models' bytes "
    "that went up, messages as they are encoded."
)


def final_accuracies(runs: Sequence[Result]) -> Array:
    """Return the final accuracy of each run."""
    return np.array([np.nanmean(r.rounds["accuracy"][-LAST:]) for r in runs])


def targets_of(runs: Sequence[Result]) -> list[float]:
    """Return the target accuracies: shares of FedAvg's final accuracy."""
    return [np.floor(100 * share * final_accuracies(runs).mean()) / 100 for share in TARGETS]


def relative_times(runs: Sequence[Result], reference: Sequence[Result], target: float) -> Array:
    """Return the time to the target over that of the reference, seed by seed; inf where it was never reached."""

    def seconds(r: Result) -> float:
        return float(to_target(r.rounds, target)["seconds_to_target"] or np.inf)

    return np.array(
        [seconds(r) / seconds(f) if np.isfinite(seconds(f)) else np.inf for r, f in zip(runs, reference, strict=True)]
    )


def format_time(runs: Sequence[Result], reference: Sequence[Result], target: float) -> str:
    """Return relative time and rounds to a target as text."""
    ratio = relative_times(runs, reference, target)
    rounds = [to_target(r.rounds, target)["rounds_to_target"] for r in runs]
    if not np.isfinite(ratio).all():
        return "—" if not np.isfinite(ratio).any() else f"— ({np.isfinite(ratio).sum()} of {ratio.size} seeds)"
    return f"{ratio.mean():.2f} ({np.mean([r or np.nan for r in rounds]):.0f})"


def sent_share(runs: Sequence[Result]) -> float:
    """Return the uploaded share of the bytes of all clients' whole models."""
    shares = [r.rounds["bytes_up"][-1] / (r.rounds["round"].size * whole_bytes(r)) for r in runs]
    return float(np.mean(shares))


def whole_bytes(run: Result) -> int:
    """Return the bytes of all clients' whole models."""
    return int(run.manifest["model"]["fleet_bytes"])


def table_row(where: str, name: str, runs: Sequence[Result], all_runs: Runs, paper: str = "—") -> dict[str, Any]:
    """Return one line of a table of final accuracies and times to targets."""
    reference = all_runs["fedavg"]
    times = {f"time to {t:.0%}": format_time(runs, reference, t) for t in targets_of(reference)}
    return {
        "setting": where,
        "method": name,
        "final": percent(final_accuracies(runs), spread="deviation"),
        "paper, against FedDD": paper,
        **times,
        "round, s": f"{np.mean([r.rounds['seconds'].mean() for r in runs]):.0f}",
        "sent": f"{sent_share(runs):.2f}",
    }


def judge_time(text: str, ours: str, runs: Runs, scale: Scale, others: Sequence[str]) -> Claim:
    """Judge whether ours reaches the highest target in less time than each of the others, on the mean over seeds."""
    if scale == "smoke":
        return Claim.not_run(text)
    target = targets_of(runs["fedavg"])[-1]
    times = {n: relative_times(runs[n], runs["fedavg"], target).mean() for n in (ours, *others)}
    evidence = ", ".join(f"{n} {t:.2f}" if np.isfinite(t) else f"{n} never" for n, t in times.items())
    holds = np.isfinite(times[ours]) and all(times[ours] < times[n] for n in others)
    return Claim.judge(text, bool(holds), f"time to {target:.0%} over FedAvg's: {evidence}")
