"""FedDD's figures 2 and 3: the effect of a label's share of the data and of a model's width on one learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data import Dataset
from fedweave.data.partition import IID
from fedweave.papers.common.claims import Claim, Outcome, item_path, mean_and_error, percent
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.feddd.claims import final_accuracies
from fedweave.papers.feddd.setup import MODELS, WIDTHS, FedDDSetup
from fedweave.runs.results import Result

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)


def subset_with_share(data: Dataset, label: int, share: float, size: int) -> Dataset:
    """Return ``size`` training samples: this share has the label, the other labels are equally common."""
    mine = round(share * size)
    each, rest = divmod(size - mine, data.classes - 1)
    want = [mine if c == label else each + (rest > c) for c in range(data.classes)]
    chosen = np.sort(np.concatenate([np.flatnonzero(data.y == c)[:n] for c, n in enumerate(want)]))
    return replace(data, x=data.x[chosen], y=data.y[chosen], group=None)


def fig2(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 2: accuracy of a class over its share of the data, one learner."""
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    notes: list[str] = []
    text = "accuracy of a class rises with its share of the data, and less above 1/C than below"
    for name in [data] if data else list(MODELS):
        setup = FedDDSetup(name, scale, on_progress, rounds=0.5)
        try:
            pool, plain = setup.samples, setup.experiment("iid", partition=IID(1))
        except BadInput as missing:
            claims.append(Claim.not_run(f"{name}: {text}", missing))
            continue
        size = int(np.bincount(pool.y).min() / max(SHARES))
        label = 2  # pullovers, twos, birds: neither the easiest nor the hardest
        worlds = {p: replace(plain, data=subset_with_share(pool, label, p, min(size, len(pool.y)))) for p in SHARES}
        runs = setup.run(worlds)
        mean = {p: _class_accuracy(r, label) for p, r in runs.items()}
        rows.append({"data": name, "class": label, **{f"{p:.0%}": f"{100 * a.mean():.0f}" for p, a in mean.items()}})
        below = np.mean(mean[0.1] - mean[0.01]) / 0.09
        above = np.mean(mean[0.4] - mean[0.1]) / 0.3
        slopes = f"{10 * below:.1f} points per tenth of the data below 1/C, {10 * above:.1f} above"
        rises = all(mean[a].mean() <= mean[b].mean() + 0.02 for a, b in pairwise(SHARES))
        verdict = Claim.judge(f"{name}: {text}", rises and bool(below > above), slopes)
        claims.append(verdict if scale != "smoke" else Claim.not_run(verdict.text, verdict.evidence))
        notes.append(setup.describe(worlds[SHARES[0]]))
    return Outcome(item_path("feddd/fig2", data), scale, rows, claims, notes)


def _class_accuracy(runs: Sequence[Result], label: int) -> np.ndarray:
    return np.array([np.nanmean(r.rounds["class_accuracy"][-5:, label]) for r in runs])


def fig3(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 3: training loss of FedAvg with each of the five widths b, IID, on CIFAR-10 unless another is named."""
    setup, item = FedDDSetup(data or "cifar10", scale, on_progress, rounds=0.5), item_path("feddd/fig3", data)
    text = "a wider model has a lower training loss in the same round"
    widths = WIDTHS.get(f"{setup.data}/b", WIDTHS["b"])
    try:
        worlds = {w: setup.experiment("iid", "b", submodels=(w,)) for w in widths}
    except BadInput as missing:
        return Outcome.not_run(item, scale, text, missing)
    runs = setup.run(worlds)
    loss = {w: np.array([np.nanmean(r.rounds["train_loss"][-5:]) for r in rs]) for w, rs in runs.items()}
    rows = [
        {
            "width": str(w),
            "train loss, end": f"{loss[w].mean():.4f}",
            "final": percent(final_accuracies(rs), spread="deviation"),
        }
        for w, rs in runs.items()
    ]
    lead, error = mean_and_error((loss[widths[-1]] - loss[widths[0]]).tolist())
    claim = Claim.judge(text, lead > 2 * error, f"narrowest − widest: {lead:.3f} ± {error:.3f}")
    if scale == "smoke":
        claim = Claim.not_run(text)
    return Outcome(item, scale, rows, [claim], [setup.describe(worlds[widths[0]])])
