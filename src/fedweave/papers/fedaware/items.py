"""FedAWARE's table 1 (figures 4 and 5) and figures 2, 6, 7, 8, 9, and one item beyond the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.aggregate import Aware
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.papers.common.claims import Claim, Outcome, item_path, judge_lead, percent, rename_runs
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale
from fedweave.papers.fedaware.claims import (
    OURS,
    READING,
    Runs,
    final_means,
    judge_claims,
    judge_correlation,
    judge_deterioration,
    quarter_means,
    table_row,
    top_accuracies,
)
from fedweave.papers.fedaware.setup import METHODS, SETTINGS, FedAwareSetup, hybrid, hybrid_plus
from fedweave.runs.results import Result

FEW = ("fedavg", "fedavgm", "fedyogi", "fedaware", "fedaware_unit")
ALL = tuple(METHODS)
TABLE1: dict[str, tuple[str, str, str]] = {  # top accuracy on CIFAR-10, %: statistical only, hybrid, hybrid+
    "fedavg": ("52.40 ± 0.47", "50.47 ± 0.20", "46.10 ± 0.19"),
    "fedavgm": ("61.22 ± 0.23", "58.13 ± 0.97", "56.83 ± 0.73"),
    "fedprox": ("52.38 ± 0.51", "50.58 ± 0.58", "47.11 ± 0.38"),
    "scaffold": ("49.57 ± 0.08", "50.61 ± 0.34", "31.36 ± 2.80"),
    "fednova_renorm": ("52.39 ± 0.52", "45.39 ± 0.32", "40.98 ± 1.50"),
    "fedyogi": ("61.07 ± 1.51", "59.10 ± 0.52", "57.64 ± 1.14"),
    "feddyn": ("58.88 ± 0.41", "56.85 ± 0.28", "56.13 ± 0.41"),
    "fedaware": ("64.54 ± 0.38", "61.41 ± 0.20", "61.28 ± 0.39"),
}


def table1(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Table 1, figures 4 and 5: all methods on CIFAR-10 in three degrees of heterogeneity."""
    return _settings("fedaware/table1", "cifar10", ALL, scale, on_progress, part, TABLE1)


fig4 = fig5 = table1  # the figures show accuracy and diversity of the same runs


