"""FedDD's experiments: data sets, splits, the methods under one budget, and how much is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedweave.aggregate import Anonymous
from fedweave.data import Dataset
from fedweave.data.partition import IID, Classes, Partition, imbalance
from fedweave.method import Method
from fedweave.papers.common.scale import ImageSize, Scale
from fedweave.papers.common.training import Setup
from fedweave.runs.experiment import Experiment
from fedweave.sample import ACS, Deadline, Everyone, Oort
from fedweave.system import Wireless
from fedweave.upload import DifferentialDropout

SPLITS: dict[str, Callable[[int], Partition]] = {
    "iid": IID,
    "non-iid-a": lambda n: Classes(n, 2, 10),
    "non-iid-b": lambda n: Classes(n, 3),
}
MODELS = {"mnist": "mlp", "fashion_mnist": "cnn_small", "cifar10": "cnn2"}  # table 2
EPOCHS = {"mnist": 1, "fashion_mnist": 3, "cifar10": 5}  # table 4
WIDTHS: dict[str, tuple[str | float, ...]] = {  # sub-models: those of tables 3 and 6, or shares of the widths
    "cifar10/a": tuple(f"feddd_a{i}" for i in range(1, 6)),
    "cifar10/b": tuple(f"feddd_b{i}" for i in range(1, 6)),
    "a": (1.0, 0.95, 0.9, 0.85, 0.8),
    "b": (1.0, 0.85, 0.7, 0.6, 0.5),
}


@dataclass(frozen=True, kw_only=True)
class Size(ImageSize):
    """How much of a published experiment is run; learning rate, batch and rounds are not published."""

    clients: int
    lr: float


SIZES: dict[Scale, Size] = {
    "smoke": Size(train=400, test=100, clients=10, batch=20, lr=0.05, rounds=4, seeds=2),
    "laptop": Size(train=3000, test=1000, clients=50, batch=20, lr=0.05, rounds=70, seeds=2),
    "paper": Size(clients=100, batch=32, lr=0.01, rounds=300, seeds=3),
}


def budget_methods(clients: int, keep: float = 0.6) -> dict[str, Method]:
    """Return the methods under one budget: the share ``keep`` of the bytes that FedAvg with all clients sends.

    FedDD on FedACS's cohort draws as many times as there are clients, with replacement; it sends less in total.
    """
    dropout = DifferentialDropout(keep)
    return {
        "fedavg": Method(Everyone(), name="fedavg"),
        "feddd": Method(Everyone(), upload=dropout, name="feddd"),
        "fedcs": Method(Deadline(keep=keep), name="fedcs"),
        "oort": Method(Oort(keep=keep), name="oort"),
        "feddd_acs": Method(ACS(clients), aggregator=Anonymous(), upload=dropout, name="feddd_acs"),
    }


def dropout(name: str, **changes: Any) -> Method:
    """Return FedDD with other settings of its dropout."""
    return Method(Everyone(), upload=DifferentialDropout(**changes), name=name)


@dataclass(frozen=True)
class FedDDSetup(Setup):
    """One data set at one scale."""

    rounds: float = 1.0  # factor on the rounds of the scale

    @property
    def size(self) -> Size:
        """How much is run."""
        size = SIZES[self.scale]
        return replace(size, rounds=max(round(self.rounds * size.rounds), 2))

    @cached_property
    def rare_classes(self) -> Dataset:
        """The data with two fifths of the samples of classes 0, 1 and 2 (section 6.7)."""
        return imbalance(self.samples, rng=np.random.default_rng(0))

    def experiment(self, split: str, widths: str | None = None, **changes: Any) -> Experiment:
        """Return FedAvg with all clients in the wireless world of table 4; with ``widths`` clients have sub-models."""
        s = self.size
        small = self.scale == "smoke" and self.data != "cifar10"
        model = "mlp" if small else MODELS[self.data]
        submodels: tuple[str | float, ...] = ()
        if widths:
            submodels = WIDTHS.get(f"{self.data}/{widths}", WIDTHS[widths])
            model = str(submodels[0]) if isinstance(submodels[0], str) else model
        plain = Experiment(
            method=Method(Everyone(), name="fedavg"),
            data=self.samples,
            partition=SPLITS[split](s.clients),
            system=Wireless(),
            model=model,
            rounds=s.rounds,
            lr=s.lr,
            epochs=EPOCHS[self.data],
            batch_size=s.batch,
            workers=1,
            submodels=submodels,
        )
        return replace(plain, **changes)

    def describe(self, experiment: Experiment) -> str:
        """Return a note on the data and the settings."""
        s = self.size
        models = f", sub-models {experiment.submodels}" if experiment.submodels else ""
        return (
            f"{self.data}: {len(self.samples.x)} training images, {s.clients} clients, {s.rounds} rounds of "
            f"{experiment.epochs:g} epochs, batch {s.batch}, lr {s.lr}, {s.seeds} seeds, {experiment.model}{models}; "
            "links and processors of table 4."
        )
