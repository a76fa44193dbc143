"""FedDD's figures 2 and 3 (one learner, one width), its worked example, and Theorem 2 as printed and as it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedweave.data import Dataset
from fedweave.data.partition import IID
from fedweave.papers.common.bounds import MeasuredAgainstBound
from fedweave.papers.common.panels import along, bars, curves
from fedweave.papers.common.record import Record, last
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.feddd.measures import FINAL, by_class
from fedweave.papers.feddd.setup import MODELS, SEEDS, Setting, samples
from fedweave.papers.feddd.theory import measure_bound
from fedweave.runs.experiment import Experiment

LABEL = 2  # pullovers, twos, birds: neither the easiest nor the hardest
SHARES = {f"{share:.0%}": share for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)}
BEND = {"10%": "1%", "40%": "10%"}  # below and above 1/C


def subset_with_share(data: Dataset, label: int, share: float, size: int) -> Dataset:
    """Return ``size`` training samples: this share has the label, the other labels are equally common."""
    mine = round(share * size)
    each, rest = divmod(size - mine, data.classes - 1)
    want = [mine if c == label else each + (rest > c) for c in range(data.classes)]
    chosen = np.sort(np.concatenate([np.flatnonzero(data.y == c)[:n] for c, n in enumerate(want)]))
    return replace(data, x=data.x[chosen], y=data.y[chosen], group=None, loaded=None)


def share_of(record: Record) -> float:
    """Return the share of the label among the training samples."""
    counts = np.asarray(record.values["labels"]).sum(0)
    return float(counts[LABEL] / counts.sum())


def label_accuracy(record: Record) -> float:
    """Return the final accuracy of the label."""
    return float(by_class(record)[LABEL])


def slope(record: Record, before: Record) -> float:
    """Return the gain of accuracy per tenth of the data, from one share to another; nan of one with itself."""
    width = share_of(record) - share_of(before)
    return (label_accuracy(record) - label_accuracy(before)) / (10 * width) if width else np.nan


def _fig2(data: str) -> Study:
    setting = Setting(data, "iid", rounds=0.5)

    def size(scale: Scale) -> int:
        return int(setting.settings(scale)["training images"]) // 5  # so that two fifths of them can have one label

    def arms(scale: Scale) -> Mapping[str, Experiment]:
        parts = {n: subset_with_share(samples(data, scale), LABEL, p, size(scale)) for n, p in SHARES.items()}
        return {name: setting.experiment(scale, data=part, partition=IID(1)) for name, part in parts.items()}

    return Study(
        name=f"feddd/fig2/{data}",
        shows=f"accuracy of a class over its share of the data, one learner: {data}",
        arms=arms,
        seeds=SEEDS,
        measures={
            "accuracy of the class": Measure(label_accuracy, "%"),
            "gain per tenth": Measure(slope, "%", against=lambda arm: BEND.get(arm, arm)),
        },
        panels=(along(f"Class {LABEL}", "Share of the class in the data", SHARES, label_accuracy, "Test accuracy"),),
        settings=lambda scale: {
            **setting.settings(scale),
            "clients": 1,
            "training images": size(scale),
            "steps an epoch": math.ceil(size(scale) / setting.batch(scale)),
        },
        notes=("The gain is from 1 % to 10 % and from 10 % to 40 %; 1/C is 10 %.",),
    )


NUMBERS = ("1", "2", "3", "4", "5")  # sub-models, the widest first


def _fig3(data: str) -> Study:
    setting = Setting(data, "iid", "b", rounds=0.5)

    def arms(scale: Scale) -> Mapping[str, Experiment]:
        widths = setting.submodels(scale)
        return {n: setting.experiment(scale, submodels=(w,)) for n, w in zip(NUMBERS, widths, strict=True)}

    return Study(
        name=f"feddd/fig3/{data}",
        shows=f"training loss of FedAvg with each of the five widths b, IID: {data}",
        arms=arms,
        seeds=SEEDS,
        measures={
            "train loss, last 5": Measure(last("train_loss", 5), ratio=True),
            "train loss, all rounds": Measure(lambda r: float(np.nanmean(r.rounds["train_loss"])), ratio=True),
            "final accuracy": FINAL,
        },
        panels=(curves("Training loss", "train_loss"),),
        settings=setting.settings,
    )


ONCE: Mapping[Scale, int] = {"smoke": 1, "laptop": 1, "paper": 1}
EXAMPLE = {"client A": (0.3, 0.3, 0.4), "client B": (0.48, 0.48, 0.04)}  # section 4.1


def covered(shares: Any, seed: int) -> Record:
    """Return Σ min(C dis, 1), eq. 13, for C = 10 classes."""
    return Record(values={"covered": float(np.minimum(10 * np.asarray(shares), 1).sum())})


COVERAGE = Study(
    name="feddd/coverage",
    shows="how many classes a client covers: the example of section 4.1",
    arms=lambda scale: EXAMPLE,
    work=covered,
    seeds=ONCE,
    measures={"classes covered": Measure(lambda r: float(r.values["covered"]))},
    panels=(bars("Classes covered", lambda r: float(r.values["covered"]), "Σ min(C dis, 1)"),),
    exact=True,
)


@dataclass(frozen=True)
class Printed:
    """Constants of eq. 22; L and the mean of σ_n² are 1."""

    epsilon: float
    h: int
    lr: float = 0.1
    gap: float = 0.0  # 2 (F(W⁰) − F*)/T


def printed_bound(p: Printed, seed: int = 0) -> Record:
    """Return the right side of eq. 22 as printed."""
    square, e = p.lr**2, p.epsilon
    below = 2 * p.lr - square - e * square - 4 * (e + 1) * e * square
    residual = e * square * ((p.h - 1) * (2 * e + 2 * e * square + 2 * square + 3) + 1) / p.h
    return Record(values={"bound": (p.gap + residual) / below})


def counterexample(arm: Printed | float, seed: int) -> Record:
    """Return ‖∇F‖² of two clients of which only the first uploads, or what eq. 22 allows.

    F_n = (W − e_n)²/2, e = ±1, h = 1. From W = 1, the first client's optimum, the model never moves: ∇F = 1 for ever.
    One step of η leads the second to 1 − 2 η, the mean is 1 − η, and Assumption 3 holds with ε = (η/(1 − η))².
    """
    if isinstance(arm, Printed):
        return printed_bound(arm)
    first, model = 1.0, 1.0
    for _ in range(1000):
        model -= arm * (model - first)
    return Record(values={"bound": model**2})


BY_H = {f"h = {h}": Printed(0.2, h) for h in (1, 2, 5, 10, 20)}
BY_EPSILON = {f"ε = {e:g}": Printed(e, 5) for e in (0.0, 0.1, 0.5, 1.0)}
SMALL = 0.1
AGAINST = {"measured": SMALL, "eq. 22": Printed((SMALL / (1 - SMALL)) ** 2, 1, SMALL, gap=1 / 1000)}
RIGHT = Measure(lambda r: float(r.values["bound"]))


def _theorem(item: str, shows: str, arms: Mapping[str, Any], note: str = "") -> Study:
    return Study(
        name=f"feddd/theorem2/{item}",
        shows=shows,
        arms=lambda scale: arms,
        work=counterexample,
        seeds=ONCE,
        measures={"mean ‖∇F‖²": RIGHT},
        panels=(bars("Theorem 2", RIGHT.of, "Mean ‖∇F‖²"),),
        exact=True,
        notes=(note,) if note else (),
    )


@dataclass(frozen=True)
class Bounded:
    """What is measured on quadratics, or its bound."""

    refresh: int
    rounds: int
    seeds: int
    bound: bool = False


@cache
def _measured(refresh: int, seeds: int, rounds: int) -> MeasuredAgainstBound:
    return measure_bound(refresh, seeds, rounds)


def gradient_or_bound(arm: Bounded, seed: int) -> Record:
    """Return the mean squared gradient over T rounds of this seed, or the bound of its expectation."""
    found = _measured(arm.refresh, arm.seeds, arm.rounds)
    return Record({"rounds T": found.x, "mean": found.bound if arm.bound else found.measured[seed]})


def _bound_arms(scale: Scale) -> Mapping[str, Bounded]:
    rounds, seeds = 16 if scale == "smoke" else 256, SEEDS[scale]
    return {
        f"h = {h}{', bound' if bound else ''}": Bounded(h, rounds, seeds, bound)
        for h in (1, 5)
        for bound in (False, True)
    }


BOUND = Study(
    name="feddd/bound",
    shows="the gradient under random dropout on quadratics, and the bound of Theorem 2 that can be proved",
    arms=_bound_arms,
    work=gradient_or_bound,
    seeds=SEEDS,
    measures={"mean ‖∇F‖²": Measure(last("mean"), ratio=True, digits=3)},
    panels=(curves("Theorem 2, corrected", "mean", "rounds T", "Mean ‖∇F‖² over T rounds", log="xy"),),
    settings=lambda scale: {"data": "quadratics", "steps an epoch": 1 if scale != "smoke" else "other"},
    notes=("20 clients send 60 % of their entries, chosen at random; ε is that of the entry sent by the fewest.",),
)

STUDIES: tuple[Study, ...] = (
    *(_fig2(data) for data in MODELS),
    *(_fig3(data) for data in ("cifar10", "fashion_mnist")),
    COVERAGE,
    _theorem("h", "the right side of eq. 22 over the period h of whole broadcasts", BY_H),
    _theorem("epsilon", "the right side of eq. 22 over the error ε of the masks", BY_EPSILON),
    _theorem(
        "counterexample",
        "two clients of which only one ever uploads: what is measured, and what eq. 22 allows",
        AGAINST,
        "Theorem 2's assumptions hold, its bound does not; see fedweave.theory.dropout_bound for one that does.",
    ),
    BOUND,
)
