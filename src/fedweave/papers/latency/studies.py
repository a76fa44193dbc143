"""The latency paper's table I and figures 2 to 6, and studies beyond it. Figure 1 is an illustration.

The paper prints no target loss: seconds are counted to the lowest loss that all selections reach, seed by seed, and to
absolute losses that were fixed beforehand. Losses are those of the test set, as means of five rounds: with skewed data
they vary by a factor of three from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from fedweave.aggregate import InverseProbability, Models
from fedweave.core.records import Array, Population
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import Bar, Make, Panel, Records, bars, curves, smoothed
from fedweave.papers.common.record import Record, end_of, last
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.latency.planning import FIG2, FIG3
from fedweave.papers.latency.setup import BENCHMARKS, SELECTIONS, SETTINGS, arms, experiment, sampler, selection, settings
from fedweave.papers.latency.theory import measure_bound
from fedweave.runs.experiment import Experiment
from fedweave.solve import latency_plan
from fedweave.system import Latency
from fedweave.theory import expected_round_seconds

SMOOTHED = 5  # rounds
FIVE: Mapping[Scale, int] = {"smoke": 2, "laptop": 5, "paper": 5}
TEN: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}  # of the primary claim
LOSSES = {"iid": 0.5, "class": 0.6, "dir": 1.2}  # absolute targets; ours, since the paper prints none
READING = (
    "Target: the lowest test loss (mean of five rounds) that all selections reach with a seed; the paper prints none. "
    "Seconds are simulated, the trial included. Where all clients have as much data (iid, class) ratio and uniform "
    "selection are one law, and a difference between them is noise."
)
LENGTH = "The paper prints no number of rounds: at published size there are enough for its longest printed time."


def loss_of(record: Record) -> Array:
    """Return the test loss as means of five rounds."""
    return smoothed(record.rounds["loss"], SMOOTHED)


def reached(record: Record, target: float, time: str = "clock") -> float:
    """Return when the loss was first at most the target; nan if never."""
    hit = np.flatnonzero(loss_of(record) <= target)
    return float(record.rounds[time][hit[0]]) if hit.size else np.nan


def common_target(records: Mapping[str, Record]) -> float:
    """Return the lowest loss that all of these runs reach."""
    return max(float(loss_of(record).min()) for record in records.values())


def to_common(time: str = "clock") -> Any:
    """Return a joint measure: seconds or rounds to the lowest loss that all arms of a setting reach."""

    def of(records: Mapping[str, Record]) -> dict[str, float]:
        found = {}
        for group in _settings_of(records):
            target = common_target(group)
            found |= {arm: reached(record, target, time) for arm, record in group.items()}
        return found

    return of


def relative_to(arm: str, inverse: bool = False) -> Any:
    """Return a joint measure: an arm's seconds over those of ``arm`` in the same setting, or the other way round."""

    def of(records: Mapping[str, Record]) -> dict[str, float]:
        seconds, found = to_common()(records), dict[str, float]()
        for group in _settings_of(records):
            base = next(seconds[name] for name in group if name.split(", ")[0] == arm)
            found |= {name: base / seconds[name] if inverse else seconds[name] / base for name in group}
        return found

    return of


def _settings_of(records: Mapping[str, Record]) -> list[dict[str, Record]]:
    """Return the arms by setting, which follows the comma in a name; all of them where there is none."""
    found: dict[str, dict[str, Record]] = {}
    for arm, record in records.items():
        found.setdefault(arm.partition(", ")[2], {})[arm] = record
    return list(found.values())


def at_equal_time(column: str) -> Any:
    """Return a joint measure: the mean of five rounds of a column when the shortest run ends."""

    def of(records: Mapping[str, Record]) -> dict[str, float]:
        end = min(float(record.rounds["clock"][-1]) for record in records.values())
        place = {arm: np.searchsorted(r.rounds["clock"], end * (1 + 1e-12), side="right") - 1 for arm, r in records.items()}
        return {arm: float(smoothed(r.rounds[column], SMOOTHED)[place[arm]]) for arm, r in records.items()}

    return of


