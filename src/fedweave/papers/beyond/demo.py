"""The comparisons of ``make demo`` and ``make demo-plain``, declared before they were run.

In ``beyond/demo`` forty clients hold one digit each, and those with the digits 0 to 4 do little work and lose most of
their answers. In ``beyond/demo-plain`` all clients are alike, and nothing is to be gained over plain FedAvg. All
methods have the same simulated time. ``make demo-tune`` found the learning rates, with other seeds and on a validation
split, the same trials for each method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.partition import IID, OneClass, Partition
from fedweave.papers.common.panels import Make, bars, curves
from fedweave.papers.common.record import Record, Records, end_of, reached
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.runs.experiment import Experiment
from fedweave.system import Dynamic, Uniform

CLIENTS, NETWORK, TARGET = 40, "logistic", 0.85
METHODS = ("fedavg", "fedacs", "feddd", "fedbuff")
BYTES = "Megabytes, both ways"


@dataclass(frozen=True)
class Setting:
    """A world, which clients hold which digits, the simulated seconds, and each method's learning rate."""

    system: System
    partition: Partition
    per_round: int
    seconds: float
    lr: Mapping[str, float]
    about: str


SETTINGS = {
    "demo": Setting(
        Dynamic(slow_work=(1, 5), slow_loss=(0.6, 0.8)),
        OneClass(CLIENTS, "sorted"),
        20,
        180.0,
        {"fedavg": 0.1, "fedacs": 0.3, "feddd": 0.1, "fedbuff": 0.1},
        "digits 0 to 4 on clients with 1 to 5 steps that lose 60 to 80 % of their answers, the others on clients with "
        "20 to 30 steps that lose 0 to 10 %",
    ),
    "demo-plain": Setting(
        Uniform(),
        IID(CLIENTS),
        4,
        60.0,
        {"fedavg": 0.1, "fedacs": 0.03, "feddd": 1.0, "fedbuff": 0.1},
        "all clients alike: shuffled data, one pass over it, one second, no losses",
    ),
}


@cache
def samples(scale: Scale) -> Dataset:
    """Return the 5000 images that the library brings along, or a part of them."""
    found = load_data("mnist5k", scale)
    return reduce_data(found, 400, 100, pool=4) if scale == "smoke" else found


def arms(setting: Setting) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return every method in a setting, as ``make demo`` runs it."""

    def at(scale: Scale) -> Mapping[str, Experiment]:
        return {
            name: Experiment(
                method=getattr(methods, name)(setting.per_round),
                data=samples(scale),
                partition=setting.partition,
                model=NETWORK,
                system=setting.system,
                lr=setting.lr[name],
                stop_after=setting.seconds if scale != "smoke" else 6.0,
                rounds=1000,  # more than any method needs
                evaluate_every=2,
                client_eval=1000,  # after the last round
                target=TARGET,
            )
            for name in METHODS
        }

    return at


def settings(setting: Setting) -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""

    def of(scale: Scale) -> Mapping[str, Any]:
        data, experiment = samples(scale), arms(setting)(scale)["fedavg"]
        return {
            "data": data.name,
            "training images": len(data.y),
            "test images": len(data.test_y),
            "clients": CLIENTS,
            "client sizes": "equal",
            "participation": f"{setting.per_round} clients a round, or at a time; feddd asks all",
            "world": setting.about,
            "network": NETWORK,
            "batch": experiment.batch_size,
            "steps an epoch": math.ceil(len(data.y) / CLIENTS / experiment.batch_size),
            "simulated seconds": experiment.stop_after,
            "learning rates": ", ".join(f"{name} {lr:g}" for name, lr in setting.lr.items()),
            "tuning": "the same learning rates tried for each method, four other seeds, a validation split",
            "target": f"{100 * TARGET:g} % test accuracy",
        }

    return of


def _value(name: str) -> Callable[[Record], float]:
    return lambda record: record.values[name]


def worst_class(record: Record) -> float:
    """Return the accuracy of the digit that the last model knows least."""
    return float(np.nanmin(record.rounds["class_accuracy"][-1]))


def megabytes(record: Record) -> float:
    """Return what was sent both ways in the whole run, lost answers included."""
    return (record.values["bytes_up"] + record.values["bytes_down"]) / 1e6


MEASURES = {
    "final accuracy": Measure(_value("value"), "%"),
    "worst digit": Measure(worst_class, "%"),
    "worst tenth of clients": Measure(_value("client_worst_decile"), "%"),
    "MB": Measure(megabytes, "MB", ratio=True),
    "seconds to the target": Measure(reached(TARGET, time="clock"), "s", end=end_of("clock")),
}


def over_bytes(records: Records) -> Any:
    """Return the panel of accuracies over all bytes that travelled."""
    sent = {
        arm: [
            r._replace(rounds={**r.rounds, BYTES: (r.rounds["bytes_up"] + r.rounds["bytes_down"]) / 1e6}) for r in runs
        ]
        for arm, runs in records.items()
    }
    return curves("Accuracy over bytes", "accuracy", BYTES)(sent)


PANELS: tuple[Make, ...] = (
    curves("Accuracy over simulated time", "accuracy", "clock"),
    over_bytes,
    bars("Worst tenth of clients", _value("client_worst_decile"), "Accuracy on their own test data"),
    bars("Worst digit", worst_class, "Accuracy"),
)
NOTES = (
    "Every method has the same simulated time: a run ends with the first evaluated round after it.",
    "feddd asks all clients in every round, which send 60 % of the model.",
)
STUDIES = tuple(
    Study(
        name=f"beyond/{name}",
        shows=f"plain and uneven-aware methods in the same simulated time (make {name}): {setting.about}",
        arms=arms(setting),
        seeds={"smoke": 2, "laptop": 10, "paper": 10},
        measures=MEASURES,
        panels=PANELS,
        settings=settings(setting),
        notes=NOTES,
    )
    for name, setting in SETTINGS.items()
)
