"""Run studies: the missing runs on all cores, kept as they finish; within a budget; tuned where asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.papers.common import parallel
from fedweave.papers.common.cache import keep_run, load_run, name_run, run_facts
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Outcome, Records, Study, is_trained
from fedweave.papers.common.unfinished import Key, Origins, Unfinished
from fedweave.runs.experiment import Experiment

TUNING_SEEDS = (1001, 1002)  # never those of a test
FACTORS = (0.3, 1.0, 3.0)  # of the learning rate
EXTENSIONS = 3  # how often the grid grows where a best value lies at its edge


class OutOfTime(Exception):  # noqa: N818 - named for what happened
    """The budget ended before an item was finished; the finished runs are kept."""

    def __init__(self, done: int, total: int):
        super().__init__(f"{done} of {total} runs are done")
        self.done, self.total = done, total


@dataclass(frozen=True)
class Limits:
    """When to stop, and what to call with the number of finished runs."""

    deadline: float = float("inf")  # as time.monotonic() counts
    on_progress: parallel.Progress | None = None
    unfinished: Unfinished | None = None  # runs of earlier sittings


def reproduce_study(study: Study, scale: Scale, limits: Limits, tune: bool = False) -> Outcome:
    """Return what a study comes to; runs that were kept are not repeated."""
    columns = {column: study.experiments(scale, column) for column in ("paper", *study.columns)}
    if tune or "tuned" in columns:
        columns["tuned"] = tuned_arms(study, columns["paper"], limits)
    seeds = range(study.seeds[scale])
    calls = {
        (c, arm, seed): (each, seed) for seed in seeds for c, arms in columns.items() for arm, each in arms.items()
    }
    origins = Origins()
    found = run_kept(study.work, calls, limits, origins)
    records: dict[str, Records] = {
        c: {arm: [found[c, arm, seed] for seed in seeds] for arm in arms} for c, arms in columns.items()
    }
    tuned = columns if "tuned" in columns else {}
    rates = {c: {arm: each.lr for arm, each in arms.items()} for c, arms in tuned.items()}
    return Outcome(study, scale, records, rates, origins.plain())


def run_kept(
    work: Callable[[Any, int], Record],
    calls: Mapping[Key, tuple[Any, int]],
    limits: Limits,
    origins: Origins | None = None,
) -> dict[Key, Record]:
    """Return the record of every call: kept ones are read, the others are run and kept, each as soon as it is there."""
    facts = {key: run_facts(work, *call) for key, call in calls.items()}
    names = {key: each.name for key, each in facts.items()}
    found = {name: record for name in dict.fromkeys(names.values()) if (record := load_run(name)) is not None}
    earlier = limits.unfinished.find(facts, found) if limits.unfinished else {}
    found |= earlier
    first = {name: key for key, name in reversed(names.items())}
    missing = {
        name: (work, name, *calls[key]) for key, name in names.items() if name not in found and first[name] == key
    }
    total = len(found) + len(missing)
    if limits.on_progress:
        limits.on_progress(len(found), total)
    try:
        for name, record in parallel.run_as_ready(_run_and_keep, _until(missing, limits.deadline)):
            found[name] = record
            if limits.on_progress:
                limits.on_progress(len(found), total)
    finally:
        if limits.unfinished:
            limits.unfinished.add(facts, {name: record for name, record in found.items() if name not in earlier})
    if len(found) < total:
        raise OutOfTime(len(found), total)
    if origins is not None:
        for key, each in facts.items():
            origins.add(key, each, limits.unfinished)
    return {key: found[name] for key, name in names.items()}


def _until(calls: Mapping[str, tuple[Any, ...]], deadline: float) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, call in calls.items():
        if time.monotonic() >= deadline:
            return
        yield key, call


def _run_and_keep(work: Callable[[Any, int], Record], name: str, arm: Any, seed: int) -> Record:
    begun = os.times()
    record = work(arm, seed)
    *processor, wall = (after - before for after, before in zip(os.times(), begun, strict=True))
    cost = {"processor_seconds": sum(processor), "wall_seconds": wall}  # with the processes that it has waited for
    record = record._replace(values={**record.values, "cost": cost})
    keep_run(name, record)
    crash_point("reproduce: run kept")
    return record


def estimate_seconds(study: Study, scale: Scale) -> float | None:
    """Return about how long the missing runs of a study would take on one core; None where nobody knows.

    Three rounds of its first missing experiment are run and timed.
    """
    calls = [
        (arm, seed)
        for column in ("paper", *study.columns)
        for arm in study.experiments(scale, column).values()
        for seed in range(study.seeds[scale])
    ]
    missing = [arm for arm, seed in calls if load_run(name_run(study.work, arm, seed)) is None]
    if not missing:
        return 0.0
    if not is_trained(missing[0]):
        return None
    return sum(arm.rounds for arm in missing) * _round_seconds(missing[0])


def _round_seconds(experiment: Experiment) -> float:
    from fedweave.runs.loop import run  # needs torch, which items are chosen without

    trial = run(replace(experiment, rounds=min(3, experiment.rounds), workers=1), progress=False)
    wall = trial.rounds["wall_seconds"]
    return float((wall[-1] - wall[0]) / (wall.size - 1)) if wall.size > 1 else float(wall[-1])


def tuned_arms(study: Study, arms: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return every arm at its best learning rate ``lr``."""
    best = {arm: max(scores, key=scores.__getitem__) for arm, scores in tuning_scores(study, arms, limits).items()}
    return {arm: replace(each, lr=each.lr * best[arm]) for arm, each in arms.items()}


