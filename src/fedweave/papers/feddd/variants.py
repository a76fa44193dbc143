"""FedDD's figures 11–20: other choices of channels, other budgets, penalties and periods of the full broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedweave.method import Method
from fedweave.papers.common.panels import Line, Make, Panel
from fedweave.papers.common.record import Records
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.feddd.measures import COST, FINAL, JITTER, OVER_ROUNDS, OVER_TIME, early, final, time_over
from fedweave.papers.feddd.setup import MODELS, SEEDS, SPLITS, WIDE, Setting, dropout, rivals

NON_IID = ("non-iid-a", "non-iid-b")


def varied(
    item: str,
    shows: str,
    setting: Setting,
    methods: Callable[[Scale], Mapping[str, Method]],
    measures: Mapping[str, Measure],
    panel: Make = OVER_ROUNDS,
    note: str = "",
) -> Study:
    """Return the study of some methods in a setting."""
    return Study(
        name=f"feddd/{item}",
        shows=f"{shows}: {setting.name.replace('/', ', ')}",
        arms=lambda scale: setting.arms(scale, methods(scale)),
        seeds=SEEDS,
        measures={"final accuracy": FINAL, **measures},
        panels=(panel,),
        settings=setting.settings,
        notes=(note,) if note else (),
    )


CHOICES = ("importance", "random", "max", "delta", "ordered")


def _choices(item: str, setting: Setting, refresh: int = 5) -> Study:
    return varied(
        f"{item}/{setting.name if setting.widths else setting.split}",
        "which channels are sent, five choices",
        setting,
        lambda scale: {c: dropout(choose=c, refresh=refresh) for c in CHOICES},
        {"rounds to 0.95 of importance": time_over("importance", 0.95, share=True, time="round"), "jitter": JITTER},
        note="importance is FedDD's choice (eq. 20); rounds are over its own.",
    )


BUDGETS = (0.2, 0.4, 0.6, 0.8)
UNDER_BUDGET = ("feddd", "fedcs", "oort")
LOST = Measure(lambda record, most: final(most) - final(record), "%", against=lambda arm: f"{arm.split(',')[0]}, 80%")


def _budget_methods(scale: Scale) -> Mapping[str, Method]:
    under = {keep: rivals(keep) for keep in BUDGETS}
    return {f"{name}, {keep:.0%}": under[keep][name] for name in UNDER_BUDGET for keep in BUDGETS}


def along_budgets(records: Records) -> Panel:
    """Draw the final accuracy over the budget."""
    lines = [
        Line(n, np.array(BUDGETS), np.array([[final(r) for r in records[f"{n}, {b:.0%}"]] for b in BUDGETS]).T)
        for n in UNDER_BUDGET
    ]
    return Panel("Final accuracy", "Share of the parameters sent, A", "Test accuracy", lines, points=True)


def _budgets(item: str, setting: Setting) -> Study:
    return varied(
        f"{item}/{setting.name}",
        "budgets of 20 to 80 %",
        setting,
        _budget_methods,
        {"lost from 80 %": LOST, "sent": COST["sent"]},
        along_budgets,
        "The paper, from 80 % to 20 %, all settings: FedDD loses 0.1 to 11.5 points, FedCS 3.7 to 47.5, Oort 2.3 to "
        "43.0.",
    )


def _penalties(setting: Setting) -> Study:
    methods = {f"δ = {p:g}": dropout(penalty=p) for p in (0.0, 0.1, 1.0, 10.0)}
    methods["δ = 1 s"] = dropout(penalty=1.0, unit="seconds")
    return varied(
        f"fig18/{setting.data}/{setting.widths}",
        "the penalty δ, with sub-models of five widths",
        setting,
        lambda scale: methods,
        {"influence of δ": Measure(lambda r: float(np.nanmax(r.rounds["dropout_influence"]))), **COST},
        OVER_TIME,
        "The only value of δ that the text prints is 0. δ = 1 s is in seconds, as eq. 14 has it; the others are in "
        "units of the time of whole models over the sum of the contributions. The influence is the largest change of a "
        "rate against δ = 0.",
    )


def _periods(item: str, setting: Setting) -> Study:
    def methods(scale: Scale) -> Mapping[str, Method]:
        late = ((1, 10), (1 + setting.length(scale) // 2, 1))
        return {f"h = {h}": dropout(refresh=h) for h in (1, 5, 10, 20)} | {"h = 10, then 1": dropout(refresh=late)}

    return varied(
        f"{item}/{setting.data}/{setting.widths or setting.split}",
        "rounds between broadcasts of the whole model",
        setting,
        methods,
        {"accuracy, first quarter": Measure(early, "%")},
        note="The schedule is the one that section 6.6 suggests: a larger h early, a smaller one late.",
    )


STUDIES: tuple[Study, ...] = (
    *(_choices(f"fig{11 + i}", Setting(data, split)) for i, data in enumerate(MODELS) for split in SPLITS),
    *(_choices("fig14", Setting("cifar10", split, testbed=True), refresh=1) for split in SPLITS),
    *(_choices("fig15", Setting(data, split, widths)) for data, widths in WIDE for split in SPLITS),
    *(_budgets("fig16", Setting(data, split)) for data in MODELS for split in NON_IID),
    *(_budgets("fig17", Setting(data, split, widths)) for data, widths in WIDE for split in NON_IID),
    *(_penalties(Setting(data, "non-iid-a", widths)) for data, widths in WIDE),
    *(_periods("fig19", Setting(data, split)) for data in ("cifar10", "fashion_mnist") for split in SPLITS),
    *(_periods("fig20", Setting(data, "non-iid-a", widths)) for data, widths in WIDE),
)