def jitter(record: Record) -> float:
    """Return the mean absolute change of accuracy from round to round, over the second half."""
    accuracy = record.rounds["accuracy"]
    return float(np.abs(np.diff(accuracy[accuracy.size // 2 :])).mean())


def final_accuracy(record: Record) -> float:
    """Return the mean accuracy of the last tenth of the rounds."""
    return last("accuracy", max(record.rounds["accuracy"].size // 10, 1))(record)


SECONDS = Measure(to_common(), "s", ratio=True, joint=True)
TIMES_OURS = Measure(relative_to("ours"), ratio=True, joint=True, digits=3)
ROUND = Measure(lambda r: float(r.rounds["seconds"].mean()), "s", ratio=True, digits=3)
FINAL = Measure(final_accuracy, "%")


def drawn(title: str, measure: Measure, y_label: str, published: Mapping[str, float] | None = None) -> Make:
    """Return a panel with a bar for every arm of a measure."""

    def make(records: Records) -> Panel:
        found = measure.numbers(records)
        return Panel(title, "", y_label, bars=[Bar(a, v, (published or {}).get(a)) for a, v in found.items()])

    return make


LOSS = curves("Global loss", "loss", "clock", smooth=SMOOTHED, log="y")
ACCURACY = curves("Test accuracy", "accuracy", "clock", smooth=SMOOTHED)


def _table1(data: str, where: str) -> Study:
    seconds = dict(zip(SELECTIONS, BENCHMARKS[data].seconds[where], strict=True))
    times = {name: s / seconds["ours"] for name, s in seconds.items()}
    absolute = Measure(lambda r: reached(r, LOSSES[where]), "s", end=end_of("clock"))
    return Study(
        name=f"latency/table1/{data}/{where}",
        shows=f"seconds to a target loss by four selections: {SETTINGS[where]}",
        arms=arms(data, where),
        seeds=TEN if (data, where) == ("fashion_mnist", "dir") else FIVE,
        measures={
            "seconds to the target": SECONDS,
            "times ours": TIMES_OURS,
            f"seconds to loss {LOSSES[where]}": absolute,
            "rounds to the target": Measure(to_common("round"), ratio=True, joint=True),
            "seconds a round": ROUND,
            "accuracy, last tenth": FINAL,
        },
        panels=(
            drawn("Time to the target", SECONDS, "Simulated time, s", seconds),
            drawn("Time over that of ours", TIMES_OURS, "Times ours", times),
        ),
        settings=settings(data, where),
        published={"seconds to the target": seconds, "times ours": times},
        notes=(READING, LENGTH),
    )


def _figure(item: str, data: str, where: str) -> Study:
    return Study(
        name=f"latency/{item}/{data}",
        shows=f"loss and accuracy over time: {SETTINGS[where]}",
        arms=arms(data, where),
        seeds=FIVE,
        measures={
            "loss at equal time": Measure(at_equal_time("loss"), ratio=True, joint=True, digits=3),
            "accuracy at equal time": Measure(at_equal_time("accuracy"), "%", joint=True),
            "accuracy, last tenth": FINAL,
            "jitter": Measure(jitter, "%"),
        },
        panels=(LOSS, ACCURACY),
        settings=settings(data, where),
        notes=(
            "Equal time is the end of the shortest run of a seed; jitter the mean change of accuracy from round to "
            "round over the second half. Curves are means of five rounds.",
        ),
    )


def _acceleration(data: str) -> Study:
    def at(scale: Scale) -> Mapping[str, Experiment]:
        return {f"{name}, {where}": arm for where in SETTINGS for name, arm in arms(data, where)(scale).items()}

    printed = {
        f"{name}, {where}": s / row[0]
        for where, row in BENCHMARKS[data].seconds.items()
        for name, s in zip(SELECTIONS, row, strict=True)
    }
    return Study(
        name=f"latency/acceleration/{data}",
        shows="how much longer than ours the other selections take, in the three settings of table I",
        arms=at,
        seeds=FIVE,
        measures={"times ours": TIMES_OURS},
        panels=(drawn("Time over that of ours", TIMES_OURS, "Times ours", printed),),
        settings=lambda scale: {**settings(data, "dir")(scale), "client sizes": "equal; Dirichlet(0.1) in dir"},
        published={"times ours": printed},
        notes=(READING,),
    )


LOGNORMAL = replace(
    _table1("fashion_mnist", "dir"),
    name="latency/lognormal",
    shows="beyond the paper: table I's Dirichlet setting with log-normal latencies, one client in ten very slow",
    arms=arms("fashion_mnist", "dir", Latency.heavy_tailed()),
    seeds=FIVE,
    panels=(drawn("Time to the target", SECONDS, "Simulated time, s"), drawn("Time over that of ours", TIMES_OURS, "Times ours")),
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
    square, latency, alpha = mine.estimates_from({k: v[trial] for k, v in record.clients.items()}, clients)
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
        "loss, last quarter": Measure(_last_quarter("loss"), ratio=True, digits=3),
        "accuracy, last quarter": Measure(_last_quarter("accuracy"), "%"),
        "deviation of the weights' total": Measure(total_deviation, digits=3),
    },
    panels=(
        curves("Test loss", "loss", smooth=SMOOTHED, log="y"),
        bars("Deviation of the weights' total", total_deviation, "Standard deviation"),
    ),
    settings=settings("fashion_mnist", "dir"),
)


def bound(what: tuple[str, tuple[int, ...]], seed: int) -> Record:
    """Return the mean squared gradient over T rounds on quadratics, measured or bounded (Corollary 1)."""
    side, rounds = what
    found = measure_bound(1, rounds, seed)
    y = found.measured[0] if side == "measured" else found.bound
    return Record({"T": found.x, "gradient": y})


def _bound(scale: Scale) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    rounds = (16, 64) if scale == "smoke" else (16, 64, 256, 1024)
    return {side: (side, rounds) for side in ("measured", "bound")}


BOUND = Study(
    name="latency/bound",
    shows="Corollary 1 on quadratics: the mean squared gradient over T rounds, measured and bounded",
    arms=_bound,
    work=bound,
    seeds=FIVE,
    exact=True,
    measures={
        "gradient, shortest run": Measure(lambda r: float(r.rounds["gradient"][0]), ratio=True),
        "gradient, longest run": Measure(lambda r: float(r.rounds["gradient"][-1]), ratio=True),
    },
    panels=(curves("Mean squared gradient", "gradient", "T", "mean ‖∇f‖² over T rounds", log="xy"),),
    settings=lambda scale: {"clients": 10, "draws": 5, "local steps": 5, "learning rate": "1/(L I √T)"},
)
STUDIES: tuple[Study, ...] = (
    *(_table1(data, where) for data in BENCHMARKS for where in ("dir", "class", "iid")),
    FIG2,
    FIG3,
    *(
        _figure(item, data, where)
        for item, where in (("fig4", "iid"), ("fig5", "dir"), ("fig6", "class"))
        for data in BENCHMARKS
    ),
    *(_acceleration(data) for data in BENCHMARKS),
    LOGNORMAL,
    *(_alpha(where) for where in ("dir", "iid")),
    WEIGHTS,
    BOUND,
)
