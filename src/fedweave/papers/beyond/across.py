"""Sixteen methods of all papers, alone and combined, in three worlds: the same data, network and simulated time.

Every method's learning rate was tuned by ``make methods-tune`` with other seeds and on a validation split, the same
trials for each; its other settings are the library's defaults. Worlds, data, budgets and arms were declared before any
method was run, and targets follow from the tuning runs of FedAvg alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.aggregate import Aware
from fedweave.core.records import Array
from fedweave.core.roles import System
from fedweave.data import Dataset
from fedweave.data.partition import Dirichlet, Partition
from fedweave.method import Method
from fedweave.papers.beyond.asynchronous import about_arms, trailing_mean
from fedweave.papers.beyond.sorted_labels import SortedDirichlet
from fedweave.papers.common.ledger import LEDGER
from fedweave.papers.common.panels import Make, bars, curves
from fedweave.papers.common.record import Record, Records, end_of, reached, value
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.runs.experiment import Experiment
from fedweave.sample import ACS, FirstEveryone
from fedweave.system import Dynamic, Latency, Wireless
from fedweave.upload import ErrorFeedback, TopK

CLIENTS, PER_ROUND, ALPHA = 40, 10, 0.3
NETWORK, STEPS, BATCH, POOL = "mlp", 10, 8, 2
LR = 0.1  # where tuning begins
WINDOW = 0.05  # of the simulated time, over which accuracies are averaged
MOST = 10_000  # rounds: more than any method needs
BYTES, DEVICE = "Megabytes, both ways", "Device seconds"
TUNED = LEDGER / "tuned.json"  # written by fedweave.papers.beyond.tuning


@dataclass(frozen=True)
class World:
    """A world, how labels are dealt in it and why, and the simulated seconds of every method."""

    system: System
    partition: Partition
    seconds: float
    about: str
    labels: str
    steps: int | None = STEPS  # None: the world says how many


WORLDS = {
    "lossy": World(
        Dynamic(),
        SortedDirichlet(CLIENTS, ALPHA),
        180.0,
        "1 to 30 steps of 0.1 s, up to half of the answers lost (FedACS I.3.1)",
        "low digits on slow clients with lossy links: rare answers bias a model only where they go with the data",
        None,
    ),
    "latency": World(
        Latency((0.0, 2.0), law="lognormal"),
        Dirichlet(CLIENTS, ALPHA),
        200.0,
        "log-normal seconds of mean 1, σ = 1",
        "labels do not go with latencies, as in the paper on latency-optimal selection",
    ),
    "wireless": World(
        Wireless(),
        Dirichlet(CLIENTS, ALPHA),
        40_000.0,
        "links and processors of FedDD's table 4",
        "labels do not go with links, as in FedDD",
    ),
}
ARMS = {
    "fedavg": "ten clients a round, which waits for all of them",
    "fedavgm": "with server momentum",
    "fednova": "updates divided by the work in them",
    "scaffold": "with control variates",
    "fedacs": "ten draws that make up for lossy links and uneven work",
    "fedaware": "the shortest combination of all clients' momenta",
    "fedpracdelta": "ten draws by diversity and noise of the gradients",
    "latency_optimal": "ten draws by the plan of least expected time, after five trial rounds",
    "oort": "ten clients by loss and time",
    "feddd": "all clients, which send 60 % of their models",
    "fedbuff": "ten clients at a time, five answers a step",
    "fedavg_topk": "FedAvg with the largest tenth of each update, and error feedback",
    "fedbuff_topk": "FedBuff with the largest tenth of each update, and error feedback",
    "feddd_acs": "FedDD's dropout on FedACS's cohort",
    "latency_dropout": "FedDD's dropout on the latency-optimal cohort",
    "fedaware_acs": "FedAWARE's aggregation on FedACS's cohort",
}


def method_of(arm: str) -> Method:
    """Return an arm's method, as registered or combined here."""
    compressed = ErrorFeedback(TopK(0.1))
    if arm in ("fedavg_topk", "fedbuff_topk"):
        return replace(getattr(methods, arm.removesuffix("_topk"))(PER_ROUND), upload=compressed, name=arm)
    if arm == "fedaware_acs":
        return Method(FirstEveryone(ACS(PER_ROUND), 1), aggregator=Aware(start="seen"), name=arm)
    return getattr(methods, arm)(PER_ROUND)


@cache
def samples(scale: Scale) -> Dataset:
    """Return the images that the library brings along, averaged over 2 × 2 pixels, or a part of them."""
    found = load_data("mnist5k", scale)
    train, test = (400, 100) if scale == "smoke" else (len(found.y), len(found.test_y))
    return reduce_data(found, train, test, 4 if scale == "smoke" else POOL)


@cache
def tuned() -> Mapping[str, Mapping[str, Any]]:
    """Return the rates, scores and target of each world that was tuned."""
    return json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}


def target_of(name: str) -> float:
    """Return a world's target accuracy."""
    return tuned().get(name, {}).get("target", 0.8)


