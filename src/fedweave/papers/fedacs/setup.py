"""FedACS's experiments on images: the settings of tables 1, 4 and 5, and the numbers that they print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.partition import Dirichlet, OneClass, Partition
from fedweave.method import Method
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.fedacs.quadratics import METHODS
from fedweave.runs.experiment import Experiment
from fedweave.system import Dynamic, Static

CLIENTS, PER_ROUND = 20, 6
ROUNDS: Mapping[Scale, int] = {"smoke": 3, "laptop": 200, "paper": 200}


class Parameters(NamedTuple):
    """A column of table 3, and sizes: training images and batch, as published and on a laptop, scaled together.

    Loss, learning rate and batch are printed in merged columns; CIFAR-10 is taken to share CINIC-10's.
    """

    network: str
    lr: float
    sizes: Mapping[Scale, tuple[int, int]]


SMOKE = (200, 10)
PARAMETERS = {
    "mnist": Parameters(
        "cnn_fedacs_mnist", 0.02, {"smoke": SMOKE, "laptop": (6_000, 50), "paper": (60_000, 512)}
    ),
    "cifar10": Parameters(
        "cnn_fedacs_cifar10", 0.03, {"smoke": SMOKE, "laptop": (10_000, 205), "paper": (50_000, 1024)}
    ),
    "cinic10": Parameters(
        "cnn_fedacs_cinic10", 0.03, {"smoke": SMOKE, "laptop": (18_000, 205), "paper": (90_000, 1024)}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Two columns of a table: setting, target accuracy, and what the paper reports, in the order of METHODS."""

    data: str
    partition: Partition
    world: System
    target: float
    rounds: Sequence[float]  # to the target; nan: a dash, never
    seconds: Sequence[float]  # of all devices, to the target; its ratios differ from some that are printed

    def experiment(self, scale: Scale) -> Experiment:
        """Return the experiment of FedACS, with one learning rate for all methods."""
        p = PARAMETERS[self.data]
        return Experiment(
            method=METHODS["fedacs"],
            data=samples(self.data, scale),
            partition=self.partition,
            model=p.network if scale != "smoke" else "mlp",
            system=self.world,
            rounds=ROUNDS[scale],
            lr=p.lr,
            batch_size=p.sizes[scale][1],
        )

    def arms(self, scale: Scale, contest: Mapping[str, Method] = METHODS) -> Mapping[str, Experiment]:
        """Return one experiment for every method."""
        base = self.experiment(scale)
        return {name: replace(base, method=method) for name, method in contest.items()}

    def settings(self, scale: Scale) -> Mapping[str, Any]:
        """Return the settings that are printed side by side."""
        p, (images, batch) = PARAMETERS[self.data], PARAMETERS[self.data].sizes[scale]
        return {
            "data": self.data if scale != "smoke" else f"{self.data}, averaged over 2 × 2 pixels",
            "training images": images,
            "clients": CLIENTS,
            "participation": f"{PER_ROUND / CLIENTS:.0%}",
            "client sizes": "equal" if self.data == "mnist" else str(self.partition),
            "network": p.network if scale != "smoke" else "mlp",
            "rounds": ROUNDS[scale],
            "batch": batch,
            "steps an epoch": -(-images // CLIENTS // batch),
            "learning rate": p.lr,
            "tuning": "none; step lengths calibrated (I.2)",
        }


@cache
def samples(data: str, scale: Scale) -> Dataset:
    """Return the data; on a laptop a part of it, with 2,000 test images."""
    found, (images, _) = load_data(data, scale), PARAMETERS[data].sizes[scale]
    if scale == "paper":
        return found
    return reduce_data(found, images, 2000) if scale == "laptop" else reduce_data(found, images, 100, pool=2)


NEVER = np.nan
MIXED, SORTED = OneClass(CLIENTS), OneClass(CLIENTS, "sorted")
DYNAMIC, STATIC = Dynamic(unit="epochs"), Static(unit="epochs")  # on images T counts epochs
TABLE1 = {
    "mnist": Task(
        "mnist", MIXED, DYNAMIC, 0.70,
        (68, 93, 84, 115, 99, NEVER, 72), (3548.6, 5470.4, 4884.4, 7289.9, 6043.4, NEVER, 4391.9),
    ),
    "cifar10": Task(
        "cifar10", Dirichlet(CLIENTS, 0.1), DYNAMIC, 0.40,
        (100, 143, 130, 165, 161, NEVER, 80), (6928.9, 12482.0, 7917.0, 13479.8, 13314.8, NEVER, 5095.3),
    ),
    "cinic10": Task(
        "cinic10", Dirichlet(CLIENTS, 0.1), DYNAMIC, 0.35,
        (55, 74, 67, 104, 100, NEVER, 65), (11452.3, 14550.0, 13256.8, 22200.5, 21802.2, NEVER, 14248.9),
    ),
}  # fmt: skip
TABLE4 = {
    "mnist": Task(
        "mnist", MIXED, STATIC, 0.70,
        (64, 92, 68, 92, 103, NEVER, NEVER), (4307.7, 6458.7, 5039.2, 6846.9, 7893.4, NEVER, NEVER),
    ),
    "cifar10": Task(
        "cifar10", Dirichlet(CLIENTS, 0.1), STATIC, 0.40,
        (68, 112, 101, 148, 117, NEVER, 72), (4706.3, 8609.0, 8221.3, 11862.5, 8536.8, NEVER, 6307.7),
    ),
    "cinic10": Task(
        "cinic10", Dirichlet(CLIENTS, 0.1), STATIC, 0.35,
        (36, 57, 55, 73, 83, NEVER, 47), (12837.2, 19999.3, 18334.6, 25479.9, 29968.5, NEVER, 13953.2),
    ),
}  # fmt: skip
TABLE5 = {
    "0.05": Task(
        "cifar10", Dirichlet(CLIENTS, 0.05), DYNAMIC, 0.35,
        (107, 149, 142, NEVER, NEVER, NEVER, 110), (6186.2, 9591.7, 8982.4, NEVER, NEVER, NEVER, 6310.7),
    ),
    "0.2": Task(
        "cifar10", Dirichlet(CLIENTS, 0.2), DYNAMIC, 0.35,
        (51, 88, 88, 156, 125, NEVER, 54), (4747.3, 8930.0, 8873.4, 17728.6, 13690.4, NEVER, 5305.3),
    ),
    "0.35": Task(
        "cifar10", Dirichlet(CLIENTS, 0.35), DYNAMIC, 0.40,
        (36, 88, 90, 159, 94, NEVER, 32), (3391.5, 8918.3, 9293.9, 17733.9, 9901.3, NEVER, 3100.7),
    ),
}  # fmt: skip
# Whose classes: the paper deals one class to a client and does not say which. "different": neighbours own the same
# class, so the slow and the fast half have classes of their own, and nobody makes up for one that is lost.
OTHER_DEAL = {
    "table1/mnist-different": replace(TABLE1["mnist"], partition=SORTED),
    "table4/mnist-different": replace(TABLE4["mnist"], partition=SORTED),
}
