"""Does it matter that inverse-probability weights sum to one only on average? Three estimators under three laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from fedweave.aggregate import InverseProbability, Models
from fedweave.core.roles import Aggregator
from fedweave.papers.common.claims import Claim, Outcome
from fedweave.papers.common.parallel import Progress, run_in_order
from fedweave.papers.common.scale import Scale
from fedweave.papers.latency.training import (
    BENCHMARKS,
    SIZES,
    Job,
    Trajectory,
    paper_method,
    train_once,
    unavailable_reason,
)

DATASET, SETTING = "fashion_mnist", "dir"
ESTIMATORS: dict[str, Aggregator] = {
    "updates": InverseProbability(),
    "self-normalised": InverseProbability("weights"),
    "models": Models(),
}
LAWS = ("uniform", "ours")


def weights(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Compare the estimators on Dirichlet(0.1) data; and ratio selection, whose weights always sum to one."""
    size, benchmark = SIZES[scale], BENCHMARKS[DATASET]
    if (reason := unavailable_reason(DATASET, scale)) is not None:
        claim = Claim.not_run("the random total of the weights matters", reason)
        return Outcome("latency/weights", scale, [{"data": DATASET}], [claim])
    kinds = [("ratio", "updates"), *product(LAWS, ESTIMATORS)]
    jobs = []
    for (law, estimator), seed in product(kinds, range(size.seeds)):
        method = replace(paper_method(law, benchmark.per_round, size.trial), aggregator=ESTIMATORS[estimator])
        jobs.append((Job(DATASET, SETTING, law, "uniform", seed), size, method))
    trajectories: list[Trajectory] = run_in_order(train_once, jobs, on_progress)
    found = {kind: trajectories[i * size.seeds : (i + 1) * size.seeds] for i, kind in enumerate(kinds)}
    late = {kind: np.array([w.loss[-size.rounds // 4 :].mean() for w in some]) for kind, some in found.items()}
    rows = [
        {
            "law": law,
            "estimator": estimator,
            "deviation of the weights' total": _total_deviation(found[law, estimator], benchmark.per_round),
            "loss, last quarter": float(late[law, estimator].mean()),
            "best loss": float(np.mean([w.loss.min() for w in found[law, estimator]])),
            "accuracy, last quarter": float(
                np.mean([w.accuracy[-size.rounds // 4 :].mean() for w in found[law, estimator]])
            ),
        }
        for law, estimator in kinds
    ]
    claims = [
        _judge_loss(
            f"{law}: self-normalised weights give a lower loss than plain ones", late, law, "self-normalised", "updates"
        )
        for law in LAWS
    ] + [
        _judge_loss(
            f"{law}: summing updates gives a lower loss than summing models (eq. 4)", late, law, "updates", "models"
        )
        for law in LAWS
    ]
    notes = (
        f"{size.seeds} seeds, {size.rounds} rounds, {DATASET}, {SETTING}. No claim of the paper: it sees no total.",
    )
    return Outcome("latency/weights", scale, rows, claims, notes)


def _total_deviation(trajectories: list[Trajectory], draws: int) -> float:
    """Return the standard deviation of Σ c d/(M p) at the law of the end: √((Σ d²/p − 1)/M), mean over seeds."""
    return float(np.mean([np.sqrt(max((w.weight**2 / w.law).sum() - 1, 0.0) / draws) for w in trajectories]))


def _judge_loss(text: str, late: dict[tuple[str, str], Any], law: str, better: str, worse: str) -> Claim:
    """Judge by paired differences over the seeds, two standard errors."""
    gain = late[law, worse] - late[law, better]
    losses = f"{late[law, better].mean():.3f} against {late[law, worse].mean():.3f}"
    if gain.size < 3:
        return Claim.not_run(text, f"{gain.size} seed cannot tell: {losses}")
    error = float(gain.std(ddof=1) / np.sqrt(gain.size))
    return Claim.judge(text, bool(gain.mean() > 2 * error), f"{losses}, difference {gain.mean():.3f} ± {error:.3f}")
