"""Studies beyond the latency paper: heavy-tailed latencies, other α, estimators, and Corollary 1 on quadratics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from fedweave.aggregate import InverseProbability, Models
from fedweave.core.records import Population
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import bars, curves
from fedweave.papers.common.record import Record, last
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.latency.setup import SETTINGS, arms, experiment, sampler, selection, settings
from fedweave.papers.latency.studies import (
    FINAL,
    FIVE,
    LOSS,
    READING,
    ROUND,
    SECONDS,
    SMOOTHED,
    TIMES_OURS,
    drawn,
    relative_to,
    table1,
)
from fedweave.papers.latency.theory import measure_bound
from fedweave.runs.experiment import Experiment
from fedweave.solve import latency_plan
from fedweave.system import Latency
from fedweave.theory import expected_round_seconds

LOGNORMAL = replace(
    table1("fashion_mnist", "dir"),
    name="latency/lognormal",
    shows="beyond the paper: table I's Dirichlet setting with log-normal latencies, one client in ten very slow",
    arms=arms("fashion_mnist", "dir", Latency.heavy_tailed()),
    seeds=FIVE,
    panels=(
        drawn("Time to the target", SECONDS, "Simulated time, s"),
        drawn("Time over that of ours", TIMES_OURS, "Times ours"),
    ),
    settings=settings("fashion_mnist", "dir", "log-normal, mean 1/2"),
    published={},
)

# α in units of the data's part of the bound, (1/M) Σ d G²
BOLDNESS: dict[str, float | None] = {"eq. 27": None, **{f"α = {b:g}": b for b in (1.0, 3.0, 10.0, 30.0, 100.0)}}


def population(record: Record) -> Population:
    """Return the clients of a run under U(0, 1): their data shares and latencies."""
    samples = np.array(record.values["labels"]).sum(1)
    nominal = population_of(samples / samples.sum(), 1)
    return Latency().population(nominal, 1, record.values["seed"])


def promise(record: Record, boldness: float | None, data: str = "fashion_mnist") -> tuple[float, float]:
    """Return the gain over uniform selection that the plan of a run promises, A R² over A R², and its α in units."""
    clients, mine = population(record), sampler(data, boldness)
    trial = record.clients["round"] <= mine.trial
    (square, latency, alpha), _ = mine.estimates_from({k: v[trial] for k, v in record.clients.items()}, clients)
    factor, M = clients.weight**2 * square, mine.per_round
    plan = latency_plan(latency, factor, alpha, 1.0, [M]).probability
    uniform = np.full(plan.size, 1 / plan.size)
    A = [expected_round_seconds(p, latency, M) for p in (uniform, plan)]
    R = [alpha + float((factor / p).sum()) / M for p in (uniform, plan)]
    return A[0] * R[0] ** 2 / (A[1] * R[1] ** 2), alpha / (float(clients.weight @ square) / M)


def promised(place: int) -> Any:
    """Return a joint measure: the promised gain (0) or α (1) of every plan; uniform selection promises nothing."""

    def of(records: Mapping[str, Record]) -> dict[str, float]:
        return {arm: promise(r, BOLDNESS[arm])[place] if arm in BOLDNESS else np.nan for arm, r in records.items()}

    return of


def _alpha(where: str) -> Study:
    def at(scale: Scale) -> Mapping[str, Experiment]:
        base = experiment("fashion_mnist", where, scale)
        ours = selection("ours", "fashion_mnist")
        bold = {name: replace(ours, sampler=sampler("fashion_mnist", b)) for name, b in BOLDNESS.items()}
        return {"uniform": base, **{name: replace(base, method=method) for name, method in bold.items()}}

    gain = Measure(relative_to("uniform", inverse=True), ratio=True, joint=True, digits=3)
    promise_of = Measure(promised(0), ratio=True, joint=True, digits=3)
    return Study(
        name=f"latency/alpha/{where}",
        shows=f"beyond the paper: plans for the estimated α and for others, {SETTINGS[where]}",
        arms=at,
        seeds=FIVE,
        needs_reports=True,  # of the trial rounds
        measures={
            "gain over uniform": gain,
            "promised gain": promise_of,
            "α in units of (1/M) Σ d G²": Measure(promised(1), joint=True, digits=3),
            "seconds to the target": SECONDS,
            "seconds a round": ROUND,
            "accuracy, last tenth": FINAL,
        },
        panels=(
            drawn("Gain in time over uniform selection", gain, "Times faster"),
            drawn("Gain that the plan promises", promise_of, "Times faster"),
            LOSS,
        ),
        settings=settings("fashion_mnist", where),
        notes=(READING, "The promise is the ratio of A R², with G and α as estimated in the trial."),
    )


ESTIMATORS = {"updates": InverseProbability(), "self-normalised": InverseProbability("weights"), "models": Models()}


def total_deviation(record: Record) -> float:
    """Return the root mean square of Σ c d/(M p) − 1, the total of a round's weights."""
    rows, weight = record.clients, population(record).weight
    total = np.bincount(rows["round"], rows["count"] * weight[rows["client"]] / rows["expected"])[1:]
    return float(np.sqrt(np.mean((total - 1) ** 2)))


