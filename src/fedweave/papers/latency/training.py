"""The trainings behind table 1 and figures 4 to 6 of the latency paper, by four ways to choose clients.

A trajectory holds the clients asked and the loss, round by round. Latencies enter only through the law that ours plans
with, so uniform, norm and ratio selection train once, and their times are computed under both laws of latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from fedweave import data, methods
from fedweave.core.records import Array
from fedweave.core.roles import System
from fedweave.core.settings import BadInput
from fedweave.data import Dataset
from fedweave.data.partition import IID, Classes, Dirichlet, Partition
from fedweave.local.solvers import Adam
from fedweave.method import Method
from fedweave.papers.common.parallel import Progress, run_in_order
from fedweave.papers.common.scale import Scale, Size
from fedweave.sample import LatencyOptimal
from fedweave.system import Latency
from fedweave.theory import expected_round_seconds


@dataclass(frozen=True, kw_only=True)
class TrainingSize(Size):
    """How much of the paper's experiment is run."""

    trial: int  # rounds
    per_client: int | None = None  # training samples per client, on average; None: all
    test: int | None = None
    batch: int


# The paper has 6,000 samples per client and batches of 256. A fiftieth of that, in batches of 32, keeps about twenty
# local steps per round; with batches of 256 there would be five.
SIZES: dict[Scale, TrainingSize] = {
    "smoke": TrainingSize(seeds=1, rounds=5, trial=2, per_client=40, test=200, batch=20),
    "laptop": TrainingSize(seeds=5, rounds=28, trial=5, per_client=120, test=1000, batch=32),
    "paper": TrainingSize(seeds=10, rounds=300, trial=5, batch=256),
}
EPOCHS, LR = 5, 1e-3
SMOOTHED = 5  # rounds


class Benchmark(NamedTuple):
    """One data set of table 1, with the paper's seconds for ours, uniform, norm and ratio selection."""

    clients: int
    per_round: int
    classes: int  # per client, in the setting "class"
    paper: Mapping[str, tuple[float, float, float, float]]
    scales: Sequence[Scale]


BENCHMARKS = {
    "fashion_mnist": Benchmark(
        10,
        5,
        5,
        {
            "iid": (114.05, 181.46, 177.35, 210.93),
            "class": (220.92, 439.33, 392.50, 439.42),
            "dir": (88.08, 270.14, 137.35, 255.69),
        },
        ("smoke", "laptop", "paper"),
    ),
    "emnist_letters": Benchmark(
        40,
        10,
        13,
        {
            "iid": (245.66, 472.87, 419.93, 469.51),
            "class": (164.82, 444.37, 317.70, 447.33),
            "dir": (64.12, 188.33, 128.90, 169.61),
        },
        ("laptop", "paper"),
    ),
}
METHODS: tuple[str, ...] = ("ours", "uniform", "norm", "ratio")
WORLDS: dict[str, System] = {"uniform": Latency(), "log-normal": Latency.heavy_tailed()}


class Trajectory(NamedTuple):
    """One training, with what is needed to compute its time under any latencies."""

    asked: Sequence[Array]  # per round, the clients drawn
    loss: Array  # (rounds,) on the test samples, after each round
    accuracy: Array
    weight: Array  # (N,) data shares
    latency: Mapping[str, Array]  # (N,) in each world, for this seed
    law: Array  # (N,) the probabilities at the end
    square: Array | None  # (N,) G² and α as estimated after the trial, where there was one
    alpha: float | None


class Job(NamedTuple):
    """One training to run."""

    dataset: str
    setting: str
    method: str
    world: str | None  # the latencies that ours plans with; None where they do not matter
    seed: int


_whole = cache(data.load)  # once per process


@cache
def _samples(name: str, per_client: int | None, test: int | None, seed: int) -> Dataset:
    """Return a random part of a data set."""
    whole = _whole(name)
    rng, total = np.random.default_rng(seed), (per_client or len(whole.y)) * BENCHMARKS[name].clients
    train = np.sort(rng.permutation(len(whole.y))[:total])
    kept = np.arange(len(whole.test_y))[:test]
    part = {"x": whole.x[train], "y": whole.y[train], "test_x": whole.test_x[kept], "test_y": whole.test_y[kept]}
    return replace(whole, **part)


def _partition(setting: str, benchmark: Benchmark) -> Partition:
    if setting == "class":
        return Classes(benchmark.clients, benchmark.classes)
    return IID(benchmark.clients) if setting == "iid" else Dirichlet(benchmark.clients, 0.1)


def unavailable_reason(dataset: str, scale: Scale) -> str | None:
    """Return why a data set cannot be used at this scale; None if it can."""
    if scale not in BENCHMARKS[dataset].scales:
        return f"the scale {scale} trains on {next(iter(BENCHMARKS))} only"
    try:
        _whole(dataset)
    except BadInput as e:
        return str(e)
    return None


def paper_method(name: str, per_round: int, trial: int) -> Method:
    """Return a method of the table, with the paper's local Adam."""
    suffix = "optimal" if name == "ours" else name
    method = replace(getattr(methods, f"latency_{suffix}")(per_round), solver=Adam())
    if isinstance(method.sampler, LatencyOptimal):
        return replace(method, sampler=replace(method.sampler, trial=trial))
    return method


