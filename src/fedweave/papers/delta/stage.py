"""Where DELTA's experiments on images take place: four data sets, how much of each is run, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from fedweave.core.records import Array
from fedweave.data import Dataset, load
from fedweave.data.partition import Dirichlet, Natural, Partition
from fedweave.engine.pool.processes import Workers
from fedweave.method import Method
from fedweave.papers.common.claims import Scale
from fedweave.papers.common.parallel import Told, together
from fedweave.papers.common.training import pooled, smaller
from fedweave.round import Round, run_round
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import deterministic
from fedweave.runs.session import prepare

Key = TypeVar("Key", bound=Hashable)
BEST = 5  # evaluations whose mean the paper reports
SMOOTHED = 5  # evaluations; single ones swing by tens of points where clients have few classes


class Course(NamedTuple):
    """One run: how accurate it was, and what it asked of whom."""

    every: int  # rounds between evaluations
    accuracy: Array  # (E,)
    loss: Array  # (E,)
    steps: Array  # (R,) local steps of all who were asked
    heaviest: Array  # (R,) largest weight of an update in the direction; nan where memory mixes in
    norms: Array  # (R, 2) mean and smallest length of the cohort's updates

    def best(self, most: int = BEST, rounds: int | None = None) -> float:
        """Return the mean of the highest accuracies, of the first ``rounds`` rounds if given: the paper's measure."""
        seen = self.accuracy if rounds is None else self.accuracy[: rounds // self.every]
        return float(np.sort(seen)[-most:].mean())

    @property
    def last(self) -> float:
        """Mean accuracy over the last tenth of the rounds, which no lucky round can lift."""
        return float(self.accuracy[-max(len(self.accuracy) // 10, 1) :].mean())

    def rounds_to(self, accuracy: float, smoothed: int = 1) -> float:
        """Return the round in which the mean of ``smoothed`` evaluations was first that high; nan if never."""
        window = np.ones(min(smoothed, self.accuracy.size))
        hit = np.flatnonzero(np.convolve(self.accuracy, window / window.size, "valid") >= accuracy)
        return float((hit[0] + window.size) * self.every) if hit.size else np.nan

    def steps_to(self, accuracy: float) -> float:
        """Return the local steps until then."""
        rounds = self.rounds_to(accuracy, SMOOTHED)
        return float(self.steps[: int(rounds)].sum()) if np.isfinite(rounds) else np.nan


def observe(experiment: Experiment) -> Course:
    """Run an experiment in this process and measure it."""
    session, e = prepare(experiment, Workers(1)), experiment
    state, scores, rows = session.start, [], []
    with deterministic():
        for r in range(1, e.rounds + 1):
            population = e.system.population(session.base, r, e.seed)
            state, happened = run_round(e.method, state, population, session.engine, e.lr, e.seed)
            norms = np.linalg.norm(happened.replies.updates, axis=1)
            rows.append((happened.replies.steps.sum(), heaviest(e.method, happened), norms.mean(), norms.min()))
            if r % e.evaluate_every == 0:
                scores.append(session.engine.evaluate(state.x))
    steps, weight, *lengths = np.array(rows, float).T
    accuracy, loss = (np.array([s[name] for s in scores]) for name in ("accuracy", "loss"))
    return Course(e.evaluate_every, accuracy, loss, steps, weight, np.stack(lengths, axis=1))


def heaviest(method: Method, happened: Round) -> float:
    """Return the largest weight of an update: what the aggregator makes of the unit vectors is its weights."""
    cohort, replies = happened.cohort, happened.replies
    if method.aggregator.init(happened.view.population, 1):  # it remembers: the direction is more than these updates
        return np.nan
    units = replies._replace(updates=np.eye(cohort.ids.size))
    return float(method.aggregator.combine({}, happened.view, cohort, units)[0].max(initial=0.0))


class Size(NamedTuple):
    """How much of a published experiment is run."""

    train: int | None  # samples; None: all, or those of the natural clients that are taken
    test: int | None
    pool: int  # images are averaged over so many pixels each way
    clients: int
    per_round: int
    batch: int  # fewer samples are cut into about as many steps as published
    rounds: int
    seeds: int
    every: int  # rounds between evaluations
    model: str | None = None  # instead of the published one
    threshold: float | None = None  # instead of the published one, where that is out of reach


class Bench(NamedTuple):
    """One data set as the paper uses it (H.2): five local epochs, global step 1."""

    data: str
    model: str
    lr: float
    deal: Callable[[int], Partition]
    threshold: float
    sizes: Mapping[Scale, Size]


def dirichlet(alpha: float) -> Callable[[int], Partition]:
    """Return the deal of Dirichlet(α) labels."""
    return lambda clients: Dirichlet(clients, alpha)


SMOKE = Size(train=400, test=100, pool=2, clients=12, per_round=3, batch=8, rounds=4, seeds=2, every=1, model="mlp")
NATURAL_SMOKE = SMOKE._replace(train=None)
FASHION = Bench(
    "fashion_mnist",
    "cnn_small",
    0.01,
    dirichlet(0.1),
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
        "paper": Size(train=None, test=None, pool=1, clients=300, per_round=20, batch=32, rounds=500, seeds=5, every=1),
    },
)
CIFAR10 = Bench(
    "cifar10",
    "resnet18",
    0.01,
    dirichlet(0.5),
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
        "paper": Size(train=None, test=None, pool=1, clients=300, per_round=20, batch=32, rounds=500, seeds=3, every=1),
    },
)
FEMNIST = Bench(
    "femnist",
    "cnn_leaf",
    0.1,
    Natural,
    0.70,
    {
        "smoke": NATURAL_SMOKE,
        "laptop": Size(
            train=None,
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
        "paper": Size(train=None, test=None, pool=1, clients=200, per_round=40, batch=32, rounds=500, seeds=3, every=1),
    },
)
CELEBA = Bench(
    "celeba",
    "cnn_leaf_celeba",
    0.1,
    Natural,
    0.85,
    {
        "smoke": NATURAL_SMOKE._replace(pool=4),
        "laptop": Size(
            train=None,
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
        "paper": Size(train=None, test=None, pool=1, clients=200, per_round=40, batch=32, rounds=500, seeds=3, every=1),
    },
)
BENCHES = {"fashion": FASHION, "cifar10": CIFAR10, "femnist": FEMNIST, "celeba": CELEBA}


def samples(bench: Bench, scale: Scale) -> Dataset:
    """Return the data, made small where the scale is; what is not there raises the sentence that says how to get it."""
    size, data = bench.sizes[scale], load(bench.data)
    if bench.deal is not Natural:
        return data if size.train is None else smaller(data, size.train, size.test or size.train, size.pool)
    few = np.linspace(0, len(data.test_y) - 1, min(size.test or len(data.test_y), len(data.test_y))).astype(int)
    x, test_x = pooled(data.x, size.pool), pooled(data.test_x[few], size.pool)
    return replace(data, x=x, test_x=test_x, test_y=data.test_y[few], test_group=None, source=None)


def experiment(bench: Bench, scale: Scale, method: Method, data: Dataset) -> Experiment:
    """Return the experiment of one method by data shares."""
    size = bench.sizes[scale]
    return Experiment(
        method=method,
        data=data,
        partition=bench.deal(size.clients),
        model=size.model or bench.model,
        rounds=size.rounds,
        lr=bench.lr,
        epochs=5,
        batch_size=size.batch,
        evaluate_every=size.every,
        workers=1,
    )


def contest(experiments: Mapping[Key, Experiment], seeds: int, told: Told | None) -> dict[Key, list[Course]]:
    """Return the courses of every experiment over the seeds; of one seed all meet the same clients."""
    calls = {(key, seed): (replace(e, seed=seed),) for seed in range(seeds) for key, e in experiments.items()}
    found = together(observe, calls, told)
    return {key: [found[key, seed] for seed in range(seeds)] for key in experiments}


def note(bench: Bench, scale: Scale, data: Dataset) -> str:
    """Return how it was made."""
    s = bench.sizes[scale]
    return (
        f"{bench.data}: {len(data.x)} training images of {data.shape[1]}×{data.shape[2]}, {s.clients} clients, "
        f"{s.per_round} per round, {s.rounds} rounds, five epochs of batch {s.batch}, lr {bench.lr:g}, "
        f"{s.seeds} seeds, {s.model or bench.model}; evaluated every {s.every} rounds."
    )
