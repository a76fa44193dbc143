"""DELTA's experiments on images: four data sets, how much of each is run, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.data import Dataset, load
from fedweave.data.partition import Dirichlet, Natural, Partition
from fedweave.engine.pool.processes import Workers
from fedweave.method import Method
from fedweave.papers.common.parallel import Key, Progress, run_seeds
from fedweave.papers.common.scale import ImageSize, Scale, pool_images
from fedweave.round import Round
from fedweave.round.rules import NO_RULES
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import deterministic, iterate
from fedweave.runs.session import prepare

BEST = 5  # evaluations whose mean the paper reports
SMOOTHED = 5  # evaluations; single ones vary by tens of points where clients have few classes


class Trajectory(NamedTuple):
    """One run: its accuracy, and the steps, weights and norms of its updates."""

    every: int  # rounds between evaluations
    accuracy: Array  # (E,)
    loss: Array  # (E,)
    steps: Array  # (R,) local steps of all asked clients
    largest_weight: (
        Array  # (R,) largest weight of an update in the direction; nan where the aggregator also uses its memory
    )
    norms: Array  # (R, 2) mean and smallest norm of the cohort's updates

    def best(self, most: int = BEST, rounds: int | None = None) -> float:
        """Return the mean of the highest accuracies, of the first ``rounds`` rounds if given: the paper's measure."""
        seen = self.accuracy if rounds is None else self.accuracy[: rounds // self.every]
        return float(np.sort(seen)[-most:].mean())

    @property
    def last(self) -> float:
        """Mean accuracy over the last tenth of the rounds, which a single round cannot change much."""
        return float(self.accuracy[-max(len(self.accuracy) // 10, 1) :].mean())

    def rounds_to(self, accuracy: float, smoothed: int = 1) -> float:
        """Return the first round in which the mean of ``smoothed`` evaluations was at least this; nan if never."""
        window = np.ones(min(smoothed, self.accuracy.size))
        hit = np.flatnonzero(np.convolve(self.accuracy, window / window.size, "valid") >= accuracy)
        return float((hit[0] + window.size) * self.every) if hit.size else np.nan

    def steps_to(self, accuracy: float) -> float:
        """Return the local steps until the smoothed accuracy reached this value; nan if never."""
        rounds = self.rounds_to(accuracy, SMOOTHED)
        return float(self.steps[: int(rounds)].sum()) if np.isfinite(rounds) else np.nan


def run_and_measure(experiment: Experiment) -> Trajectory:
    """Run an experiment in this process and measure it."""
    session, e = prepare(experiment, Workers(1))._replace(rules=NO_RULES), experiment
    scores, rows = [], []
    with deterministic():
        for state, happened in iterate(session):
            norms = np.linalg.norm(happened.replies.updates, axis=1)
            rows.append((happened.replies.steps.sum(), largest_weight(e.method, happened), norms.mean(), norms.min()))
            if state.round % e.evaluate_every == 0:
                scores.append(session.engine.evaluate(state.x))
    steps, weight, *lengths = np.array(rows, float).T
    accuracy, loss = (np.array([s[name] for s in scores]) for name in ("accuracy", "loss"))
    return Trajectory(e.evaluate_every, accuracy, loss, steps, weight, np.stack(lengths, axis=1))


def largest_weight(method: Method, happened: Round) -> float:
    """Return the largest weight of an update: applied to unit vectors, the aggregator returns its weights."""
    cohort, replies = happened.cohort, happened.replies
    if method.aggregator.init(happened.view.population, 1):  # then the direction contains more than these updates
        return np.nan
    units = replies._replace(updates=np.eye(cohort.ids.size))
    return float(method.aggregator.combine({}, happened.view, cohort, units)[0].max(initial=0.0))


@dataclass(frozen=True, kw_only=True)
class Size(ImageSize):
    """How much of a published experiment is run; smaller batches keep about the published number of local steps."""

    clients: int
    per_round: int
    every: int = 1  # rounds between evaluations
    model: str | None = None  # replaces the published model
    threshold: float | None = None  # replaces the published threshold where that is out of reach


class Benchmark(NamedTuple):
    """One data set as the paper uses it (H.2): five local epochs, global step 1."""

    data: str
    model: str
    lr: float
    partition: Callable[[int], Partition]
    threshold: float
    sizes: Mapping[Scale, Size]


def dirichlet_partition(alpha: float) -> Callable[[int], Partition]:
    """Return the partition with Dirichlet(α) labels, as a function of the number of clients."""
    return lambda clients: Dirichlet(clients, alpha)


SMOKE = Size(train=400, test=100, pool=2, clients=12, per_round=3, batch=8, rounds=4, seeds=2, model="mlp")
NATURAL_SMOKE = replace(SMOKE, train=None)
FASHION = Benchmark(
    "fashion_mnist",
    "cnn_small",
    0.01,
    dirichlet_partition(0.1),
    0.70,
    {
        "smoke": SMOKE,
        "laptop": Size(
            train=6000,
            test=2000,
            pool=2,
            clients=300,
            per_round=20,
            batch=8,
            rounds=400,
            seeds=5,
            every=2,
            model="mlp",
            threshold=0.75,
        ),
        "paper": Size(clients=300, per_round=20, batch=32, rounds=500, seeds=5),
    },
)
CIFAR10 = Benchmark(
    "cifar10",
    "resnet18",
    0.01,
    dirichlet_partition(0.5),
    0.54,
    {
        "smoke": SMOKE,
        "laptop": Size(
            train=3000,
            test=1000,
            pool=2,
            clients=100,
            per_round=10,
            batch=8,
            rounds=150,
            seeds=3,
            every=2,
            model="cnn_fedacs_cifar10",
            threshold=0.3,
        ),
        "paper": Size(clients=300, per_round=20, batch=32, rounds=500, seeds=3),
    },
)
FEMNIST = Benchmark(
    "femnist",
    "cnn_leaf",
    0.1,
    Natural,
    0.70,
    {
        "smoke": NATURAL_SMOKE,
        "laptop": Size(
            test=2000,
            pool=2,
            clients=100,
            per_round=20,
            batch=32,
            rounds=200,
            seeds=3,
            every=2,
            model="mlp",
            threshold=0.6,
        ),
        "paper": Size(clients=200, per_round=40, batch=32, rounds=500, seeds=3),
    },
)
CELEBA = Benchmark(
    "celeba",
    "cnn_leaf_celeba",
    0.1,
    Natural,
    0.85,
    {
        "smoke": replace(NATURAL_SMOKE, pool=4),
        "laptop": Size(
            test=1000,
            pool=4,
            clients=100,
            per_round=20,
            batch=16,
            rounds=100,
            seeds=3,
            every=2,
            model="cnn_small",
            threshold=0.7,
        ),
        "paper": Size(clients=200, per_round=40, batch=32, rounds=500, seeds=3),
    },
)
BENCHMARKS = {"fashion": FASHION, "cifar10": CIFAR10, "femnist": FEMNIST, "celeba": CELEBA}


def samples(benchmark: Benchmark, scale: Scale) -> Dataset:
    """Return the data, reduced to the size; if its files are missing, the error says how to get them."""
    size, data = benchmark.sizes[scale], load(benchmark.data)
    if benchmark.partition is not Natural:
        return size.reduce(data)
    few = np.linspace(0, len(data.test_y) - 1, min(size.test or len(data.test_y), len(data.test_y))).astype(int)
    x, test_x = pool_images(data.x, size.pool), pool_images(data.test_x[few], size.pool)
    return replace(data, x=x, test_x=test_x, test_y=data.test_y[few], test_group=None)


def experiment(benchmark: Benchmark, scale: Scale, method: Method, data: Dataset) -> Experiment:
    """Return the experiment of one method, with data shares as weights."""
    size = benchmark.sizes[scale]
    return Experiment(
        method=method,
        data=data,
        partition=benchmark.partition(size.clients),
        model=size.model or benchmark.model,
        rounds=size.rounds,
        lr=benchmark.lr,
        epochs=5,
        batch_size=size.batch,
        evaluate_every=size.every,
        workers=1,
    )


def run_experiments(
    experiments: Mapping[Key, Experiment], seeds: int, on_progress: Progress | None
) -> dict[Key, list[Trajectory]]:
    """Return the trajectories of every experiment, one per seed."""
    return run_seeds(run_and_measure, experiments, seeds, on_progress)


def describe(benchmark: Benchmark, scale: Scale, data: Dataset) -> str:
    """Return a note on the data and the settings."""
    s = benchmark.sizes[scale]
    return (
        f"{benchmark.data}: {len(data.x)} training images of {data.shape[1]}×{data.shape[2]}, {s.clients} clients, "
        f"{s.per_round} per round, {s.rounds} rounds, five epochs of batch {s.batch}, lr {benchmark.lr:g}, "
        f"{s.seeds} seeds, {s.model or benchmark.model}; evaluated every {s.every} rounds."
    )
