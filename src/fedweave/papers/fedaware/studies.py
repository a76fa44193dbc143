"""FedAWARE's table 1 and figures 2 and 4 to 9, and one study beyond the paper. Figures 1 and 3 are illustrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fedweave import methods
from fedweave.aggregate import Aware
from fedweave.method import Method
from fedweave.papers.common.panels import Make, bars, curves
from fedweave.papers.common.record import Record, best, last
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.fedaware.setup import SETTINGS, SIZES, client_lr, experiment, rounds_of, settings, zoo
from fedweave.runs.experiment import Experiment

TAIL = 50  # last rounds, whose mean is compared
SEEDS: Mapping[Scale, int] = {scale: size.seeds for scale, size in SIZES.items()}
FIVE: Mapping[Scale, int] = {**SEEDS, "laptop": 5, "paper": 5}  # where nothing primary is decided
TABLE1 = {  # top accuracy on CIFAR-10: statistical only, hybrid, hybrid+
    "fedavg": (0.5240, 0.5047, 0.4610),
    "fedavgm": (0.6122, 0.5813, 0.5683),
    "fedprox": (0.5238, 0.5058, 0.4711),
    "scaffold": (0.4957, 0.5061, 0.3136),
    "fednova_renorm": (0.5239, 0.4539, 0.4098),
    "fedyogi": (0.6107, 0.5910, 0.5764),
    "feddyn": (0.5888, 0.5685, 0.5613),
    "fedaware": (0.6454, 0.6141, 0.6128),
}
READING = (
    "Top is the best round, as the paper reports; jitter the mean change of accuracy from round to round over the "
    f"last {TAIL}; diversity that of a round's updates (eq. 3). fedaware follows Algorithm 1; fedaware_unit has "
    "momenta of unit length, as the authors' code has."
)


def jitter(record: Record) -> float:
    """Return the mean absolute change of accuracy from round to round, over the last rounds."""
    return float(np.abs(np.diff(record.rounds["accuracy"][-TAIL:])).mean())


TOP = Measure(best("accuracy"), "%")
MEASURES = {
    "top accuracy": TOP,
    "accuracy, last 50": Measure(last("accuracy", TAIL), "%"),
    "jitter": Measure(jitter, "%"),
    "diversity, last 50": Measure(last("diversity", TAIL), digits=3),
    "train loss, last 50": Measure(last("train_loss", TAIL), ratio=True, digits=3),
    "train loss, all rounds": Measure(lambda r: float(np.nanmean(r.rounds["train_loss"])), ratio=True, digits=3),
}
ACCURACY, LOSS = curves("Test accuracy", "accuracy"), curves("Train loss", "train_loss", log="y")
DIVERSITY = curves("Gradient diversity", "diversity")


def arms(data: str, where: str) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return all methods in a setting."""

    def at(scale: Scale) -> Mapping[str, Experiment]:
        base, k = experiment(data, where, scale), SIZES[scale].per_round
        return {
            name: replace(base, method=make(k), lr=client_lr(name, data, where))
            for name, make in zoo(data, where).items()
        }

    return at


def compared(
    item: str, shows: str, data: str, where: str, panels: tuple[Make, ...], seeds: Mapping[Scale, int]
) -> Study:
    """Return the study of all methods in one setting."""
    column = list(SETTINGS).index(where)
    published = {name: row[column] for name, row in TABLE1.items()} if data == "cifar10" else {}
    return Study(
        name=f"fedaware/{item}/{where}",
        shows=f"{shows}: {SETTINGS[where]}",
        arms=arms(data, where),
        seeds=seeds,
        measures=MEASURES,
        panels=panels,
        settings=settings(data, where),
        published={"top accuracy": published} if published else {},
        notes=(READING,),
    )


def _table1(where: str) -> Study:
    published = {name: row[list(SETTINGS).index(where)] for name, row in TABLE1.items()}
    top = bars("Top accuracy", best("accuracy"), "Test accuracy", published)
    return compared("table1", "top accuracy on CIFAR-10", "cifar10", where, (top,), FIVE)


COMPARED = [
    study
    for where in SETTINGS
    for study in (
        _table1(where),
        compared("fig4", "accuracy and train loss on CIFAR-10", "cifar10", where, (ACCURACY, LOSS), FIVE),
        compared("fig5", "gradient diversity on CIFAR-10", "cifar10", where, (DIVERSITY,), FIVE),
        compared("fig8", "train loss, accuracy, diversity on MNIST", "mnist", where, (LOSS, ACCURACY, DIVERSITY), FIVE),
        compared(
            "fig9", "train loss, accuracy, diversity on Fashion-MNIST", "fashion_mnist", where,
            (LOSS, ACCURACY, DIVERSITY), SEEDS if where == "hybrid+" else FIVE,
        ),
    )
]  # fmt: skip


def _deterioration(scale: Scale) -> Mapping[str, Experiment]:
    return {
        f"{name}, {where}": arm
        for where in ("statistical", "hybrid+")
        for name, arm in arms("cifar10", where)(scale).items()
    }


