"""FedDD's figures 2 and 3: what a label's share of the data and the width of a model do to one learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data import Dataset
from fedweave.data.partition import IID
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told
from fedweave.papers.common.training import spread
from fedweave.papers.feddd.judge import finals, percent
from fedweave.papers.feddd.stage import MODELS, WIDTHS, Stage
from fedweave.runs.results import Result

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def with_share(data: Dataset, label: int, share: float, size: int) -> Dataset:
    """Return ``size`` training samples of which this share has the label and all others are alike."""
    mine = round(share * size)
    each, rest = divmod(size - mine, data.classes - 1)
    want = [mine if c == label else each + (rest > c) for c in range(data.classes)]
    chosen = np.sort(np.concatenate([np.flatnonzero(data.y == c)[:n] for c, n in enumerate(want)]))
    return replace(data, x=data.x[chosen], y=data.y[chosen], group=None, source=None)


def fig2(scale: Scale, told: Told | None = None, data: str | None = None) -> Outcome:
    """Figure 2: accuracy of a class over its share of the data, one learner."""
    rows: list[dict[str, Any]] = []
    said: list[Claim] = []
    notes: list[str] = []
    text = "accuracy of a class rises with its share of the data, and less above 1/C than below"
    for name in [data] if data else list(MODELS):
        stage = Stage(name, scale, told, rounds=0.5)
        try:
            pool, plain = stage.samples, stage.experiment("iid", partition=IID(1))
        except BadInput as missing:
            said.append(Claim(f"{name}: {text}", "not run at this scale", str(missing)))
            continue
        size = int(np.bincount(pool.y).min() / max(SHARES))
        label = 2  # pullovers, twos, birds: neither the easiest nor the hardest
        worlds = {p: replace(plain, data=with_share(pool, label, p, min(size, len(pool.y)))) for p in SHARES}
        runs = stage.run(worlds)
        mean = {p: _class(r, label) for p, r in runs.items()}
        rows.append({"data": name, "class": label, **{f"{p:.0%}": f"{100 * a.mean():.0f}" for p, a in mean.items()}})
        below = np.mean(mean[0.1] - mean[0.01]) / 0.09
        above = np.mean(mean[0.4] - mean[0.1]) / 0.3
        slopes = f"{10 * below:.1f} points per tenth of the data below 1/C, {10 * above:.1f} above"
        rises = all(mean[a].mean() <= mean[b].mean() + 0.02 for a, b in pairwise(SHARES))
        verdict = Claim.judged(f"{name}: {text}", rises and bool(below > above), slopes)
        said.append(verdict if scale != "smoke" else replace(verdict, verdict="not run at this scale"))
        notes.append(stage.note(worlds[SHARES[0]]))
    return Outcome("/".join(filter(None, ("feddd/fig2", data))), scale, rows, said, notes)


def _class(runs: Sequence[Result], label: int) -> np.ndarray:
    return np.array([np.nanmean(r.rounds["class_accuracy"][-5:, label]) for r in runs])


def fig3(scale: Scale, told: Told | None = None, data: str | None = None) -> Outcome:
    """Figure 3: training loss of FedAvg with each of the five widths b, IID, on CIFAR-10 unless another is named."""
    stage, item = Stage(data or "cifar10", scale, told, rounds=0.5), "/".join(filter(None, ("feddd/fig3", data)))
    text = "a wider model has a lower training loss in the same round"
    widths = WIDTHS.get(f"{stage.data}/b", WIDTHS["b"])
    try:
        worlds = {w: stage.experiment("iid", "b", submodels=(w,)) for w in widths}
    except BadInput as missing:
        return Outcome(item, scale, [], [Claim(text, "not run at this scale", str(missing))])
    runs = stage.run(worlds)
    loss = {w: np.array([np.nanmean(r.rounds["train_loss"][-5:]) for r in rs]) for w, rs in runs.items()}
    rows = [
        {"width": str(w), "train loss, end": f"{loss[w].mean():.4f}", "final": percent(finals(rs))}
        for w, rs in runs.items()
    ]
    lead, error = spread((loss[widths[-1]] - loss[widths[0]]).tolist())
    claim = Claim.judged(text, lead > 2 * error, f"narrowest − widest: {lead:.3f} ± {error:.3f}")
    if scale == "smoke":
        claim = Claim(text, "not run at this scale", "too few rounds and seeds")
    return Outcome(item, scale, rows, [claim], [stage.note(worlds[widths[0]])])
