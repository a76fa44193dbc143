"""DELTA's experiments on images: four data sets, how much of each is run, and what is measured (section 5, H.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.data import Dataset
from fedweave.data.partition import Dirichlet, Natural, Partition, Split
from fedweave.method import Method
from fedweave.papers.common.panels import Make, bars, curves
from fedweave.papers.common.record import Record, end_of, last, reached
from fedweave.papers.common.scale import Scale, load_data, pool_images, reduce_data
from fedweave.papers.common.study import Measure, Study
from fedweave.runs.experiment import Experiment
from fedweave.statistics import censored

EPOCHS, OWNERS = 5, 9
FIVE: Mapping[Scale, int] = {"smoke": 2, "laptop": 5, "paper": 5}
TEN: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}  # where the primary claim is decided


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is run. Samples and batches are scaled together, so that the steps per epoch stay."""

    clients: int
    per_round: int
    rounds: int
    batch: int
    network: str
    train: int | None = None  # training images; None: all
    test: int | None = None
    pool: int = 1  # images are averaged over pool × pool pixels


SMOKE = Size(train=240, test=60, pool=2, clients=12, per_round=3, batch=8, rounds=3, network="mlp")
NATURAL_SMOKE = replace(SMOKE, train=None, batch=32)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set as the paper uses it: five local epochs, server step 1, one learning rate for all methods."""

    data: str
    lr: float
    threshold: float
    images: int  # of the published training set
    dealt: float | Literal["natural", "split"]  # α of Dirichlet labels, the data's own clients, or 9 owners of 90 %
    paper: Size
    laptop: Size
    smoke: Size = SMOKE

    def size(self, scale: Scale) -> Size:
        """Return how much is run at a scale."""
        return getattr(self, scale)

    def partition(self, scale: Scale) -> Partition:
        """Return how the samples are dealt to the clients."""
        clients = self.size(scale).clients
        if self.dealt == "split":
            return Split(clients, owners=OWNERS / clients, share=0.9)
        return Natural(clients) if self.dealt == "natural" else Dirichlet(clients, self.dealt)

    def longer(self, times: int) -> Benchmark:
        """Return the same with so many times the rounds, except at smoke scale."""
        sizes = {s: replace(self.size(s), rounds=times * self.size(s).rounds) for s in ("paper", "laptop")}
        return replace(self, **sizes)


FULL = Size(clients=300, per_round=20, rounds=500, batch=32, network="")
LEAF = Size(clients=200, per_round=40, rounds=500, batch=32, network="")  # a fifth of the clients
SMALL_LEAF = Size(clients=100, per_round=20, rounds=200, batch=32, network="cnn_small", test=2000)
BENCHMARKS = {
    "fashion": Benchmark(
        data="fashion_mnist", lr=0.01, threshold=0.70, images=60_000, dealt=0.1,
        paper=replace(FULL, network="cnn_small"),
        laptop=replace(FULL, train=7500, test=2000, batch=4, network="cnn_small"),
    ),
    "cifar10": Benchmark(
        data="cifar10", lr=0.01, threshold=0.54, images=50_000, dealt=0.5,
        paper=replace(FULL, network="resnet18"),
        laptop=replace(FULL, train=6250, test=1000, batch=4, rounds=300, network="cnn_fedacs_cifar10"),
    ),
    "femnist": Benchmark(
        data="femnist", lr=0.1, threshold=0.70, images=0, dealt="natural",
        paper=replace(LEAF, network="cnn_leaf"), laptop=SMALL_LEAF, smoke=NATURAL_SMOKE,
    ),
    "celeba": Benchmark(
        data="celeba", lr=0.1, threshold=0.85, images=0, dealt="natural",
        paper=replace(LEAF, network="cnn_leaf_celeba"), laptop=replace(SMALL_LEAF, pool=2),
        smoke=replace(NATURAL_SMOKE, pool=4),
    ),
}  # fmt: skip


@cache
def samples(data: str, scale: Scale, train: int | None, test: int | None, pool: int) -> Dataset:
    """Return the data, reduced; natural clients keep all their training samples."""
    found = load_data(data, scale)
    if train is not None:
        return reduce_data(found, train, test or train, pool)
    if test is None and pool == 1:
        return found
    few = np.linspace(0, len(found.test_y) - 1, min(test or len(found.test_y), len(found.test_y))).astype(int)
    x, test_x = pool_images(found.x, pool), pool_images(found.test_x[few], pool)
    return replace(found, x=x, test_x=test_x, test_y=found.test_y[few], test_group=None)


def experiment(benchmark: Benchmark, scale: Scale, method: Method, **changes: Any) -> Experiment:
    """Return the experiment of one method, with data shares as weights."""
    size = benchmark.size(scale)
    plain = Experiment(
        method=method,
        data=samples(benchmark.data, scale, size.train, size.test, size.pool),
        partition=benchmark.partition(scale),
        model=size.network,
        rounds=size.rounds,
        lr=benchmark.lr,
        epochs=EPOCHS,
        batch_size=size.batch,
    )
    return replace(plain, **changes)


def settings(benchmark: Benchmark) -> Callable[[Scale], Mapping[str, Any]]:
    """Return the settings that are printed side by side."""

    def of(scale: Scale) -> Mapping[str, Any]:
        s, natural = benchmark.size(scale), benchmark.dealt == "natural"
        images = s.train or benchmark.images
        steps = f"{s.batch} of a client's samples each" if natural else -(-images // (s.clients * s.batch))
        return {
            "data": benchmark.data,
            "training images": "of these clients" if natural else images,
            "pixels averaged": s.pool,
            "clients": s.clients,
            "participation": f"{s.per_round / s.clients:.1%}",
            "client sizes": dealt if isinstance(dealt := benchmark.dealt, str) else f"Dirichlet({dealt:g})",
            "network": s.network,
            "rounds": s.rounds,
            "epochs": EPOCHS,
            "batch": s.batch,
            "steps an epoch": steps if scale != "smoke" else "other",
            "learning rate": benchmark.lr,
            "tuning": "one learning rate for all methods",
        }

    return of


def best_mean(most: int, rounds: float = 1.0) -> Callable[[Record], float]:
    """Return a measure: the mean of the highest accuracies, the paper's, in the first share ``rounds`` of a run."""

    def of(record: Record) -> float:
        seen = record.rounds["accuracy"][: max(round(rounds * record.rounds["accuracy"].size), 1)]
        return float(np.sort(seen[np.isfinite(seen)])[-most:].mean())

    return of


