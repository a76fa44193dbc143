"""FedDD's figures 11–20: other choices of channels, other budgets, penalties and periods of the full broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, judge_lead, percent, rename_runs
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.feddd.claims import Runs, final_accuracies, sent_share
from fedweave.papers.feddd.setup import SPLITS, FedDDSetup, budget_methods, dropout
from fedweave.runs.results import Result

Arms = Callable[[FedDDSetup], Mapping[str, Method]]
Judge = Callable[[str, Runs, Scale], list[Claim]]

CHOICES = ("importance", "random", "max", "delta", "ordered")
PAPER_ON_CHOICES = {
    "fig11": "The paper, MNIST: all alike under IID and non-IID-a; under non-IID-b random is slower, max and ordered "
    "end far below.",
    "fig12": "The paper, Fashion-MNIST: all alike under IID and non-IID-a; under non-IID-b FedDD's choice is best, "
    "then ordered, delta, random, max.",
    "fig13": "The paper, CIFAR-10: FedDD's choice is best everywhere; second is max under IID, delta otherwise.",
    "fig14": "The paper, CIFAR-10 with ten clients and h = 1: all alike under IID; otherwise FedDD's choice is best.",
    "fig15": "The paper, CIFAR-10 with sub-models: FedDD's choice is best in all six settings.",
}


def _choices(
    figure: str, data: str, scale: Scale, on_progress: Progress | None, widths: Sequence[str | None], **more: Any
) -> Outcome:
    def arms(setup: FedDDSetup) -> dict[str, Method]:
        return {c: dropout(c, choose=c, **more) for c in CHOICES}

    def judge(where: str, runs: Runs, scale: Scale) -> list[Claim]:
        others = {c: final_accuracies(runs[c]) for c in CHOICES[1:]}
        return [
            judge_lead(
                f"{where}: FedDD's choice of channels ends highest", final_accuracies(runs["importance"]), others, scale
            )
        ]

    paper = PAPER_ON_CHOICES[figure]
    return compare(f"feddd/{figure}", data, list(SPLITS), widths, arms, judge, scale, on_progress, paper)


def fig11(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 11: choices of channels on MNIST."""
    return _choices("fig11", "mnist", scale, on_progress, [None])