def tuning_scores(study: Study, arms: Mapping[str, Any], limits: Limits) -> dict[str, dict[float, float]]:
    """Return the score of every arm at every factor of its learning rate, in rising order.

    Trials have seeds of their own and a validation split, and every method gets the same number of them. Where a best
    value lies at the edge of the grid, the grid grows there, for all methods (protocol, 5).
    """
    if not all(hasattr(arm, "lr") for arm in arms.values()):
        raise BadInput(f"--tune: {study.name} has no learning rates to tune.")
    factors, scores = list(FACTORS), dict[tuple[str, float], float]()
    for _ in range(EXTENSIONS + 1):
        new = [(arm, f) for arm in arms for f in factors if (arm, f) not in scores]
        calls = {
            ("tune", f"{arm}@{f:g}", seed): (tuning_trial(arms[arm], f), seed)
            for arm, f in new
            for seed in TUNING_SEEDS
        }
        found = run_kept(study.work, calls, limits)
        for arm, f in new:
            scores[arm, f] = float(np.mean([_score(found["tune", f"{arm}@{f:g}", s]) for s in TUNING_SEEDS]))
        best = {max(factors, key=lambda f, arm=arm: scores[arm, f]) for arm in arms}
        grown = [min(factors) * 0.3] * (min(factors) in best) + [max(factors) * 3] * (max(factors) in best)
        if not grown:
            break
        factors = sorted((*factors, *grown))
    return {arm: {f: scores[arm, f] for f in factors if (arm, f) in scores} for arm in arms}


def tuning_trial(arm: Any, factor: float) -> Any:
    """Return an arm with another learning rate, evaluated on a validation split where it trains on data."""
    return replace(arm, lr=arm.lr * factor, **({"validation": 0.2} if is_trained(arm) else {}))


def _score(record: Record) -> float:
    """Return what is tuned for: the mean accuracy of the last tenth of the rounds; lower loss where there is none."""
    tail = max(record.rounds["round"].size // 10, 1)
    accuracy = record.rounds["accuracy"][-tail:]
    if np.isfinite(accuracy).any():
        return float(np.nanmean(accuracy))
    loss = float(np.nanmean(record.rounds["loss"][-tail:]))
    return -loss if np.isfinite(loss) else -np.inf


def in_order(studies: Sequence[Study], order: Sequence[str]) -> list[Study]:
    """Return studies in the ledger's order of importance, those that decide no claim last."""
    rank = {name: i for i, name in reversed(list(enumerate(order)))}
    return sorted(studies, key=lambda s: rank.get(s.name, len(rank)))
