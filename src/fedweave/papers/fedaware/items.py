"""FedAWARE's table 1 (figures 4 and 5) and figures 2, 6, 7, 8, 9, and a question beyond the paper."""

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
from fedweave.papers.common.claims import Claim, Outcome, Scale
from fedweave.papers.common.parallel import Told
from fedweave.papers.common.training import leads
from fedweave.papers.fedaware import judge
from fedweave.papers.fedaware.judge import OURS, READING, Runs, tops
from fedweave.papers.fedaware.stage import METHODS, SETTINGS, Stage, hybrid, hybrid_plus, renamed
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


def table1(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Table 1, figures 4 and 5: all methods on CIFAR-10 in three degrees of heterogeneity."""
    return _settings("fedaware/table1", "cifar10", ALL, scale, told, part, TABLE1)


fig4 = fig5 = table1  # the figures show accuracy and diversity of the same runs


def fig8(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Figure 8: the same on MNIST."""
    return _settings("fedaware/fig8", "mnist", ALL if scale == "paper" else FEW, scale, told, part)


def fig9(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Figure 9: the same on Fashion-MNIST."""
    return _settings("fedaware/fig9", "fashion_mnist", ALL if scale == "paper" else FEW, scale, told, part)


def _settings(
    item: str,
    data: str,
    names: Sequence[str],
    scale: Scale,
    told: Told | None,
    part: str | None,
    reported: Mapping[str, tuple[str, str, str]] | None = None,
) -> Outcome:
    stage, item, wanted = Stage(data, scale, told), item + _tail(part), [s for s in SETTINGS if part in (None, s)]
    try:
        worlds = {where: stage.experiment(SETTINGS[where](stage.size.clients)) for where in wanted}
    except BadInput as missing:
        return _missing(item, scale, "FedAWARE has the highest top accuracy and gradient diversity", missing)
    arms = {
        (where, n, i): replace(e, method=m) for where, e in worlds.items() for n in names for i, m in _arms(stage, n)
    }
    found = stage.run(arms)
    tables: dict[str, Runs] = {
        where: {n: max((found[where, n, i] for i, _ in _arms(stage, n)), key=lambda r: tops(r).mean()) for n in names}
        for where in wanted
    }
    rows, said, shown = [], [], []
    for where, runs in tables.items():
        paper = {n: numbers[list(SETTINGS).index(where)] for n, numbers in (reported or {}).items()}
        rows += [judge.row(where, n, runs[n], paper.get(n, "—")) for n in names]
        said += judge.claims(where, runs, scale)
        shown += [r for n in names for r in renamed(runs[n], f"{n}, {where}" if len(tables) > 1 else n)]
    if {"statistical", "hybrid+"} <= set(tables):
        said.append(judge.deteriorate(tables["statistical"], tables["hybrid+"], scale))
    return Outcome(item, scale, rows, said, (stage.note(worlds[wanted[0]]), READING), shown)


def _arms(stage: Stage, name: str) -> list[tuple[int, Method]]:
    return list(enumerate(stage.arms(name)))


def fig6(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Figure 6: FedMGDA+ beside FedAWARE, on CIFAR-10 unless another data set is named."""

    def contest(k: int) -> list[Method]:
        return [methods.fedmgda(k), methods.fedaware(k), methods.fedaware_unit(k)]

    def judged(runs: Runs) -> list[Claim]:
        rival = {"fedmgda": tops(runs["fedmgda"])}
        return [leads(f"{called} beats FedMGDA+", tops(runs[n]), rival, scale) for n, called in OURS.items()]

    return _in_hybrid_plus("fedaware/fig6" + _tail(part), part or "cifar10", contest, judged, scale, told)


ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)


def fig7(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Figure 7: how FedAWARE depends on α, on CIFAR-10 unless another data set is named.

    α weighs the memory, as in Algorithm 1; the authors' code, and so perhaps their figure, has it the other way round.
    """
    makes = {"fedaware": methods.fedaware, "fedaware_unit": methods.fedaware_unit}

    def contest(k: int) -> list[Method]:
        return [replace(make(k, a), name=f"{n}, α = {a:g}") for n, make in makes.items() for a in ALPHAS]

    def judged(runs: Runs) -> list[Claim]:
        score = {(n, a): tops(runs[f"{n}, α = {a:g}"]) for n in makes for a in ALPHAS}
        return [
            leads(
                f"{called}: another α is better than the default 0.5",
                max((score[n, a] for a in ALPHAS if a != 0.5), key=np.mean),
                {"α = 0.5": score[n, 0.5]},
                scale,
            )
            for n, called in OURS.items()
        ]

    return _in_hybrid_plus("fedaware/fig7" + _tail(part), part or "cifar10", contest, judged, scale, told)


def variants(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
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

    def judged(runs: Runs) -> list[Claim]:
        raw = {"raw": tops(runs["raw"])}
        return [leads(f"{n} beats raw momenta", tops(r), raw, scale) for n, r in runs.items() if n != "raw"]

    return _in_hybrid_plus("fedaware/variants" + _tail(part), part or "fashion_mnist", contest, judged, scale, told)


def _in_hybrid_plus(
    item: str,
    data: str,
    contest: Callable[[int], Sequence[Method]],
    judged: Callable[[Runs], list[Claim]],
    scale: Scale,
    told: Told | None,
) -> Outcome:
    """Compare methods in Hybrid+, each as it is."""
    stage = Stage(data, scale, told)
    try:
        experiment = stage.experiment(hybrid_plus(stage.size.clients))
    except BadInput as missing:
        return _missing(item, scale, "the comparison in hybrid+", missing)
    runs = stage.run({m.name: replace(experiment, method=m) for m in contest(stage.size.per_round)})
    rows = [judge.row("hybrid+", name, each) for name, each in runs.items()]
    return Outcome(item, scale, rows, judged(runs), (stage.note(experiment), READING), _flat(runs))


SKEWS = (0.1, 0.3, 0.5, 0.7)


def fig2(scale: Scale, told: Told | None = None, part: str | None = None) -> Outcome:
    """Figure 2: FedAvg in the Hybrid setting at four degrees of skew: accuracy, true diversity and ‖∇f‖."""
    stage, item = Stage(part or "cifar10", scale, told), "fedaware/fig2" + _tail(part)
    text, size = "higher accuracy goes with higher gradient diversity", stage.size
    every = max(size.rounds // 30, 1)  # true gradients cost a pass over all data
    try:
        worlds = {
            skew: stage.experiment(
                hybrid(size.clients, skew),
                method=replace(methods.fedavg(size.per_round), name=f"fedavg, α = {skew:g}"),
                true_gradients=True,
                evaluate_every=every,
            )
            for skew in SKEWS
        }
    except BadInput as missing:
        return _missing(item, scale, text, missing)
    found = stage.run(worlds)
    rows = [
        {
            "α": f"{skew:g}",
            "top": judge.percent(tops(runs)),
            "true diversity, quarters": judge.quarters(runs, "true_diversity"),
            "gradient length, quarters": judge.quarters(runs, "gradient_length"),
            "diversity of the answers, quarters": judge.quarters(runs, "diversity"),
        }
        for skew, runs in found.items()
    ]
    accuracy = np.array([tops(runs).mean() for runs in found.values()])
    diversity, length = (
        np.array([judge.lasts(runs, name).mean() for runs in found.values()])
        for name in ("true_diversity", "gradient_length")
    )
    said = [
        judge.goes_with(text, accuracy, diversity, scale),
        judge.goes_with("… and a shorter gradient", accuracy, -length, scale),
    ]
    return Outcome(item, scale, rows, said, (stage.note(worlds[SKEWS[0]]),), _flat(found))


def _flat(found: Mapping[Any, Sequence[Result]]) -> list[Result]:
    return list(chain.from_iterable(found.values()))


def _missing(item: str, scale: Scale, text: str, why: BadInput) -> Outcome:
    return Outcome(item, scale, [], [Claim(text, "not run at this scale", str(why))])


def _tail(part: str | None) -> str:
    return f"/{part}" if part else ""