def fig12(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 12: choices of channels on Fashion-MNIST."""
    return _choices("fig12", "fashion_mnist", scale, on_progress, [None])


def fig13(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 13: choices of channels on CIFAR-10."""
    return _choices("fig13", "cifar10", scale, on_progress, [None])


def fig14(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 14: the testbed's settings, simulated: full broadcast every round."""
    return _choices("fig14", "cifar10", scale, on_progress, [None], refresh=1)


def fig15(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 15: choices of channels with sub-models, on CIFAR-10 unless another data set is named."""
    return _choices("fig15", data or "cifar10", scale, on_progress, ["a", "b"])


BUDGETS = (0.2, 0.4, 0.6, 0.8)
PAPER_ON_BUDGETS = (
    "The paper, from a budget of 80 % to one of 20 %: FedDD loses 0.1 to 11.5 points over all settings, FedCS 3.7 to "
    "47.5, Oort 2.3 to 43.0."
)


def fig16(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 16: budgets, clients with equal models."""
    names = [data] if data else ["mnist", "fashion_mnist", "cifar10"]
    return join_outcomes("feddd/fig16", [_budgets("feddd/fig16", n, [None], scale, on_progress) for n in names])


def fig17(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 17: budgets with sub-models, on CIFAR-10 unless another data set is named."""
    return _budgets("feddd/fig17", data or "cifar10", ["a", "b"], scale, on_progress)


def _budgets(item: str, data: str, widths: Sequence[str | None], scale: Scale, on_progress: Progress | None) -> Outcome:
    def arms(setup: FedDDSetup) -> dict[str, Method]:
        under = {keep: budget_methods(setup.size.clients, keep) for keep in BUDGETS}
        return {f"{n}, {keep:.0%}": under[keep][n] for n in ("feddd", "fedcs", "oort") for keep in BUDGETS}

    def judge(where: str, runs: Runs, scale: Scale) -> list[Claim]:
        lost = {
            n: final_accuracies(runs[f"{n}, 80%"]) - final_accuracies(runs[f"{n}, 20%"])
            for n in ("feddd", "fedcs", "oort")
        }
        return [
            judge_lead(f"{where}: FedDD loses less from 80 % to 20 % than {n}", -lost["feddd"], {n: -lost[n]}, scale)
            for n in ("fedcs", "oort")
        ]

    return compare(item, data, ["non-iid-a", "non-iid-b"], widths, arms, judge, scale, on_progress, PAPER_ON_BUDGETS)


PENALTIES = (0.0, 0.1, 1.0, 10.0)


def fig18(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 18: penalties, in units of the round over the contributions, and one in seconds; with sub-models."""

    def arms(setup: FedDDSetup) -> dict[str, Method]:
        relative = {f"δ = {p:g}": dropout(f"δ = {p:g}", penalty=p) for p in PENALTIES}
        return {**relative, "δ = 1 s": dropout("δ = 1 s", penalty=1.0, unit="seconds")}

    def judge(where: str, runs: Runs, scale: Scale) -> list[Claim]:
        some = {p: final_accuracies(runs[f"δ = {p:g}"]) for p in PENALTIES[1:]}
        best = max(some, key=lambda p: some[p].mean())
        text = f"{where}: a penalty above 0 ends higher (here δ = {best:g})"
        influence = max(float(np.nanmax(r.rounds["dropout_influence"])) for r in runs["δ = 1 s"])
        return [
            judge_lead(text, some[best], {"δ = 0": final_accuracies(runs["δ = 0"])}, scale),
            Claim.judge(
                f"{where}: in seconds, as the paper writes it, δ = 1 has an influence on the rates",
                influence > 1e-6,
                f"largest change of a rate {influence:.2g}",
            ),
        ]

    paper = "The paper: δ = 0 minds the time alone; a δ above 0 takes longer and ends higher. It prints no values."
    return compare("feddd/fig18", data or "cifar10", ["non-iid-a"], ["a", "b"], arms, judge, scale, on_progress, paper)


PERIODS = (1, 5, 10, 20)


def fig19(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 19: rounds between full broadcasts, on CIFAR-10 unless another data set is named."""
    return _periods("feddd/fig19", data or "cifar10", list(SPLITS), [None], scale, on_progress)


def fig20(scale: Scale, on_progress: Progress | None = None, data: str | None = None) -> Outcome:
    """Figure 20: rounds between full broadcasts with sub-models."""
    return _periods("feddd/fig20", data or "cifar10", ["non-iid-a"], ["a", "b"], scale, on_progress)


def _periods(
    item: str,
    data: str,
    splits: Sequence[str],
    widths: Sequence[str | None],
    scale: Scale,
    on_progress: Progress | None,
) -> Outcome:
    def arms(setup: FedDDSetup) -> dict[str, Method]:
        late = ((1, 10), (1 + setup.size.rounds // 2, 1))
        fixed = {f"h = {h}": dropout(f"h = {h}", refresh=h) for h in PERIODS}
        return {**fixed, "h = 10, then 1": dropout("h = 10, then 1", refresh=late)}

    def judge(where: str, runs: Runs, scale: Scale) -> list[Claim]:
        rare = {"h = 20": final_accuracies(runs["h = 20"])}
        return [
            judge_lead(
                f"{where}: broadcasts every round end above one in twenty", final_accuracies(runs["h = 1"]), rare, scale
            ),
            judge_lead(
                f"{where}: so does a schedule, h = 10 and then 1", final_accuracies(runs["h = 10, then 1"]), rare, scale
            ),
        ]

    paper = "The paper: h hardly matters early and lowers the final accuracy the larger it is; it suggests a schedule."
    return compare(item, data, splits, widths, arms, judge, scale, on_progress, paper)


def compare(
    item: str,
    data: str,
    splits: Sequence[str],
    widths: Sequence[str | None],
    arms: Arms,
    judge: Judge,
    scale: Scale,
    on_progress: Progress | None,
    paper: str,
) -> Outcome:
    """Compare methods on one data set, in every setting asked for."""
    setup = FedDDSetup(data, scale, on_progress)
    try:
        worlds = {(s, w): setup.experiment(s, w) for w in widths for s in splits}
    except BadInput as missing:
        return Outcome.not_run(item, scale, f"{data}: {paper}", missing)
    methods = arms(setup)
    found = setup.run({(*at, n): replace(e, method=m) for at, e in worlds.items() for n, m in methods.items()})
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    shown: list[Result] = []
    for split, width in worlds:
        runs = {n: found[split, width, n] for n in methods}
        where = ", ".join(filter(None, (data, split, width and f"widths {width}")))
        rows += [_row(where, n, r) for n, r in runs.items()]
        claims += judge(where, runs, scale)
        shown += [r for n in methods for r in rename_runs(runs[n], f"{n}, {where}")]
    return Outcome(item, scale, rows, claims, (setup.describe(next(iter(worlds.values()))), paper), shown)


def _row(where: str, name: str, runs: Sequence[Result]) -> dict[str, Any]:
    quarters = zip(*(np.array_split(r.rounds["accuracy"], 4) for r in runs), strict=True)
    return {
        "setting": where,
        "method": name,
        "final": percent(final_accuracies(runs), spread="deviation"),
        "accuracy, quarters": " ".join(f"{100 * np.nanmean(np.concatenate(q)):.1f}" for q in quarters),
        "round, s": f"{np.mean([r.rounds['seconds'].mean() for r in runs]):.0f}",
        "sent": f"{sent_share(runs):.2f}",
    }


def join_outcomes(item: str, outcomes: Sequence[Outcome]) -> Outcome:
    """Return several outcomes as one."""
    return Outcome(
        item,
        outcomes[0].scale,
        [r for o in outcomes for r in o.rows],
        [c for o in outcomes for c in o.claims],
        tuple(dict.fromkeys(n for o in outcomes for n in o.notes)),
        [r for o in outcomes for r in o.runs],
    )
