"""Where FedAWARE's experiments take place: three settings, the methods with their grids, and how much is run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedweave import methods, server
from fedweave.core.roles import System
from fedweave.data import Dataset, load
from fedweave.data.partition import Dirichlet, Partition, Shards
from fedweave.method import Method
from fedweave.papers.common.claims import Scale
from fedweave.papers.common.parallel import Told, together
from fedweave.papers.common.training import smaller
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import run
from fedweave.runs.results import Result
from fedweave.system import HybridPlus, Uniform

Key = TypeVar("Key", bound=Hashable)
World = tuple[Partition, System]


def statistical(clients: int) -> World:
    """Statistical only: two blocks of one label each, the same work for everyone."""
    return Shards(clients, 2), Uniform()


def hybrid(clients: int, alpha: float = 0.1) -> World:
    """Hybrid: Dirichlet labels, so that clients have more or fewer samples and as many steps as that takes.

    Ten samples at least, the smallest batch of Hybrid+.
    """
    return Dirichlet(clients, alpha, min_samples=10), Uniform()


def hybrid_plus(clients: int) -> World:
    """Hybrid+: Hybrid, and every round another number of epochs and another batch size for each client."""
    return hybrid(clients)[0], HybridPlus()


SETTINGS: dict[str, Callable[[int], World]] = {
    "statistical": statistical,
    "hybrid": hybrid,
    "hybrid+": hybrid_plus,
}


def _yogi(per_round: int, lr: float = 0.01) -> Method:
    """FedYogi with this paper's τ."""
    return replace(methods.fedyogi(per_round), server=server.Yogi(lr, tau=1e-4))


METHODS: dict[str, Callable[..., Method]] = {  # of clients per round, and a value of the method's grid
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
# Appendix C.1: what each method was tuned over. The first value is that of the authors' scripts, and our default.
GRIDS: dict[str, tuple[float, ...]] = {
    "fedavgm": (0.7, 0.9, 0.97, 0.997),  # server momentum
    "fedprox": (0.01, 0.1, 1.0, 10.0),  # μ
    "fedyogi": (1e-2, *(float(10.0**p) for p in np.arange(-3, 1.5, 0.5) if p != -2)),  # server learning rate
    "feddyn": (0.01, 0.1, 0.001),  # α
}


class Size(NamedTuple):
    """How much of a published experiment is run."""

    train: int | None  # samples; None: all
    test: int | None
    clients: int
    per_round: int
    batch: int  # fewer samples are cut into as many steps as published
    rounds: int
    seeds: int
    tuned: bool = False  # over the grids, as published: the best of each


SIZES: dict[Scale, Size] = {
    "smoke": Size(train=400, test=100, clients=20, per_round=4, batch=5, rounds=4, seeds=2),
    "laptop": Size(train=6000, test=2000, clients=100, per_round=10, batch=8, rounds=300, seeds=3),
    "paper": Size(train=None, test=None, clients=100, per_round=10, batch=64, rounds=500, seeds=3, tuned=True),
}
MODELS = {"mnist": "cnn_small", "fashion_mnist": "cnn_small", "cifar10": "cnn_fedacs_cifar10"}


@dataclass(frozen=True)
class Stage:
    """One data set at one scale."""

    data: str
    scale: Scale
    told: Told | None

    @property
    def size(self) -> Size:
        """How much is run."""
        return SIZES[self.scale]

    @cached_property
    def samples(self) -> Dataset:
        """The data, made small where the scale is; what is not there raises the sentence that says how to get it."""
        data, s = load("mnist5k" if self.scale == "smoke" and self.data == "mnist" else self.data), self.size
        return data if s.train is None else smaller(data, s.train, s.test or s.train)

    def experiment(self, world: World, **changes: Any) -> Experiment:
        """Return FedAvg's experiment of appendix C.1 in this world: lr 0.01, three epochs."""
        s = self.size
        plain = Experiment(
            method=methods.fedavg(s.per_round),
            data=self.samples,
            partition=world[0],
            system=world[1],
            model="mlp" if self.scale == "smoke" else MODELS[self.data],
            rounds=s.rounds,
            lr=0.01,
            epochs=3,
            batch_size=s.batch,
            workers=1,
        )
        return replace(plain, **changes)

    def run(self, experiments: Mapping[Key, Experiment]) -> dict[Key, list[Result]]:
        """Return the runs of every experiment over the seeds; of one seed all meet the same clients and world."""
        seeds = range(self.size.seeds)
        calls = {(key, seed): (replace(e, seed=seed),) for seed in seeds for key, e in experiments.items()}
        found = together(run, calls, self.told)
        return {key: [found[key, seed] for seed in seeds] for key in experiments}

    def arms(self, name: str) -> list[Method]:
        """Return a method with the default of its grid, or with every value of it where the scale is tuned."""
        values = GRIDS.get(name, ())[: None if self.size.tuned else 1]
        k = self.size.per_round
        return [METHODS[name](k, value) for value in values] or [METHODS[name](k)]

    def note(self, experiment: Experiment) -> str:
        """Return how it was made."""
        s = self.size
        grid = "each method tuned over its grid (C.1)" if s.tuned else "no tuning: the values of the authors' scripts"
        return (
            f"{self.data}: {len(self.samples.x)} training images, {s.clients} clients, {s.per_round} per round (all of "
            f"them in FedAWARE's first), {s.rounds} rounds, {s.seeds} seeds, {experiment.model}; {grid}."
        )


def renamed(runs: Sequence[Result], name: str) -> list[Result]:
    """Return the runs under another name."""
    return [replace(r, summary={**r.summary, "method": name}) for r in runs]