def arms(name: str, rates: Mapping[str, float] | None = None) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return every method in a world, at its tuned learning rate unless others are given."""
    world = WORLDS[name]
    lr = tuned().get(name, {}).get("rates", {}) if rates is None else rates

    def at(scale: Scale) -> Mapping[str, Experiment]:
        return {
            arm: Experiment(
                method=method_of(arm),
                data=samples(scale),
                partition=world.partition,
                model=NETWORK,
                system=world.system,
                lr=lr.get(arm, LR),
                steps=world.steps,
                batch_size=BATCH,
                stop_after=world.seconds if scale != "smoke" else world.seconds / 100,
                rounds=MOST,
                evaluate_every=4 if arm.startswith("fedbuff") else 2,  # as often for as many answers
                client_eval=MOST,  # after the last round
            )
            for arm in ARMS
        }

    return at


def settings(name: str) -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""
    world = WORLDS[name]

    def of(scale: Scale) -> Mapping[str, Any]:
        data, experiment = samples(scale), arms(name)(scale)["fedavg"]
        return {
            "data": f"{data.name}, {'×'.join(map(str, data.shape[1:]))} pixels",
            "training images": len(data.y),
            "test images": len(data.test_y),
            "clients": CLIENTS,
            "client sizes": f"Dirichlet({ALPHA}) labels",
            "labels": world.labels,
            "participation": f"{PER_ROUND} clients a round, or at a time; feddd asks all",
            "world": world.about,
            "network": NETWORK,
            "local steps": world.steps or "1 to 30",
            "batch": BATCH,
            "steps an epoch": math.ceil(len(data.y) / CLIENTS / BATCH),
            "simulated seconds": experiment.stop_after,
            "learning rates": ", ".join(f"{arm} {each.lr:g}" for arm, each in arms(name)(scale).items()),
            "tuning": "the same learning rates tried for each method, two other seeds, a validation split",
            "target": f"{100 * target_of(name):g} % test accuracy",
        }

    return of


def within_budget(seconds: float) -> Callable[[Record], Record]:
    """Return what cuts a run: its evaluated rounds that end within the budget, with steady accuracies.

    The accuracy of a round is the mean over those of the last twentieth of the budget, itself included, so that no
    method reaches the target by chance because it evaluates more often; "each" is its own.
    """

    def cut(record: Record) -> Record:
        given = record.rounds
        limit = min(seconds, given["clock"][-1])  # a smoke run has less
        rows = (given["clock"] <= limit) & np.isfinite(given["accuracy"])
        columns: dict[str, Array] = {
            **given,
            "each": given["accuracy"],
            BYTES: (given["bytes_up"] + given["bytes_down"]) / 1e6,
            DEVICE: np.cumsum(given["device_seconds"]),
        }
        rounds = {name: column[rows] for name, column in columns.items()}
        rounds["accuracy"] = trailing_mean(rounds["each"], rounds["clock"], WINDOW * limit)
        return record._replace(rounds=rounds)

    return cut


def measures(name: str) -> dict[str, Measure]:
    """Return what is measured in a world."""
    cut, target = within_budget(WORLDS[name].seconds), target_of(name)

    def final(record: Record) -> float:
        rounds = cut(record).rounds
        return float(rounds["each"][rounds["clock"] > 0.9 * rounds["clock"][-1]].mean())

    def to_target(time: str, unit: str) -> Measure:
        def when(record: Record) -> float:
            return reached(target, time=time)(cut(record))

        return Measure(when, unit, end=lambda record: end_of(time)(cut(record)))

    return {
        "final accuracy": Measure(final, "%"),
        "worst tenth of clients": Measure(value("client_worst_decile"), "%"),
        "rounds to the target": to_target("round", ""),
        "seconds to the target": to_target("clock", "s"),
        "MB to the target": to_target(BYTES, "MB"),
        "device seconds to the target": to_target(DEVICE, "s"),
    }


def over(name: str, title: str, x: str) -> Make:
    """Return a panel of the accuracies within the budget over the logarithm of a column."""
    cut = within_budget(WORLDS[name].seconds)

    def make(records: Records) -> Any:
        return curves(title, "accuracy", x, log="x")({arm: [cut(run) for run in runs] for arm, runs in records.items()})

    return make


NOTES = (
    about_arms(ARMS),
    (
        "Every method has the same simulated time: rounds that end later do not count, but for the model that clients "
        "evaluate. Accuracies are means over the last twentieth of that time, the final one over its last tenth."
    ),
    (
        "The target is what FedAvg had at half of the time in its best tuning runs, rounded down to a whole per cent. "
        "Learning rates are tuned for every method; all other settings are defaults."
    ),
)


def study(name: str) -> Study:
    """Return the study of all methods in a world."""
    world = WORLDS[name]
    return Study(
        name=f"beyond/methods/{name}",
        shows=f"sixteen tuned methods of all papers in the same simulated time: {world.about}",
        arms=arms(name),
        seeds={"smoke": 2, "laptop": 10, "paper": 10},
        measures=measures(name),
        panels=(
            over(name, "Accuracy over simulated time", "clock"),
            over(name, "Accuracy over bytes", BYTES),
            bars("Worst tenth of clients", value("client_worst_decile"), "Accuracy on their own test data"),
        ),
        settings=settings(name),
        notes=NOTES,
    )


STUDIES = tuple(study(name) for name in WORLDS)