def fig8(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Figure 8: the same on MNIST."""
    return _settings("fedaware/fig8", "mnist", ALL if scale == "paper" else FEW, scale, on_progress, part)


def fig9(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Figure 9: the same on Fashion-MNIST."""
    return _settings("fedaware/fig9", "fashion_mnist", ALL if scale == "paper" else FEW, scale, on_progress, part)


def _settings(
    item: str,
    data: str,
    names: Sequence[str],
    scale: Scale,
    on_progress: Progress | None,
    part: str | None,
    reported: Mapping[str, tuple[str, str, str]] | None = None,
) -> Outcome:
    setup, item, wanted = (
        FedAwareSetup(data, scale, on_progress),
        item_path(item, part),
        [s for s in SETTINGS if part in (None, s)],
    )
    try:
        worlds = {where: setup.experiment(SETTINGS[where](setup.size.clients)) for where in wanted}
    except BadInput as missing:
        return Outcome.not_run(item, scale, "FedAWARE has the highest top accuracy and gradient diversity", missing)
    arms = {
        (where, n, i): replace(e, method=m) for where, e in worlds.items() for n in names for i, m in _arms(setup, n)
    }
    found = setup.run(arms)
    tables: dict[str, Runs] = {
        where: {
            n: max((found[where, n, i] for i, _ in _arms(setup, n)), key=lambda r: top_accuracies(r).mean())
            for n in names
        }
        for where in wanted
    }
    rows, claims, shown_runs = [], [], []
    for where, runs in tables.items():
        paper = {n: numbers[list(SETTINGS).index(where)] for n, numbers in (reported or {}).items()}
        rows += [table_row(where, n, runs[n], paper.get(n, "—")) for n in names]
        claims += judge_claims(where, runs, scale)
        shown_runs += [r for n in names for r in rename_runs(runs[n], f"{n}, {where}" if len(tables) > 1 else n)]
    if {"statistical", "hybrid+"} <= set(tables):
        claims.append(judge_deterioration(tables["statistical"], tables["hybrid+"], scale))
    return Outcome(item, scale, rows, claims, (setup.describe(worlds[wanted[0]]), READING), shown_runs)


def _arms(setup: FedAwareSetup, name: str) -> list[tuple[int, Method]]:
    return list(enumerate(setup.arms(name)))


def fig6(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Figure 6: FedMGDA+ and FedAWARE, on CIFAR-10 unless another data set is named."""

    def contest(k: int) -> list[Method]:
        return [methods.fedmgda(k), methods.fedaware(k), methods.fedaware_unit(k)]

    def judge(runs: Runs) -> list[Claim]:
        rival = {"fedmgda": top_accuracies(runs["fedmgda"])}
        return [
            judge_lead(f"{called} beats FedMGDA+", top_accuracies(runs[n]), rival, scale) for n, called in OURS.items()
        ]

    return _in_hybrid_plus(item_path("fedaware/fig6", part), part or "cifar10", contest, judge, scale, on_progress)


ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)


def fig7(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Figure 7: how FedAWARE depends on α, on CIFAR-10 unless another data set is named.

    α weighs the old momentum, as in Algorithm 1; in the authors' code, and so perhaps in their figure, it weighs the
    new update.
    """
    makes = {"fedaware": methods.fedaware, "fedaware_unit": methods.fedaware_unit}

    def contest(k: int) -> list[Method]:
        return [replace(make(k, a), name=f"{n}, α = {a:g}") for n, make in makes.items() for a in ALPHAS]

    def judge(runs: Runs) -> list[Claim]:
        score = {(n, a): top_accuracies(runs[f"{n}, α = {a:g}"]) for n in makes for a in ALPHAS}
        return [
            judge_lead(
                f"{called}: another α is better than the default 0.5",
                max((score[n, a] for a in ALPHAS if a != 0.5), key=np.mean),
                {"α = 0.5": score[n, 0.5]},
                scale,
            )
            for n, called in OURS.items()
        ]

    return _in_hybrid_plus(item_path("fedaware/fig7", part), part or "cifar10", contest, judge, scale, on_progress)


def variants(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Beyond the paper: what keeps raw momenta from stalling, on Fashion-MNIST unless another data set is named."""

    def contest(k: int) -> list[Method]:
        kinds = {
            "raw": Aware(),
            "raw, projected": Aware(project=True),
            "raw, |λ̃ − λ| ≤ 0.02": Aware(deviation=0.02),
            "unit": Aware(unit=True),
            "unit, projected": Aware(unit=True, project=True),
        }
        return [replace(methods.fedaware(k), aggregator=kind, name=name) for name, kind in kinds.items()]

    def judge(runs: Runs) -> list[Claim]:
        raw = {"raw": top_accuracies(runs["raw"])}
        return [
            judge_lead(f"{n} beats raw momenta", top_accuracies(r), raw, scale) for n, r in runs.items() if n != "raw"
        ]

    return _in_hybrid_plus(
        item_path("fedaware/variants", part), part or "fashion_mnist", contest, judge, scale, on_progress
    )


def _in_hybrid_plus(
    item: str,
    data: str,
    contest: Callable[[int], Sequence[Method]],
    judge: Callable[[Runs], list[Claim]],
    scale: Scale,
    on_progress: Progress | None,
) -> Outcome:
    """Compare methods in Hybrid+, without tuning."""
    setup = FedAwareSetup(data, scale, on_progress)
    try:
        experiment = setup.experiment(hybrid_plus(setup.size.clients))
    except BadInput as missing:
        return Outcome.not_run(item, scale, "the comparison in hybrid+", missing)
    runs = setup.run({m.name: replace(experiment, method=m) for m in contest(setup.size.per_round)})
    rows = [table_row("hybrid+", name, each) for name, each in runs.items()]
    return Outcome(item, scale, rows, judge(runs), (setup.describe(experiment), READING), _flat(runs))


SKEWS = (0.1, 0.3, 0.5, 0.7)


def fig2(scale: Scale, on_progress: Progress | None = None, part: str | None = None) -> Outcome:
    """Figure 2: FedAvg in the Hybrid setting at four degrees of skew: accuracy, true diversity and ‖∇f‖."""
    setup, item = FedAwareSetup(part or "cifar10", scale, on_progress), item_path("fedaware/fig2", part)
    text, size = "higher accuracy goes with higher gradient diversity", setup.size
    every = max(size.rounds // 30, 1)  # true gradients cost a pass over all data
    try:
        worlds = {
            skew: setup.experiment(
                hybrid(size.clients, skew),
                method=replace(methods.fedavg(size.per_round), name=f"fedavg, α = {skew:g}"),
                true_gradients=True,
                evaluate_every=every,
            )
            for skew in SKEWS
        }
    except BadInput as missing:
        return Outcome.not_run(item, scale, text, missing)
    found = setup.run(worlds)
    rows = [
        {
            "α": f"{skew:g}",
            "top": percent(top_accuracies(runs), 2, "deviation"),
            "true diversity, quarters": quarter_means(runs, "true_diversity"),
            "gradient length, quarters": quarter_means(runs, "gradient_length"),
            "diversity of the answers, quarters": quarter_means(runs, "diversity"),
        }
        for skew, runs in found.items()
    ]
    accuracy = np.array([top_accuracies(runs).mean() for runs in found.values()])
    diversity, length = (
        np.array([final_means(runs, name).mean() for runs in found.values()])
        for name in ("true_diversity", "gradient_length")
    )
    claims = [
        judge_correlation(text, accuracy, diversity, scale),
        judge_correlation("… and a shorter gradient", accuracy, -length, scale),
    ]
    return Outcome(item, scale, rows, claims, (setup.describe(worlds[SKEWS[0]]),), _flat(found))


def _flat(found: Mapping[Any, Sequence[Result]]) -> list[Result]:
    return list(chain.from_iterable(found.values()))