def train_once(job: Job, size: TrainingSize, method: Method | None = None) -> Trajectory:
    """Train once, on one core."""
    from fedweave.engine.pool.processes import Workers  # needs torch
    from fedweave.round.rules import NO_RULES
    from fedweave.runs.experiment import Experiment
    from fedweave.runs.loop import iterate
    from fedweave.runs.session import prepare

    benchmark, world = BENCHMARKS[job.dataset], WORLDS[job.world or "uniform"]
    experiment = Experiment(
        method=method or paper_method(job.method, benchmark.per_round, size.trial),
        data=_samples(job.dataset, size.per_client, size.test, job.seed),
        partition=_partition(job.setting, benchmark),
        model="lenet5",
        system=world,
        rounds=size.rounds,
        lr=LR,
        epochs=EPOCHS,
        batch_size=size.batch,
        seed=job.seed,
    )
    session, estimates = prepare(experiment, Workers(1))._replace(rules=NO_RULES), None
    state, weight = session.start, session.base.weight
    asked, scores, sampler = [], [], experiment.method.sampler
    for state, happened in iterate(session):
        scores.append(session.engine.evaluate(state.x))
        asked.append(happened.cohort.ids)
        if state.round == size.trial and isinstance(sampler, LatencyOptimal):
            estimates = sampler.estimates(state.sampler, weight)
    law = state.sampler.get("probability", weight)
    return Trajectory(
        asked,
        np.array([s["loss"] for s in scores]),
        np.array([s["accuracy"] for s in scores]),
        weight,
        {name: w.population(session.base, 1, job.seed).latency for name, w in WORLDS.items()},
        np.full(law.size, 1 / law.size) if job.method == "uniform" else law,
        estimates.square if estimates else None,
        estimates.alpha if estimates else None,
    )


def clock(trajectory: Trajectory, world: str) -> Array:
    """Return the simulated seconds at the end of each round, in this world."""
    return np.cumsum([trajectory.latency[world][ids].max() for ids in trajectory.asked])


Study = dict[tuple[str, str, int], dict[str, Trajectory]]  # (setting, world, seed) -> method -> walk


def run_study(dataset: str, settings: Sequence[str], size: TrainingSize, on_progress: Progress | None) -> Study:
    """Train everything that a table over these settings needs."""
    jobs = [
        Job(dataset, setting, method, world, seed)
        for setting, seed in product(settings, range(size.seeds))
        for method, world in [("ours", w) for w in WORLDS] + [(m, None) for m in METHODS[1:]]
    ]
    trajectories = dict(zip(jobs, run_in_order(train_once, [(job, size) for job in jobs], on_progress), strict=True))
    return {
        (setting, world, seed): {
            m: trajectories[Job(dataset, setting, m, world if m == "ours" else None, seed)] for m in METHODS
        }
        for setting, world, seed in product(settings, WORLDS, range(size.seeds))
    }


def smooth(loss: Array) -> Array:
    """Return the mean over the last five rounds, or as many as there are.

    With skewed data the loss varies by a factor of three from round to round, so a single low value means little.
    """
    total = np.cumsum(np.insert(loss, 0, 0.0))
    end = np.arange(1, loss.size + 1)
    begin = np.maximum(end - SMOOTHED, 0)
    return (total[end] - total[begin]) / (end - begin)


class Cost(NamedTuple):
    """What one method took for one seed in one world, and what the objective predicts."""

    seconds: float  # until the target
    rounds: int
    round_seconds: float  # mean over the rounds with the method's own law
    predicted_round: float  # A(p)
    predicted_cost: float  # A(p) R(p)²


def measure_costs(
    trajectories: Mapping[str, Trajectory], world: str, target: float, size: TrainingSize, per_round: int
) -> dict[str, Cost]:
    """Return the cost of each method for one seed in one world."""
    ours = trajectories["ours"]
    assert ours.square is not None
    assert ours.alpha is not None
    norm = ours.weight * np.sqrt(ours.square)
    laws = {"ours": ours.law, "uniform": trajectories["uniform"].law, "norm": norm / norm.sum(), "ratio": ours.weight}
    found = {}
    for name, trajectory in trajectories.items():
        seconds, first = clock(trajectory, world), int(np.argmax(smooth(trajectory.loss) <= target))
        own = np.diff(seconds, prepend=0.0)[size.trial if trajectory.square is not None else 0 :]
        A = expected_round_seconds(laws[name], ours.latency[world], per_round)
        R = ours.alpha + float((ours.weight**2 * ours.square / laws[name]).sum()) / per_round
        found[name] = Cost(float(seconds[first]), first + 1, float(own.mean()), A, A * R**2)
    return found


def target_of(study: Study, setting: str, seed: int) -> float:
    """Return the lowest smoothed loss that all methods reach in both worlds, for one seed."""
    return max(float(smooth(w.loss).min()) for world in WORLDS for w in study[setting, world, seed].values())