def _last_quarter(column: str) -> Any:
    return lambda record: last(column, max(record.rounds[column].size // 4, 1))(record)


def _weights(scale: Scale) -> Mapping[str, Experiment]:
    base = experiment("fashion_mnist", "dir", scale)
    kinds = [("ratio", "updates"), *product(("uniform", "ours"), ESTIMATORS)]
    return {
        f"{law}, {kind}": replace(
            base, method=replace(selection(law, "fashion_mnist"), aggregator=ESTIMATORS[kind])
        )
        for law, kind in kinds
    }  # fmt: skip


WEIGHTS = Study(
    name="latency/weights",
    shows="beyond the paper: three estimators: does it matter that weights sum to one on average only?",
    arms=_weights,
    seeds=FIVE,
    measures={
        "loss, last quarter": Measure(_last_quarter("objective"), ratio=True, digits=3),
        "accuracy, last quarter": Measure(_last_quarter("accuracy"), "%"),
        "deviation of the weights' total": Measure(total_deviation, digits=3),
    },
    panels=(
        curves("Global loss", "objective", smooth=SMOOTHED, log="y"),
        bars("Deviation of the weights' total", total_deviation, "Standard deviation"),
    ),
    settings=settings("fashion_mnist", "dir"),
)


ROUNDS: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (16, 64),
    **dict.fromkeys(("laptop", "paper"), (16, 64, 256, 1024)),
}


def bound(what: tuple[str, tuple[int, ...]], seed: int) -> Record:
    """Return the mean squared gradient over T rounds on quadratics, measured or bounded (Corollary 1)."""
    side, rounds = what
    found = measure_bound(1, rounds, seed)
    y = found.measured[0] if side == "measured" else found.bound
    return Record({"T": found.x, "gradient": y})


def _bound(scale: Scale) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    return {side: (side, ROUNDS[scale]) for side in ("measured", "bound")}


BOUND = Study(
    name="latency/bound",
    shows="Corollary 1 on quadratics: the mean squared gradient over T rounds, measured and bounded",
    arms=_bound,
    work=bound,
    seeds=FIVE,
    measures={
        "gradient, shortest run": Measure(lambda r: float(r.rounds["gradient"][0]), ratio=True),
        "gradient, longest run": Measure(lambda r: float(r.rounds["gradient"][-1]), ratio=True),
    },
    panels=(curves("Mean squared gradient", "gradient", "T", "mean ‖∇f‖² over T rounds", log="xy"),),
    settings=lambda scale: {
        "clients": 10,
        "draws": 5,
        "local steps": 5,
        "learning rate": "1/(L I √T)",
        "rounds T": str(ROUNDS[scale]),
    },
)
BEYOND: tuple[Study, ...] = (LOGNORMAL, *(_alpha(where) for where in ("dir", "iid")), WEIGHTS, BOUND)