def last_tenth(column: str) -> Callable[[Record], float]:
    """Return a measure: the mean over the last tenth of the rounds, which a single round cannot change much."""
    return lambda record: last(column, max(record.rounds[column].size // 10, 1))(record)


def mean_of(column: str, rounds: float = 1.0) -> Callable[[Record], float]:
    """Return a measure: the mean of a column over the first share ``rounds`` of a run: how fast a curve moves."""
    return lambda record: float(np.nanmean(record.rounds[column][: max(round(rounds * record.rounds[column].size), 1)]))


def with_steps(record: Record) -> Record:
    """Return the record with the local steps of all asked clients, summed up to each round, as a column."""
    rounds = record.rounds["round"].size
    steps = np.bincount(record.clients["round"].astype(int), record.clients["steps"], rounds + 1)[1:]
    return record._replace(rounds={**record.rounds, "local_steps": steps.cumsum()})


ACCURACY, ENDING = "accuracy, best 5", "accuracy, last tenth"


def measures(*thresholds: float) -> dict[str, Measure]:
    """Return the measures of the paper's tables, and what they cost in local steps."""
    found = {ACCURACY: Measure(best_mean(5), "%"), ENDING: Measure(last_tenth("accuracy"), "%")}
    for t in thresholds:
        found[f"rounds to {t:.0%}"] = Measure(reached(t), end=end_of())
        found[f"wall seconds to {t:.0%}"] = Measure(
            reached(t, time="wall_seconds"), "s", end=end_of("wall_seconds"), digits=3
        )
        found[f"local steps to {t:.0%}"] = Measure(
            lambda r, t=t: reached(t, time="local_steps")(with_steps(r)),
            end=lambda r: end_of("local_steps")(with_steps(r)),
            digits=3,
        )
    return found


SHARE = 0.95
RELATIVE = Measure(  # ours: a target that FedAvg always reaches
    lambda record, fedavg: reached(SHARE * best_mean(5)(fedavg))(record),
    end=lambda record, fedavg: end_of()(record),
    against=lambda arm: "fedavg",
)
CURVES = curves("Test accuracy", "accuracy")
READING = (
    "best 5: mean of the five highest accuracies, the paper's measure; last tenth: mean over the last tenth of the "
    "rounds. Wall seconds are those of this simulation on one core, evaluations included, as the paper's are of its "
    "GPU; a method that prefers clients with more data takes more local steps a round. Runs that never arrived count "
    "as one round more than they had."
)
Numbers = Mapping[str, Sequence[float | None]]  # by method: accuracy, rounds, and seconds where the paper has them


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper on one data set, as a study."""

    name: str
    shows: str
    benchmark: Benchmark
    methods: Callable[[int], Mapping[str, Method]]  # of clients per round
    threshold: float
    published: Numbers = field(default_factory=dict)
    seeds: Mapping[Scale, int] = field(default_factory=lambda: FIVE)
    notes: Sequence[str] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the experiments
    late: Sequence[float] = ()  # further thresholds, ours
    relative: bool = False  # with the rounds to a share of FedAvg's accuracy, ours

    def arms(self, scale: Scale) -> Mapping[str, Experiment]:
        """Return the experiment of every method."""
        made = self.methods(self.benchmark.size(scale).per_round)
        return {name: experiment(self.benchmark, scale, method, **self.changes) for name, method in made.items()}

    def study(self) -> Study:
        """Return the study."""
        found, rounds = measures(self.threshold, *self.late), f"rounds to {self.threshold:.0%}"
        found |= {f"rounds to {SHARE:g} of FedAvg's best 5": RELATIVE} if self.relative else {}
        names = (ACCURACY, rounds, f"wall seconds to {self.threshold:.0%}")
        columns = {
            name: {m: v for m, row in self.published.items() if i < len(row) and (v := row[i]) is not None}
            for i, name in enumerate(names)
        }
        published = {name: column for name, column in columns.items() if column}
        panels: list[Make] = [
            bars(name[0].upper() + name[1:], counted(found[name]), label, published.get(name))
            for name, label in zip(names, ("Test accuracy", "Rounds", "Wall seconds"), strict=True)
            if name in published or not published
        ]
        return Study(
            name=f"delta/{self.name}",
            shows=self.shows,
            arms=self.arms,
            seeds=self.seeds,
            measures=found,
            panels=(*panels, CURVES),
            settings=settings(self.benchmark),
            published=published,
            notes=(READING, *self.notes),
        )


def counted(measure: Measure) -> Callable[[Record], float]:
    """Return a measure as it is compared: a time that never came counts as the end of the run."""
    end = measure.end
    return measure.of if end is None else lambda r: float(censored([measure.of(r)], end(r))[0])


def column_of(records: Sequence[Record], name: str) -> Array:
    """Return a column of all seeds (S, R)."""
    return np.array([record.rounds[name] for record in records], float)
