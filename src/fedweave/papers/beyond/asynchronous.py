"""Time and bytes to a target in four worlds: rounds that wait, close early or overlap, fast clients, small answers.

All arms train the same network with the same local work and learning rate, and each may have the same number of
participations: a client that is asked and trains, whether its answer counts or not. Rounds would be no common measure,
because they hold from 5 to 100 participations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedweave import methods
from fedweave.aggregate import Mean, Stale
from fedweave.core.records import Array
from fedweave.core.roles import Aggregator, Pacing, System
from fedweave.data import Dataset
from fedweave.data.partition import Dirichlet
from fedweave.method import Method
from fedweave.pacing import Synchronous
from fedweave.papers.common.panels import Bar, Make, Panel, curves
from fedweave.papers.common.record import Record, Records, end_of, reached
from fedweave.papers.common.scale import Scale, load_data, reduce_data
from fedweave.papers.common.study import OURS, Measure, Study
from fedweave.papers.feddd.measures import always
from fedweave.runs.experiment import Experiment
from fedweave.sample import Uniform
from fedweave.system import Dynamic, Latency, Wireless
from fedweave.upload import DifferentialDropout

PER_ROUND, BUFFER = 10, 5
CONCURRENCIES = (10, 20, 40)
NETWORK, LR, STEPS, ALPHA = "mlp", 0.05, 15, 0.3
TARGET = 0.90  # of test accuracy
SHOWN = f"{100 * TARGET:g} %"
WINDOW = 50  # participations over which accuracies are averaged
BYTES = "Megabytes, both ways"


@dataclass(frozen=True)
class World:
    """A world, and its deadline: four participations in five take no longer."""

    system: System
    deadline: float
    about: str
    steps: int | None = STEPS  # None: the world says how many


WORLDS = {
    "even": World(Latency((0.9, 1.1)), 1.06, "0.9 to 1.1 s"),
    "lognormal": World(Latency((0.0, 2.0), law="lognormal"), 1.407, "log-normal seconds of mean 1, σ = 1"),
    "wireless": World(Wireless(), 1550.0, "links and processors of FedDD's table 4"),
    "dynamic": World(Dynamic(), 2.6, "1 to 30 steps of 0.1 s, up to half of the answers lost (FedACS I.3.1)", None),
}
ARMS = {
    "synchronous": "ten clients a round, which waits for all of them",
    "synchronous, 5": "the same with five",
    "deadline": "ten clients; what comes after the deadline is lost",
    "over-selection": "thirteen clients; the round ends with the tenth answer",
    "semi-synchronous": "ten clients a round of the deadline's length; late answers count later, scaled by 1/√(1 + τ)",
    **{f"fedbuff, {c}": f"{c} clients at a time, five answers a step, scaled by 1/√(1 + τ)" for c in CONCURRENCIES},
    "latency-optimal": "ten draws by the plan of least expected time, after five trial rounds",
    "feddd": "all clients, which send 60 % of their models",
    "feddd, 10": "FedDD's dropout on ten clients a round",
}


@dataclass(frozen=True)
class Size:
    """How much is run. Images and batch shrink together, so that steps per epoch stay."""

    clients: int
    images: int
    test: int
    batch: int
    participations: int
    pool: int = 1  # pixels a side that are averaged


SIZES: dict[Scale, Size] = {
    "smoke": Size(50, 200, 50, 2, 50, pool=4),
    "laptop": Size(100, 15_000, 2000, 8, 3000),
    "paper": Size(100, 60_000, 10_000, 32, 3000),
}


@cache
def samples(scale: Scale) -> Dataset:
    """Return MNIST, or a part with as many samples of each class."""
    size, found = SIZES[scale], load_data("mnist", scale)
    return found if scale == "paper" else reduce_data(found, size.images, size.test, size.pool)


Selections = Callable[[float, int], Mapping[str, tuple[Method, float]]]  # of a deadline and a number of clients


def selections(deadline: float, clients: int) -> dict[str, tuple[Method, float]]:
    """Return every arm's method, and how many participations at least its rounds have: few enough to end none early.

    Draws of latency-optimal selection may hit a client twice, which then trains once. Lost answers add to FedBuff's.
    """
    plain, mean = Uniform(PER_ROUND), Mean()

    def fedavg(pacing: Pacing, aggregator: Aggregator) -> Method:
        return Method(plain, aggregator=aggregator, pacing=pacing, name="fedavg")

    return {
        "synchronous": (methods.fedavg(PER_ROUND), PER_ROUND),
        "synchronous, 5": (methods.fedavg(BUFFER), BUFFER),
        "deadline": (fedavg(Synchronous(deadline), mean), PER_ROUND),
        "over-selection": (fedavg(Synchronous(over_selection=1.3), mean), 1.3 * PER_ROUND),
        "semi-synchronous": (fedavg(Synchronous(deadline, late="discount"), Stale(mean)), 0.95 * PER_ROUND),
        **{f"fedbuff, {c}": (methods.fedbuff(c, BUFFER), BUFFER) for c in CONCURRENCIES},
        "latency-optimal": (methods.latency_optimal(PER_ROUND), PER_ROUND / 1.2),
        "feddd": (methods.feddd(), clients),
        "feddd, 10": (Method(plain, upload=DifferentialDropout(), name="feddd"), PER_ROUND),
    }


def arms(world: World, chosen: Selections = selections) -> Callable[[Scale], Mapping[str, Experiment]]:
    """Return every arm in a world."""

    def at(scale: Scale) -> Mapping[str, Experiment]:
        size = SIZES[scale]
        base = Experiment(
            method=methods.fedavg(PER_ROUND),
            data=samples(scale),
            partition=Dirichlet(size.clients, ALPHA),
            model=NETWORK,
            system=world.system,
            lr=LR,
            steps=world.steps,
            batch_size=size.batch,
        )
        return {
            name: replace(
                base,
                method=method,
                rounds=-int(-size.participations // least),
                evaluate_every=max(int(PER_ROUND // least), 1),  # as often for as many participations
            )
            for name, (method, least) in chosen(world.deadline, size.clients).items()
        }

    return at


def settings(world: World) -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""

    def of(scale: Scale) -> Mapping[str, Any]:
        size = SIZES[scale]
        return {
            "data": "mnist",
            "training images": size.images,
            "test images": size.test,
            "clients": size.clients,
            "participation": f"{PER_ROUND} clients a round",
            "client sizes": f"Dirichlet({ALPHA}) labels",
            "world": f"{OURS}{world.about}",
            "deadline": f"{world.deadline:g} s",
            "network": NETWORK,
            "participations": size.participations,
            "local steps": world.steps or "1 to 30",
            "batch": size.batch,
            "steps an epoch": math.ceil(size.images / size.clients / size.batch),
            "learning rate": LR,
            "tuning": "none",
            "target": f"{SHOWN} test accuracy",
        }

    return of


def within_budget(record: Record, reference: Record) -> Record:
    """Return the evaluated rounds of a run within the participations of the reference, with steady accuracies.

    The accuracy of a round is the mean over those that end within the 50 participations before its end, itself
    included, so that no arm finds the target by chance because it evaluates more often; "each" is its own.
    """
    used = np.cumsum(record.rounds["asked"])
    within = used <= reference.rounds["asked"].sum()
    evaluated = within & np.isfinite(record.rounds["accuracy"])
    rounds, used = {name: column[evaluated] for name, column in record.rounds.items()}, used[evaluated]
    sent = (rounds["bytes_up"] + rounds["bytes_down"]) / 1e6
    steady = trailing_mean(rounds["accuracy"], used, WINDOW)
    clients = record.clients["round"] <= within.sum()
    return Record(
        {**rounds, "accuracy": steady, "each": rounds["accuracy"], "participations": used, BYTES: sent},
        {name: column[clients] for name, column in record.clients.items()},
        record.values,
    )


def trailing_mean(values: Array, at: Array, window: float) -> Array:
    """Return the mean of the values of the rounds that ended within a window of time, or participations (R,)."""
    first = np.searchsorted(at, at - window, side="right")
    total, end = np.concatenate([[0.0], np.cumsum(values)]), np.arange(1, at.size + 1)
    first = np.minimum(first, end - 1)  # a round that is longer than the window counts by itself
    return (total[end] - total[first]) / (end - first)


def to_target(time: str, unit: str) -> Measure:
    """Return when the target was reached, counted in a column of the rounds."""
    return Measure(
        lambda record, reference: reached(TARGET, time=time)(within_budget(record, reference)),
        unit,
        end=lambda record, reference: end_of(time)(within_budget(record, reference)),
        against=always("synchronous"),
    )


def heard(record: Record, reference: Record) -> float:
    """Return the share of the clients of which at least one answer counted."""
    rows = within_budget(record, reference).clients
    return np.unique(rows["client"][rows["received"] == 1]).size / len(record.values["labels"])


def final(record: Record, reference: Record) -> float:
    """Return the mean accuracy of the last tenth of the participations."""
    rounds = within_budget(record, reference).rounds
    used = rounds["participations"]
    return float(rounds["each"][used > 0.9 * used[-1]].mean())


MEASURES = {
    "seconds to the target": to_target("clock", "s"),
    "MB to the target": to_target(BYTES, "MB"),
    "participations to the target": to_target("participations", ""),
    "final accuracy": Measure(final, "%", against=always("synchronous")),
    "clients heard": Measure(heard, "%", against=always("synchronous")),
}


def over(title: str, x: str) -> Make:
    """Return a panel of the accuracies within the budget over the logarithm of a column."""

    def make(records: Records) -> Panel:
        cut = {
            arm: [within_budget(run, other) for run, other in zip(runs, records["synchronous"], strict=True)]
            for arm, runs in records.items()
        }
        return curves(title, "accuracy", x, log="x")(cut)

    return make


def bars_of(measure: str, title: str, y_label: str) -> Make:
    """Return a panel with a bar for every arm; none where a run never arrives."""

    def make(records: Records) -> Panel:
        found = MEASURES[measure].numbers(records)
        bars = [Bar(arm, np.where(np.isnan(values).any(), np.nan, values)) for arm, values in found.items()]
        return Panel(title, "", y_label, bars=bars)

    return make


def about_arms(arms: Mapping[str, str]) -> str:
    """Return what each arm is, in a note."""
    return "Arms: " + "; ".join(f"{name}: {about}" for name, about in arms.items()) + "."


NOTES = (
    about_arms(ARMS),
    (
        f"All arms may have as many participations. Accuracies are means over the rounds of the last {WINDOW} of them, "
        "so that nobody arrives by chance because of more evaluations. There is no bar where some run never arrives."
    ),
    (
        "Bytes are models down and answers up, also of answers that are lost, late or given up, counted when they "
        "land. What is under way at the target is not counted: at most "
        f"{CONCURRENCIES[-1] - BUFFER} models and answers, of fedbuff, {CONCURRENCIES[-1]}."
    ),
    (
        "The target was fixed beforehand, by a pilot of synchronous rounds alone. The deadline is the 80 % quantile of "
        "a participation's seconds, from the world's law."
    ),
    (
        "FedBuff's buffer is half of what a synchronous round asks: with 10 at a time it keeps as many clients busy "
        "and steps twice as often. The arm synchronous, 5 steps as often, without stale answers."
    ),
)


PANELS = (
    over("Accuracy over time", "clock"),
    over("Accuracy over bytes", BYTES),
    bars_of("seconds to the target", f"Time to {SHOWN}", "Simulated time, s"),
    bars_of("MB to the target", f"Bytes to {SHOWN}", BYTES),
)


def study(name: str, world: World) -> Study:
    """Return the study of all arms in a world."""
    return Study(
        name=f"beyond/async/{name}",
        shows=f"time and bytes to {SHOWN}, synchronous, closed early, overlapping and compressed: {world.about}",
        arms=arms(world),
        seeds={"smoke": 2, "laptop": 10, "paper": 10},
        measures=MEASURES,
        panels=PANELS,
        settings=settings(world),
        notes=NOTES,
    )


STUDIES = tuple(study(name, world) for name, world in WORLDS.items())
