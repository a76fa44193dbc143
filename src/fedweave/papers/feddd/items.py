"""FedDD's figures 4–7, 9–10 and 21: the methods under one budget; the others are in ``variants`` and ``single``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.papers.common.claims import Claim, Outcome, item_path, judge_lead, percent, rename_runs
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.feddd.claims import LAST, READING, Runs, final_accuracies, judge_time, sent_share, table_row
from fedweave.papers.feddd.setup import MODELS, SPLITS, FedDDSetup, budget_methods
from fedweave.runs.results import Result

SELECT = ("fedcs", "oort")  # FedDD's rivals under the same budget
# Final accuracy in points against FedDD's, as far as the text says (section 6.3): FedCS, Oort.
HOMOGENEOUS: dict[tuple[str, str], tuple[str, str]] = {
    ("mnist", "iid"): ("about equal", "about equal"),
    ("mnist", "non-iid-a"): ("−1.5", "about equal"),
    ("mnist", "non-iid-b"): ("−5.5", "−1.5"),
    ("fashion_mnist", "iid"): ("about equal", "about equal"),
    ("fashion_mnist", "non-iid-a"): ("−2.2", "−1.7"),
    ("fashion_mnist", "non-iid-b"): ("−4.7", "−2.5"),
    ("cifar10", "iid"): ("about equal", "−3.6"),
    ("cifar10", "non-iid-a"): ("−3.8", "about equal"),
    ("cifar10", "non-iid-b"): ("−8.3", "−2.1"),
}
HETEROGENEOUS: dict[tuple[str, str], tuple[str, str]] = {  # section 6.4, by widths and split
    ("a", "non-iid-a"): ("−17.5", "—"),
    ("a", "non-iid-b"): ("−17.2", "−20.9"),
    ("b", "non-iid-a"): ("−30.6", "−4.9"),
    ("b", "non-iid-b"): ("−33.6", "−26.2"),
}
PUBLISHED_TIMES = {
    None: "The paper's times to a target over FedAvg's: FedDD down to 0.27 (MNIST, IID, 88 %) and 0.40 (CIFAR-10, "
    "non-IID-b, 56 %, which FedCS and Oort never reach); FedDD over FedCS 0.49 and over Oort 0.59 (MNIST, IID).",
    "a": "The paper's times to a target: FedDD over FedAvg 0.20–0.24, over FedCS 0.17–0.53, over Oort 0.21–0.44.",
    "b": "The paper's times to a target: FedDD over FedAvg 0.18–0.34, over FedCS 0.40–0.49, over Oort 0.37–0.77.",
}


def fig7(
    scale: Scale, on_progress: Progress | None = None, data: str | None = None, split: str | None = None
) -> Outcome:
    """Figures 4 to 7: final accuracy and time to targets, clients with equal models."""
    item = item_path("feddd/fig7", data, split)
    return budget(item, [data] if data else list(MODELS), [split] if split else list(SPLITS), None, scale, on_progress)


def fig4(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 4: the IID runs of figure 7."""
    return _split("feddd/fig4", "iid", scale, on_progress, data)


