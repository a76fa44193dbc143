"""FedAWARE's experiments: three settings, the methods with the authors' values, and how much is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedweave import methods, server
from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.augment import RandomCrop, RandomFlip
from fedweave.data.partition import Dirichlet, Partition, Shards
from fedweave.method import Method
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.runs.checks import BATCH_SIZE
from fedweave.runs.experiment import Experiment
from fedweave.system import HybridPlus, Uniform

CLIENTS, PER_ROUND, BATCH, EPOCHS, LR = 100, 10, 64, 3, 0.01  # section 5 and appendix C.1


@dataclass(frozen=True)
class Size:
    """How much is run. ``share`` scales samples, batches and the smallest client together: steps per epoch stay."""

    share: float
    rounds: int
    seeds: int
    clients: int = CLIENTS
    per_round: int = PER_ROUND


SIZES: dict[Scale, Size] = {
    "smoke": Size(1 / 150, 3, 2, 20, 3),
    "laptop": Size(1 / 5, 200, 10),
    "paper": Size(1.0, 500, 10),
}
TRAIN = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
NETWORKS = {"mnist": "mlp_fedaware", "fashion_mnist": "mlp_fedaware", "cifar10": "cnn_fedaware"}


def network(data: str, scale: Scale) -> str:
    """Return the network of the authors' code; smoke runs of CIFAR-10 take a smaller one."""
    return "mlp" if scale == "smoke" else NETWORKS[data]


def scaled(number: int, scale: Scale) -> int:
    """Return a number of samples at a scale."""
    return max(round(number * SIZES[scale].share), 5 if scale == "smoke" else 1)


def rounds_of(data: str, where: str, scale: Scale) -> int:
    """Return the rounds: 500, but 1000 on CIFAR-10 with Dirichlet labels (the authors' scripts)."""
    double = data == "cifar10" and where != "statistical"
    return SIZES[scale].rounds * (2 if double and scale != "smoke" else 1)


@cache
def samples(data: str, scale: Scale) -> Dataset:
    """Return the data as the authors prepare it: pixels of MNIST and Fashion-MNIST in [0, 1], not standardised.

    CIFAR-10 is standardised, and its training images are cropped and mirrored at random.
    """
    found = load_data(data, scale)
    if data == "cifar10":
        found = replace(found, transform=cropped_and_mirrored) if scale != "smoke" else found
    else:
        found = replace(found, mean=(0.0,), std=(1.0,))
    share = SIZES[scale].share
    if share == 1:
        return found
    return reduce_data(found, scaled(TRAIN[data], scale), 100 if scale == "smoke" else 2000)


def cropped_and_mirrored(x: Any, rng: Any) -> Any:
    """Crop at random with a padding of 4, and mirror every second image."""
    return RandomFlip()(RandomCrop(4)(x, rng), rng)


World = tuple[Partition, System]


def world(where: str, scale: Scale, alpha: float = 0.1) -> World:
    """Return who has which samples and how much work: one of the three settings of section 5.

    Statistical: two blocks of one label each, equal work. Hybrid: Dirichlet labels, so that clients differ in their
    numbers of samples and so of steps; at least ten samples, the smallest batch of Hybrid+. Hybrid+: each client's
    epochs and batch size are redrawn every round.
    """
    clients, least = SIZES[scale].clients, scaled(10, scale)
    if where == "statistical":
        return Shards(clients, 2), Uniform()
    partition = Dirichlet(clients, alpha, min_samples=least)
    return partition, HybridPlus(smallest_batch=least) if where == "hybrid+" else Uniform()


SETTINGS = {
    "statistical": "two labels per client and even work",
    "hybrid": "Dirichlet labels and uneven work",
    "hybrid+": "epochs and batch sizes change every round too",
}
# Appendix C.1 gives grids and reports the best; these are the values of the authors' scripts. τ of FedYogi is theirs.
MU = {"mnist": 0.1, "fashion_mnist": 0.1, "cifar10": 0.01}


def zoo(data: str, where: str) -> dict[str, Callable[[int], Method]]:
    """Return the compared methods, functions of the clients per round."""
    slow = data == "cifar10" and where == "statistical"
    return {
        "fedavg": methods.fedavg,
        "fedavgm": lambda k: methods.fedavgm(k, beta=0.97 if slow else 0.7),
        "fedprox": lambda k: methods.fedprox(k, MU[data]),
        "scaffold": methods.scaffold,
        "fednova": methods.fednova,
        "fednova_renorm": methods.fednova_renorm,  # the authors' code calls this FedNova
        "fedyogi": lambda k: replace(methods.fedyogi(k), server=server.Yogi(0.01, tau=1e-4)),
        "feddyn": lambda k: methods.feddyn(k, 0.01),
        "fedaware": methods.fedaware,
        "fedaware_unit": methods.fedaware_unit,
    }


def client_lr(method: str, data: str, where: str) -> float:
    """Return the clients' learning rate: in one setting the authors' script gives FedAvgM ten times the paper's."""
    return 0.1 if (method, data, where) == ("fedavgm", "cifar10", "statistical") else LR


def experiment(data: str, where: str, scale: Scale, **changes: Any) -> Experiment:
    """Return FedAvg's experiment of appendix C.1 in a setting."""
    alpha = changes.pop("alpha", 0.1)
    partition, system = world(where, scale, alpha)
    drawn = bool(system.replaces)  # Hybrid+ draws epochs and batch sizes itself
    plain = Experiment(
        method=methods.fedavg(SIZES[scale].per_round),
        data=samples(data, scale),
        partition=partition,
        system=system,
        model=network(data, scale),
        rounds=rounds_of(data, where, scale),
        lr=LR,
        epochs=None if drawn else EPOCHS,
        batch_size=BATCH_SIZE if drawn else scaled(BATCH, scale),
    )
    return replace(plain, **changes)


def settings(data: str, where: str) -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""

    def of(scale: Scale) -> Mapping[str, Any]:
        s, images = SIZES[scale], scaled(TRAIN[data], scale)
        batch = "10/600 of the data to all of it" if where == "hybrid+" else scaled(BATCH, scale)
        steps = "1 to 60" if where == "hybrid+" else -(-images // s.clients // scaled(BATCH, scale))
        return {
            "data": data,
            "training images": images,
            "clients": s.clients,
            "participation": f"{s.per_round / s.clients:.0%}",
            "client sizes": "equal" if where == "statistical" else "Dirichlet(0.1)",
            "network": network(data, scale),
            "rounds": rounds_of(data, where, scale),
            "epochs": "2 to 5" if where == "hybrid+" else EPOCHS,
            "batch": batch,
            "steps an epoch": steps if scale != "smoke" else "other",
            "learning rate": LR,
            "tuning": "the authors' values",
        }

    return of