DETERIORATION = Study(
    name="fedaware/deterioration",
    shows="top accuracy on CIFAR-10 of every method, from statistical only to hybrid+ (table 1's columns)",
    arms=_deterioration,
    seeds=FIVE,
    measures={"top accuracy": TOP},
    panels=(bars("Top accuracy", best("accuracy"), "Test accuracy"),),
    settings=settings("cifar10", "hybrid+"),
    published={
        "top accuracy": {
            f"{n}, {w}": row[i] for n, row in TABLE1.items() for i, w in ((0, "statistical"), (2, "hybrid+"))
        }
    },
)


def in_hybrid_plus(
    item: str, shows: str, data: str, contest: Mapping[str, Callable[[int], Method]], note: str
) -> Study:
    """Return a study of some methods in Hybrid+."""

    def at(scale: Scale) -> Mapping[str, Experiment]:
        base, k = experiment(data, "hybrid+", scale), SIZES[scale].per_round
        return {name: replace(base, method=replace(make(k), name=name)) for name, make in contest.items()}

    return Study(
        name=f"fedaware/{item}/{data}",
        shows=f"{shows}, hybrid+",
        arms=at,
        seeds=FIVE,
        measures=MEASURES,
        panels=(ACCURACY, LOSS, DIVERSITY),
        settings=settings(data, "hybrid+"),
        notes=(READING, note) if note else (READING,),
    )


MGDA = {"fedmgda": methods.fedmgda, "fedaware": methods.fedaware, "fedaware_unit": methods.fedaware_unit}
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
BY_ALPHA: dict[str, Callable[[int], Method]] = {
    f"{name}, α = {a:g}": lambda k, make=make, a=a: make(k, a)
    for name, make in (("fedaware", methods.fedaware), ("fedaware_unit", methods.fedaware_unit))
    for a in ALPHAS
}
KINDS: dict[str, Aware] = {
    "raw": Aware(),
    "raw, projected": Aware(project=True),
    "raw, |λ̃ − λ| ≤ 0.02": Aware(deviation=0.02),
    "unit": Aware(unit=True),
    "unit, projected": Aware(unit=True, project=True),
}
VARIANTS: dict[str, Callable[[int], Method]] = {
    name: lambda k, kind=kind: replace(methods.fedaware(k), aggregator=kind) for name, kind in KINDS.items()
}
VARIANTS["as in the authors' code"] = lambda k: replace(  # α weighs the old momentum here, the new update there
    methods.fedaware(k, start="mean"), aggregator=Aware(0.7, unit=True, start="mean", first="share")
)
WHICH_ALPHA = (
    "α weighs the old momentum, as in Algorithm 1; in the authors' code, and so perhaps in their figure, it weighs the "
    "new update."
)
SKEWS = (0.1, 0.3, 0.5, 0.7)


def last_tenth(column: str) -> Callable[[Record], float]:
    """Return a measure: the mean of a column over the last tenth of the rounds."""
    return lambda record: last(column, max(record.rounds[column].size // 10, 1))(record)


def _fig2(data: str) -> Study:
    def at(scale: Scale) -> Mapping[str, Experiment]:
        every = max(rounds_of(data, "hybrid", scale) // 30, 1)  # true gradients cost a pass over all data
        return {
            f"α = {skew:g}": experiment(data, "hybrid", scale, alpha=skew, true_gradients=True, evaluate_every=every)
            for skew in SKEWS
        }

    return Study(
        name=f"fedaware/fig2/{data}",
        shows="FedAvg at four degrees of skew: accuracy, true gradient diversity and length of the global gradient",
        arms=at,
        seeds=FIVE,
        measures={
            "top accuracy": TOP,
            "true diversity, last tenth": Measure(last_tenth("true_diversity"), digits=3),
            "gradient length, last tenth": Measure(last_tenth("gradient_length"), ratio=True, digits=3),
        },
        panels=(
            ACCURACY,
            curves("True gradient diversity", "true_diversity", y_label="D(x), eq. 3"),
            curves("Length of the global gradient", "gradient_length", y_label="‖∇f(x)‖", log="y"),
        ),
        settings=lambda scale: {**settings(data, "hybrid")(scale), "client sizes": "Dirichlet(0.1 … 0.7)"},
    )


STUDIES: tuple[Study, ...] = (
    *COMPARED,
    DETERIORATION,
    *(_fig2(data) for data in ("cifar10", "fashion_mnist")),
    *(in_hybrid_plus("fig6", "FedMGDA+ and FedAWARE", data, MGDA, "") for data in ("cifar10", "fashion_mnist")),
    *(
        in_hybrid_plus("fig7", "how FedAWARE depends on α", d, BY_ALPHA, WHICH_ALPHA)
        for d in ("cifar10", "fashion_mnist")
    ),
    in_hybrid_plus("variants", "beyond the paper: what keeps raw momenta from stalling", "fashion_mnist", VARIANTS, ""),
)