def fig5(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 5: the non-IID-a runs of figure 7."""
    return _split("feddd/fig5", "non-iid-a", scale, on_progress, data)


def fig6(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 6: the non-IID-b runs of figure 7."""
    return _split("feddd/fig6", "non-iid-b", scale, on_progress, data)


def _split(item: str, split: str, scale: Scale, on_progress: Progress | None, data: str | None) -> Outcome:
    return budget(item_path(item, data), [data] if data else list(MODELS), [split], None, scale, on_progress)


def fig10(
    scale: Scale, on_progress: Progress | None = None, data: str | None = None, widths: str | None = None
) -> Outcome:
    """Figures 9 and 10: the same with sub-models of five widths, on CIFAR-10 unless another data set is named."""
    item = item_path("feddd/fig10", data, widths)
    return budget(item, [data or "cifar10"], list(SPLITS), [widths] if widths else ["a", "b"], scale, on_progress)


fig9 = fig10  # the curves of the same runs


def budget(
    item: str,
    data: Sequence[str],
    splits: Sequence[str],
    widths: Sequence[str] | None,
    scale: Scale,
    on_progress: Progress | None,
) -> Outcome:
    """Compare the methods at a budget of 60 per cent, in every setting asked for."""
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    notes: list[str] = []
    shown: list[Result] = []
    for name in data:
        setup = FedDDSetup(name, scale, on_progress)
        for width in widths or [None]:
            try:
                worlds = {split: setup.experiment(split, width) for split in splits}
            except BadInput as missing:
                claims.append(Claim.not_run(f"{name}: FedDD reaches targets first", missing))
                continue
            arms = budget_methods(setup.size.clients)
            found = setup.run({(s, n): replace(e, method=m) for s, e in worlds.items() for n, m in arms.items()})
            for split in splits:
                runs = {n: found[split, n] for n in arms}
                where = ", ".join(filter(None, (name, split, width and f"widths {width}")))
                numbers = HETEROGENEOUS.get((width, split)) if width else HOMOGENEOUS.get((name, split))
                paper: dict[str, str] = dict(zip(SELECT, numbers or (), strict=False))
                rows += [table_row(where, n, runs[n], runs, paper.get(n, "—")) for n in arms]
                claims += judge_claims(where, runs, scale)
                shown += [r for n in arms for r in rename_runs(runs[n], f"{n}, {where}")]
            notes += [setup.describe(worlds[splits[0]]), PUBLISHED_TIMES[width]]
    return Outcome(item, scale, align_columns(rows), claims, (*notes, READING), shown)


def judge_claims(where: str, runs: Runs, scale: Scale) -> list[Claim]:
    """Judge the paper's claims about FedDD in one setting, and dropout on FedACS's cohort."""
    rivals = {n: final_accuracies(runs[n]) for n in SELECT}
    return [
        judge_time(f"{where}: FedDD reaches a target before FedAvg", "feddd", runs, scale, ["fedavg"]),
        judge_time(f"{where}: FedDD reaches a target before FedCS and Oort", "feddd", runs, scale, SELECT),
        judge_lead(f"{where}: FedDD ends above FedCS and Oort", final_accuracies(runs["feddd"]), rivals, scale),
        judge_time(
            f"{where}: beyond the paper, FedDD on FedACS's cohort is sooner still", "feddd_acs", runs, scale, ["feddd"]
        ),
    ]


RARE: dict[str, dict[str, tuple[float, float, float]]] = {  # per cent for labels 0, 1, 2, as far as the text says
    "mnist": {"fedcs": (0, 0, 0), "oort": (np.nan, 36.7, 12.0)},
    "fashion_mnist": {"feddd": (83.1, 94.9, 59.3), "fedcs": (np.nan, 0, 1), "oort": (1.8, 27.8, np.nan)},
    "cifar10": {},
}
RARE_NOTES = {
    "mnist": "The paper's FedDD has 85.0 to 96.2 on all classes.",
    "fashion_mnist": "",
    "cifar10": "The paper's FedDD has 23.6 to 57.2 on the rare classes, FedCS and Oort close to 0.",
}


def fig21(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 21: three rare classes and a budget of 20 per cent, accuracy class by class."""
    rows, claims, notes, shown = [], [], [], []
    for name in [data] if data else list(MODELS):
        setup = FedDDSetup(name, scale, on_progress, rounds=1.25)
        try:
            world = setup.experiment("non-iid-b", data=setup.rare_classes)
        except BadInput as missing:
            claims.append(Claim.not_run(f"{name}: FedDD learns the rare classes", missing))
            continue
        arms = {n: m for n, m in budget_methods(setup.size.clients, keep=0.2).items() if n != "feddd_acs"}
        runs = setup.run({n: replace(world, method=m) for n, m in arms.items()})
        rows += [_rare_row(name, n, r) for n, r in runs.items()]
        claims += _rare_claims(name, runs, scale)
        notes += [setup.describe(world), RARE_NOTES[name]]
        shown += [r for n in arms for r in rename_runs(runs[n], f"{n}, {name}")]
    tail = item_path("feddd/fig21", data)
    reading = f"Accuracy of each class in per cent, mean of the last {LAST} rounds and over seeds; 0, 1 and 2 are rare."
    return Outcome(tail, scale, rows, claims, (*filter(None, notes), reading), shown)


def class_accuracies(runs: Sequence[Result]) -> np.ndarray:
    """Return the final accuracy of each run and class."""
    return np.array([np.nanmean(r.rounds["class_accuracy"][-LAST:], axis=0) for r in runs])


def _rare_row(data: str, name: str, runs: Sequence[Result]) -> dict[str, Any]:
    mean, paper = class_accuracies(runs).mean(0), RARE[data].get(name, ())
    answered = [np.mean([_answer_share(r, c) for r in runs]) for c in range(3)]
    return {
        "data": data,
        "method": name,
        "final": percent(final_accuracies(runs), spread="deviation"),
        **{str(c): f"{100 * a:.0f}" for c, a in enumerate(mean)},
        "paper, 0 1 2": " ".join("?" if np.isnan(v) else f"{v:g}" for v in paper) or "—",
        "owners heard, 0 1 2": " ".join(f"{share:.2f}" for share in answered),
        "sent": f"{sent_share(runs):.2f}",
    }


def _answer_share(run: Result, label: int) -> float:
    """Return the share of the clients with this class that answered at least once after the first round."""
    owners = np.flatnonzero(np.asarray(run.manifest["labels"])[:, label])
    answered = np.unique(run.clients["client"][(run.clients["round"] > 1) & (run.clients["received"] == 1)])
    return float(np.isin(owners, answered).mean())


def _rare_claims(data: str, runs: Runs, scale: Scale) -> list[Claim]:
    rare = {n: class_accuracies(r)[:, :3].mean(1) for n, r in runs.items()}
    claims = [
        judge_lead(f"{data}: FedDD is better on the rare classes than {n}", rare["feddd"], {n: rare[n]}, scale)
        for n in SELECT
    ]
    text = f"{data}: FedDD is as good as FedAvg on the rare classes, within five points"
    if scale == "smoke":
        return [*claims, Claim.not_run(text)]
    ours, theirs = 100 * rare["feddd"].mean(), 100 * rare["fedavg"].mean()
    return [*claims, Claim.judge(text, ours > theirs - 5, f"{ours:.1f} against {theirs:.1f}")]


def align_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the same columns, because targets differ between settings."""
    columns = dict.fromkeys(chain.from_iterable(rows))
    order = sorted(columns, key=lambda c: c.startswith("time to"))
    return [{c: r.get(c, "") for c in order} for r in rows]
