"""The latency paper's trainings (section IV-B): data, clients, the four selections, and how much is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from fedweave import methods
from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.partition import IID, Classes, Dirichlet, Partition
from fedweave.local.solvers import Adam
from fedweave.method import Method
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.runs.experiment import Experiment
from fedweave.sample import LatencyOptimal
from fedweave.system import Latency

SELECTIONS: tuple[str, ...] = ("ours", "uniform", "norm", "ratio")  # in the order of table I
SETTINGS = {
    "iid": "equally many samples of every class",
    "class": "half of the classes per client, equally many samples",
    "dir": "Dirichlet(0.1) labels",
}
BATCH, EPOCHS, LR = 256, 5, 1e-3


class Benchmark(NamedTuple):
    """One data set of table I, with the printed seconds of ours, uniform, norm and ratio selection.

    The paper prints no rounds: at its rounds of E[max δ] seconds these cover the longest printed time of a setting.
    """

    train: int  # samples
    clients: int
    draws: int  # per round
    classes: int  # per client, in the setting "class"
    trial: int  # rounds; the paper wants all clients seen once
    seconds: Mapping[str, tuple[float, float, float, float]]
    rounds: Mapping[str, int]


BENCHMARKS = {
    "fashion_mnist": Benchmark(
        60_000, 10, 5, 5, 5,
        {
            "iid": (114.05, 181.46, 177.35, 210.93),
            "class": (220.92, 439.33, 392.50, 439.42),
            "dir": (88.08, 270.14, 137.35, 255.69),
        },
        {"iid": 300, "class": 600, "dir": 400},
    ),
    "emnist_letters": Benchmark(
        124_800, 40, 10, 13, 20,
        {
            "iid": (245.66, 472.87, 419.93, 469.51),
            "class": (164.82, 444.37, 317.70, 447.33),
            "dir": (64.12, 188.33, 128.90, 169.61),
        },
        {"iid": 600, "class": 600, "dir": 300},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much is run: a share of samples and batch, so that steps per epoch stay."""

    share: float
    batch: int
    rounds: int | None  # None: the benchmark's
    test: int
    epochs: int
    network: str


SIZES: dict[Scale, Size] = {
    "smoke": Size(1 / 150, 20, 0, 100, 1, "logistic"),
    "laptop": Size(1 / 10, 25, 150, 2000, EPOCHS, "lenet5"),  # 24 and 13 steps an epoch, as published
    "paper": Size(1.0, BATCH, None, 0, EPOCHS, "lenet5"),
}


@cache
def samples(data: str, scale: Scale) -> Dataset:
    """Return the data, or a part with as many samples of each class."""
    size, found = SIZES[scale], load_data(data, scale)
    return found if size.share == 1 else reduce_data(found, round(BENCHMARKS[data].train * size.share), size.test)


def partition(data: str, where: str) -> Partition:
    """Return who has which samples: one of the three settings."""
    b = BENCHMARKS[data]
    if where == "class":
        return Classes(b.clients, b.classes)
    return IID(b.clients) if where == "iid" else Dirichlet(b.clients, 0.1)


def rounds_of(data: str, where: str, scale: Scale) -> int:
    """Return the rounds; smoke runs have two after the trial."""
    b, rounds = BENCHMARKS[data], SIZES[scale].rounds
    return b.trial + 2 if scale == "smoke" else rounds or b.rounds[where]


def sampler(data: str, boldness: float | None = None) -> LatencyOptimal:
    """Return the sampler of ours; with ``boldness`` α is not estimated."""
    return LatencyOptimal(BENCHMARKS[data].draws, trial=BENCHMARKS[data].trial, boldness=boldness)


def selection(name: str, data: str) -> Method:
    """Return a selection of table I with the paper's local Adam."""
    method = getattr(methods, "latency_optimal" if name == "ours" else f"latency_{name}")(BENCHMARKS[data].draws)
    return replace(method, solver=Adam(), sampler=sampler(data) if name == "ours" else method.sampler)


def experiment(data: str, where: str, scale: Scale, system: System | None = None) -> Experiment:
    """Return uniform selection's experiment in a setting; latencies are U(0, 1) where no other system is given."""
    size = SIZES[scale]
    return Experiment(
        method=selection("uniform", data),
        data=samples(data, scale),
        partition=partition(data, where),
        model=size.network,
        system=system or Latency(),
        rounds=rounds_of(data, where, scale),
        lr=LR,
        epochs=size.epochs,
        batch_size=size.batch,
        max_length_ratio=None,
        evaluate=("train", "test"),
    )


def arms(data: str, where: str, system: System | None = None) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return the four selections in a setting."""

    def at(scale: Scale) -> Mapping[str, Experiment]:
        base = experiment(data, where, scale, system)
        return {name: replace(base, method=selection(name, data)) for name in SELECTIONS}

    return at


def settings(data: str, where: str, latencies: str = "U(0, 1)") -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""
    b = BENCHMARKS[data]

    def of(scale: Scale) -> Mapping[str, Any]:
        size = SIZES[scale]
        images = round(b.train * size.share)
        return {
            "data": data,
            "training images": images,
            "clients": b.clients,
            "participation": f"{b.draws} draws of {b.clients} clients",
            "client sizes": "Dirichlet(0.1)" if where == "dir" else "equal",
            "latencies": latencies,
            "network": size.network,
            "rounds": rounds_of(data, where, scale),
            "trial rounds": b.trial,
            "epochs": size.epochs,
            "batch": size.batch,
            "steps an epoch": -(-images // b.clients // size.batch),
            "learning rate": LR,
            "tuning": "Adam's defaults",
        }

    return of
