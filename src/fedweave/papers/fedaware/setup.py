"""FedAWARE's experiments: three settings, the methods with their grids, and how much is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedweave import methods, server
from fedweave.core.roles import System
from fedweave.data.partition import Dirichlet, Partition, Shards
from fedweave.method import Method
from fedweave.papers.common.scale import ImageSize, Scale
from fedweave.papers.common.training import Setup
from fedweave.runs.checks import BATCH_SIZE
from fedweave.runs.experiment import Experiment
from fedweave.system import HybridPlus, Uniform

World = tuple[Partition, System]


def statistical(clients: int) -> World:
    """Statistical only: two blocks of one label each, equal work."""
    return Shards(clients, 2), Uniform()


def hybrid(clients: int, alpha: float = 0.1) -> World:
    """Hybrid: Dirichlet labels, so that clients differ in their numbers of samples and so of steps.

    At least ten samples, the smallest batch of Hybrid+.
    """
    return Dirichlet(clients, alpha, min_samples=10), Uniform()


def hybrid_plus(clients: int) -> World:
    """Hybrid+: Hybrid, with each client's epochs and batch size redrawn every round."""
    return hybrid(clients)[0], HybridPlus()


SETTINGS: dict[str, Callable[[int], World]] = {
    "statistical": statistical,
    "hybrid": hybrid,
    "hybrid+": hybrid_plus,
}


def _yogi(per_round: int, lr: float = 0.01) -> Method:
    """FedYogi with this paper's τ."""
    return replace(methods.fedyogi(per_round), server=server.Yogi(lr, tau=1e-4))


METHODS: dict[str, Callable[..., Method]] = {  # functions of the clients per round and a value of the method's grid
    "fedavg": methods.fedavg,
    "fedavgm": lambda k, beta=0.7: methods.fedavgm(k, beta=beta),
    "fedprox": methods.fedprox,
    "scaffold": methods.scaffold,
    "fednova": methods.fednova,
    "fednova_renorm": methods.fednova_renorm,  # the authors' code calls this FedNova
    "fedyogi": _yogi,
    "feddyn": methods.feddyn,
    "fedaware": methods.fedaware,
    "fedaware_unit": methods.fedaware_unit,
}
# Appendix C.1: the grid of each method. The first value is that of the authors' scripts, and our default.
GRIDS: dict[str, tuple[float, ...]] = {
    "fedavgm": (0.7, 0.9, 0.97, 0.997),  # server momentum
    "fedprox": (0.01, 0.1, 1.0, 10.0),  # μ
    "fedyogi": (1e-2, *(float(10.0**p) for p in np.arange(-3, 1.5, 0.5) if p != -2)),  # server learning rate
    "feddyn": (0.01, 0.1, 0.001),  # α
}


@dataclass(frozen=True, kw_only=True)
class Size(ImageSize):
    """How much of a published experiment is run; smaller batches keep the published number of local steps."""

    clients: int
    per_round: int
    tuned: bool = False  # each method at the best value of its grid, as published


SIZES: dict[Scale, Size] = {
    "smoke": Size(train=400, test=100, clients=20, per_round=4, batch=5, rounds=4, seeds=2),
    "laptop": Size(train=6000, test=2000, clients=100, per_round=10, batch=8, rounds=300, seeds=3),
    "paper": Size(clients=100, per_round=10, batch=64, rounds=500, seeds=3, tuned=True),
}
MODELS = {"mnist": "cnn_small", "fashion_mnist": "cnn_small", "cifar10": "cnn_fedacs_cifar10"}


class FedAwareSetup(Setup):
    """One data set at one scale."""

    @property
    def size(self) -> Size:
        """How much is run."""
        return SIZES[self.scale]

    def experiment(self, world: World, **changes: Any) -> Experiment:
        """Return FedAvg's experiment of appendix C.1 in this world: lr 0.01, three epochs."""
        s, drawn = self.size, bool(world[1].replaces)  # Hybrid+ draws epochs and batch sizes itself
        plain = Experiment(
            method=methods.fedavg(s.per_round),
            data=self.samples,
            partition=world[0],
            system=world[1],
            model="mlp" if self.scale == "smoke" else MODELS[self.data],
            rounds=s.rounds,
            lr=0.01,
            workers=1,
            epochs=None if drawn else 3,
            batch_size=BATCH_SIZE if drawn else s.batch,
        )
        return replace(plain, **changes)

    def arms(self, name: str) -> list[Method]:
        """Return a method with the default of its grid, or with every value of the grid at a tuned scale."""
        values = GRIDS.get(name, ())[: None if self.size.tuned else 1]
        k = self.size.per_round
        return [METHODS[name](k, value) for value in values] or [METHODS[name](k)]

    def describe(self, experiment: Experiment) -> str:
        """Return a note on the data and the settings."""
        s = self.size
        grid = "each method tuned over its grid (C.1)" if s.tuned else "no tuning: the values of the authors' scripts"
        return (
            f"{self.data}: {len(self.samples.x)} training images, {s.clients} clients, {s.per_round} per round (all of "
            f"them in FedAWARE's first), {s.rounds} rounds, {s.seeds} seeds, {experiment.model}; {grid}."
        )
