"""The effect of α: predicted and measured gains of plans with the estimate of eq. 27 and with larger values."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from fedweave.papers.common.claims import Claim, Outcome
from fedweave.papers.common.parallel import Progress, run_in_order
from fedweave.papers.common.scale import Scale
from fedweave.papers.latency.table import Ratio
from fedweave.papers.latency.training import (
    BENCHMARKS,
    SIZES,
    Job,
    TrainingSize,
    Trajectory,
    clock,
    paper_method,
    smooth,
    train_once,
    unavailable_reason,
)
from fedweave.sample import LatencyOptimal
from fedweave.theory import expected_round_seconds

DATASET, WORLD, SETTINGS = "fashion_mnist", "uniform", ("iid", "dir")
BOLDNESS: dict[str, float | None] = {"eq. 27": None, "1": 1.0, "10": 10.0}
MOST_SEEDS = 3


def alpha(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Compare plans of other boldness with uniform selection, in time to the lowest loss that all of them reach."""
    size, draws = SIZES[scale], BENCHMARKS[DATASET].per_round
    size = replace(size, seeds=min(size.seeds, MOST_SEEDS))
    if (reason := unavailable_reason(DATASET, scale)) is not None:
        claim = Claim.not_run("a larger α makes training faster", reason)
        return Outcome("latency/alpha", scale, [{"data": DATASET}], [claim])
    plain, jobs = paper_method("ours", draws, size.trial), []
    assert isinstance(plain.sampler, LatencyOptimal)
    for setting, seed in product(SETTINGS, range(size.seeds)):
        jobs.append((Job(DATASET, setting, "uniform", WORLD, seed), size))
        for boldness in BOLDNESS.values():
            method = replace(plain, sampler=replace(plain.sampler, boldness=boldness))
            jobs.append((Job(DATASET, setting, "ours", WORLD, seed), size, method))
    trajectories = iter(run_in_order(train_once, jobs, on_progress))
    found = {
        (setting, seed): {name: next(trajectories) for name in ("uniform", *BOLDNESS)}
        for setting, seed in product(SETTINGS, range(size.seeds))
    }
    rows = [
        _row(setting, name, [found[setting, seed] for seed in range(size.seeds)], draws)
        for setting, name in product(SETTINGS, BOLDNESS)
    ]
    claims = [_judge_boldness(setting, [r for r in rows if r["setting"] == setting], size) for setting in SETTINGS]
    how = f"{size.seeds} seeds, {size.rounds} rounds of which {size.trial} trial, uniform latencies."
    units = "α is in units of the data's part of the bound, (1/M) Σ d G²; gains are over uniform selection, in time to "
    notes = (how, units + "the lowest loss (mean of five rounds) that all reach.")
    return Outcome("latency/alpha", scale, rows, claims, notes)


def _row(setting: str, name: str, runs: list[dict[str, Trajectory]], draws: int) -> dict[str, object]:
    """Return one boldness in one setting: the predicted and the measured gain over uniform selection."""
    gained, promised, share, seconds = [], [], [], []
    for run in runs:
        mine, target = run[name], max(float(smooth(w.loss).min()) for w in run.values())
        reached = [clock(run[n], WORLD)[np.argmax(smooth(run[n].loss) <= target)] for n in (name, "uniform")]
        gained.append(reached[1] / reached[0])
        assert mine.square is not None
        assert mine.alpha is not None
        factor, costs = mine.weight**2 * mine.square, []
        for p in (run["uniform"].law, mine.law):
            A = expected_round_seconds(p, mine.latency[WORLD], draws)
            costs.append(A * (mine.alpha + float((factor / p).sum()) / draws) ** 2)
        promised.append(costs[0] / costs[1])
        share.append(mine.alpha / (float(mine.weight @ mine.square) / draws))
        seconds.append(expected_round_seconds(mine.law, mine.latency[WORLD], draws))
    ratio = Ratio.of(gained)
    return {
        "setting": setting,
        "boldness": name,
        "α": float(np.mean(share)),
        "A(p)": float(np.mean(seconds)),
        "promised gain": float(np.mean(promised)),
        "gain": ratio.mean,
        "±, %": 100 * (ratio.error - 1) if len(gained) > 1 else None,
        "loss at the end": float(np.mean([smooth(run[name].loss)[-1] for run in runs])),
        "uniform's": float(np.mean([smooth(run["uniform"].loss)[-1] for run in runs])),
    }


def _judge_boldness(setting: str, rows: list[dict[str, object]], size: TrainingSize) -> Claim:
    evidence = ", ".join(f"{r['boldness']}: {r['gain']:.2f}× gained, {r['promised gain']:.2f}× promised" for r in rows)
    text = f"{setting}: the bolder the plan, the more time it saves"
    if size.seeds < MOST_SEEDS:
        return Claim.not_run(text, f"{size.seeds} seed cannot tell: {evidence}")
    gains = [float(str(r["gain"])) for r in rows]
    return Claim.judge(text, gains == sorted(gains), evidence)
