"""How much α decides: plans for the estimate of eq. 27 and for bolder ones, what they promise and what they keep."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told, on_all_cores
from fedweave.papers.latency.table import Ratio
from fedweave.papers.latency.training import (
    BENCHES,
    SIZES,
    Job,
    Size,
    Walk,
    clock,
    paper_method,
    smoothed,
    trained,
    why_not,
)
from fedweave.sample import LatencyOptimal
from fedweave.theory import expected_round_seconds

DATASET, WORLD, SETTINGS = "fashion_mnist", "uniform", ("iid", "dir")
BOLDNESS: dict[str, float | None] = {"eq. 27": None, "1": 1.0, "10": 10.0}
MOST_SEEDS = 3


def alpha(scale: Scale, told: Told | None = None) -> Outcome:
    """Compare plans of other boldness with uniform selection, in time to the lowest loss that all of them reach."""
    size, draws = SIZES[scale], BENCHES[DATASET].per_round
    size = size._replace(seeds=min(size.seeds, MOST_SEEDS))
    if (reason := why_not(DATASET, scale)) is not None:
        claim = Claim("a larger α makes training faster", "not run at this scale", reason)
        return Outcome("latency/alpha", scale, [{"data": DATASET}], [claim])
    plain, jobs = paper_method("ours", draws, size.trial), []
    assert isinstance(plain.sampler, LatencyOptimal)
    for setting, seed in product(SETTINGS, range(size.seeds)):
        jobs.append((Job(DATASET, setting, "uniform", WORLD, seed), size))
        for boldness in BOLDNESS.values():
            method = replace(plain, sampler=replace(plain.sampler, boldness=boldness))
            jobs.append((Job(DATASET, setting, "ours", WORLD, seed), size, method))
    walks = iter(on_all_cores(trained, jobs, told))
    found = {
        (setting, seed): {name: next(walks) for name in ("uniform", *BOLDNESS)}
        for setting, seed in product(SETTINGS, range(size.seeds))
    }
    rows = [
        _row(setting, name, [found[setting, seed] for seed in range(size.seeds)], draws)
        for setting, name in product(SETTINGS, BOLDNESS)
    ]
    claims = [_claim(setting, [r for r in rows if r["setting"] == setting], size) for setting in SETTINGS]
    how = f"{size.seeds} seeds, {size.rounds} rounds of which {size.trial} trial, uniform latencies."
    units = "α is in units of the data's part of the bound, (1/M) Σ d G²; gains are over uniform selection, in time to "
    notes = (how, units + "the lowest loss (mean of five rounds) that all reach.")
    return Outcome("latency/alpha", scale, rows, claims, notes)


def _row(setting: str, name: str, runs: list[dict[str, Walk]], draws: int) -> dict[str, object]:
    """Return one boldness in one setting: what the objective promises over uniform selection, and what was gained."""
    gained, promised, share, seconds = [], [], [], []
    for run in runs:
        mine, target = run[name], max(float(smoothed(w.loss).min()) for w in run.values())
        reached = [clock(run[n], WORLD)[np.argmax(smoothed(run[n].loss) <= target)] for n in (name, "uniform")]
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
        "loss at the end": float(np.mean([smoothed(run[name].loss)[-1] for run in runs])),
        "uniform's": float(np.mean([smoothed(run["uniform"].loss)[-1] for run in runs])),
    }


def _claim(setting: str, rows: list[dict[str, object]], size: Size) -> Claim:
    told = ", ".join(f"{r['boldness']}: {r['gain']:.2f}× gained, {r['promised gain']:.2f}× promised" for r in rows)
    text = f"{setting}: the bolder the plan, the more time it saves"
    if size.seeds < MOST_SEEDS:
        return Claim(text, "not run at this scale", f"{size.seeds} seed cannot tell: {told}")
    gains = [float(str(r["gain"])) for r in rows]
    return Claim.judged(text, gains == sorted(gains), told)
