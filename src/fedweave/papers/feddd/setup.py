"""FedDD's experiments: data sets, splits, links, the methods under one budget, and how much is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from fedweave.data import Dataset
from fedweave.data.partition import IID, Classes, Partition, imbalance
from fedweave.method import Method
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.runs.experiment import Experiment
from fedweave.sample import Deadline, Everyone, Oort
from fedweave.system import Wireless
from fedweave.upload import DifferentialDropout

Rare = Literal["samples", "owners"]  # of what rare classes have less: section 6.7 can be read either way


def _some_classes(low: int, high: int | None = None) -> Callable[[int, Rare], Partition]:
    return lambda clients, rare: Classes(clients, low, high, deal="random", rare=rare)


SPLITS: dict[str, Callable[[int, Rare], Partition]] = {  # section 6.1; each client draws its classes by itself
    "iid": lambda clients, rare: IID(clients),
    "non-iid-a": _some_classes(2, 10),
    "non-iid-b": _some_classes(3),
}
MODELS = {"mnist": "mlp", "fashion_mnist": "cnn_small", "cifar10": "cnn2"}  # table 2
EPOCHS = {"mnist": 1, "fashion_mnist": 3, "cifar10": 5}  # table 4
TRAIN = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
# Learning rates, batches and numbers of rounds are not published. CIFAR-10 takes a larger step: in a pilot of three
# rounds its network learned nothing with 0.01.
LR = {"mnist": 0.01, "fashion_mnist": 0.01, "cifar10": 0.05}
BATCH = 32
WIDTHS: dict[str, tuple[str | float, ...]] = {  # sub-models: those of tables 3 and 6, or shares of the widths
    "cifar10/a": tuple(f"feddd_a{i}" for i in range(1, 6)),
    "cifar10/b": tuple(f"feddd_b{i}" for i in range(1, 6)),
    "a": (1.0, 0.95, 0.9, 0.85, 0.8),
    "b": (1.0, 0.85, 0.7, 0.6, 0.5),
}
WIDE = (("cifar10", "a"), ("cifar10", "b"), ("fashion_mnist", "b"))  # the paper's, and one beside it
# The testbed's rates are not published. These are a thousand times those of table 4 (the spread is kept), with which
# FedAvg's rounds take about as long as figure 8's; a T4 and a P100 differ about twofold in speed.
TESTBED = Wireless(up_rate=(1e6, 5e6), down_rate=(4e7, 2e8), frequency=(1e10, 2e10), cycles=(1e6, 1e6))


@dataclass(frozen=True)
class Size:
    """How much is run. ``share`` scales samples and batches together: steps per epoch stay."""

    share: float
    rounds: int
    clients: int


SIZES: dict[Scale, Size] = {"smoke": Size(1 / 300, 2, 6), "laptop": Size(1 / 4, 150, 100), "paper": Size(1, 300, 100)}
SEEDS: Mapping[Scale, int] = {"smoke": 2, "laptop": 5, "paper": 5}
PRIMARY: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}


@cache
def samples(data: str, scale: Scale, rare: bool = False) -> Dataset:
    """Return the data; with ``rare``, two fifths of the samples of classes 0, 1 and 2 (section 6.7)."""
    found, share = load_data(data, scale), SIZES[scale].share
    if scale == "smoke":
        found = reduce_data(found, 200, 50, pool=4 if data == "cifar10" else 2)
    elif share < 1:
        found = reduce_data(found, round(TRAIN[data] * share), 10_000)
    return imbalance(found, rng=np.random.default_rng(0)) if rare else found


@dataclass(frozen=True)
class Setting:
    """A data set, how it is dealt, and who the clients are."""

    data: str
    split: str
    widths: str = ""  # a or b: sub-models of five widths
    testbed: bool = False  # ten clients with the testbed's links
    rare: Rare | None = None
    rounds: float = 1.0  # factor on the rounds of the scale

    @property
    def name(self) -> str:
        """The setting as part of an item's name."""
        return "/".join(filter(None, (self.data, self.widths, self.split)))

    def clients(self, scale: Scale) -> int:
        """Return the number of clients."""
        return 10 if self.testbed and scale != "smoke" else SIZES[scale].clients

    def submodels(self, scale: Scale) -> tuple[str | float, ...]:
        """Return the clients' sub-models; none if all have the whole model."""
        if not self.widths:
            return ()
        return WIDTHS.get(f"{self.data}/{self.widths}" if scale != "smoke" else "", WIDTHS[self.widths])

    def model(self, scale: Scale) -> str:
        """Return the whole model."""
        if scale == "smoke":
            return "mlp"
        return f"feddd_{self.widths}1" if self.widths and self.data == "cifar10" else MODELS[self.data]

    def batch(self, scale: Scale) -> int:
        """Return the batch size, scaled as the samples are."""
        return 10 if scale == "smoke" else round(BATCH * SIZES[scale].share)

    def length(self, scale: Scale) -> int:
        """Return the number of rounds."""
        return max(round(self.rounds * SIZES[scale].rounds), 2)

    def experiment(self, scale: Scale, **changes: Any) -> Experiment:
        """Return FedAvg with all clients and the links of table 4, or of the testbed."""
        plain = Experiment(
            method=Method(Everyone(), name="fedavg"),
            data=samples(self.data, scale, self.rare is not None),
            partition=SPLITS[self.split](self.clients(scale), self.rare or "samples"),
            system=TESTBED if self.testbed else Wireless(),
            model=self.model(scale),
            rounds=self.length(scale),
            lr=LR[self.data],
            epochs=EPOCHS[self.data] if scale != "smoke" else 1,
            batch_size=self.batch(scale),
            submodels=self.submodels(scale),
        )
        return replace(plain, **changes)

    def arms(self, scale: Scale, methods: Mapping[str, Method]) -> dict[str, Experiment]:
        """Return the experiments of these methods."""
        plain = self.experiment(scale)
        return {name: replace(plain, method=method) for name, method in methods.items()}

    def settings(self, scale: Scale) -> Mapping[str, Any]:
        """Return the settings that are printed side by side."""
        images = (200 if scale == "smoke" else TRAIN[self.data] * SIZES[scale].share) * (0.82 if self.rare else 1)
        batch = self.batch(scale)
        return {
            "data": self.data,
            "training images": round(images),
            "clients": self.clients(scale),
            "participation": "every client has data; FedCS and Oort ask as many as the budget allows",
            "client sizes": "equal" if self.split == "iid" else "by chance: classes drawn at random",
            "network": ", ".join(map(str, (self.model(scale), *self.submodels(scale)[1:]))),
            "rounds": self.length(scale),
            "epochs": EPOCHS[self.data] if scale != "smoke" else 1,
            "batch (not published)": batch,
            "steps an epoch": math.ceil(images / self.clients(scale) / batch) if scale != "smoke" else "other",
            "learning rate (not published)": LR[self.data],
            "links": "ours: table 4 × 1000 (not published)" if self.testbed else "table 4",
            "tuning": "none: one learning rate for all methods",
        }


def dropout(**changes: Any) -> Method:
    """Return FedDD, with other settings of its dropout where given."""
    return Method(Everyone(), upload=DifferentialDropout(**changes), name="feddd")


def rivals(keep: float = 0.6, **changes: Any) -> dict[str, Method]:
    """Return the methods under one budget: the share ``keep`` of the bytes that FedAvg with all clients sends.

    Oort drops the clients with the lowest utility, as FedDD describes it; its authors' code explores.
    """
    return {
        "fedavg": Method(Everyone(), name="fedavg"),
        "feddd": dropout(keep=keep, **changes),
        "fedcs": Method(Deadline(keep=keep), name="fedcs"),
        "oort": Method(Oort(keep=keep, explore=0), name="oort"),
    }
