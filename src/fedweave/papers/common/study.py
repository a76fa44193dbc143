"""A study is one figure or table of a paper: what is run, what is measured, and how it is drawn.

Everything a study needs is declared; running, keeping, judging, tables and pages are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.cache import describe_arm
from fedweave.papers.common.judge import Fidelity, Judged, Values, judge
from fedweave.papers.common.ledger import claims_of
from fedweave.papers.common.panels import Panel
from fedweave.papers.common.record import Record, Records, beside, run_experiment
from fedweave.papers.common.scale import Scale
from fedweave.runs.experiment import Experiment
from fedweave.statistics import censored, paired_difference

# What a smaller setting must keep to be called faithful (besides the data's kind and the methods).
KEPT = ("data", "steps an epoch", "participation", "client sizes", "tuning")
OURS = "ours: "  # begins a setting that the paper leaves open and results hang on: never called published
COLUMNS = {"paper": "as published", "calibrated": "step lengths calibrated", "tuned": "every method tuned"}


@dataclass(frozen=True)
class Measure:
    """A number of each run; with ``against``, of a run and that of another arm with the same seed.

    ``joint``: ``of`` takes the runs of all arms with one seed, by arm, and returns the number of each; so a target may
    be what all of them reach, or a share of what one of them does.
    """

    of: Callable[..., Any]
    unit: str = ""  # "%" is a share, shown in per cent
    # Of a time to a target: the first time that a run did not observe. Runs that never arrived count as later than all.
    end: Callable[..., float] | None = None
    ratio: bool = False  # compare by ratios, not differences
    digits: int = 4
    against: Callable[[str], str] | None = None  # the arm that an arm is measured against
    joint: bool = False

    def numbers(self, records: Records) -> dict[str, Array]:
        """Return the measure of every arm, one number per seed; nan where there is none."""
        if not self.joint:
            return self._each(self.of, records)
        seeds = [self.of(dict(zip(records, runs, strict=True))) for runs in zip(*records.values(), strict=True)]
        return {arm: np.array([found[arm] for found in seeds], float) for arm in records}

    def ends(self, records: Records) -> dict[str, Array]:
        """Return the first time that each run did not observe."""
        return self._each(self.end, records) if self.end else {}

    def _each(self, of: Callable[..., float], records: Records) -> dict[str, Array]:
        runs = {arm: beside(records, arm, self.against) for arm in records}
        return {arm: np.array([of(*several) for several in each], float) for arm, each in runs.items()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """One figure or table, in one setting.

    ``arms`` returns what is run at a scale, by name: experiments, or whatever ``work`` takes beside a seed. It raises
    BadInput where data is missing, with how to get it.
    """

    name: str  # paper/figure/setting
    shows: str
    arms: Callable[[Scale], Mapping[str, Any]]
    seeds: Mapping[Scale, int]
    measures: Mapping[str, Measure]
    panels: Sequence[Callable[[Records], Panel]]
    settings: Callable[[Scale], Mapping[str, Any]] = lambda scale: {}
    work: Callable[[Any, int], Record] = run_experiment
    published: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)  # by measure and arm
    exact: bool = False  # arithmetic: the same for every seed
    notes: Sequence[str] = ()
    columns: Sequence[Literal["calibrated", "tuned"]] = ()  # beside the paper's setting, always
    needs_reports: bool = False  # whether a measure or panel needs what clients report, besides their steps
    stand_in: Callable[[Scale], str] = lambda scale: ""  # what ran instead of what the claims are about, a sentence
    as_fedavg: Sequence[str] = ()  # arms whose steps are as long as FedAvg's: calibrated, they are the same runs

    def fidelity(self, scale: Scale) -> Fidelity:
        """Return how faithful the setting of a scale is to the published one (protocol, 2)."""
        if self.exact and self._is_whole(scale):
            return "exact"
        published, used = self.settings("paper"), self.settings(scale)
        if used == published:
            return "faithful" if any(str(value).startswith(OURS) for value in used.values()) else "published"
        kept = [name for name in KEPT if name in published]
        return "faithful" if kept and all(used[name] == published[name] for name in kept) else "toy"

    def _is_whole(self, scale: Scale) -> bool:
        """Return whether arithmetic is done on as much as is published, not on a part of it."""
        same = self.seeds[scale] == self.seeds["paper"] and self.settings(scale) == self.settings("paper")
        return scale == "paper" or (same and describe_arm(self.arms(scale)) == describe_arm(self.arms("paper")))

    def experiments(self, scale: Scale, column: str) -> Mapping[str, Any]:
        """Return the arms of a column: as published, also before they are tuned, or with step lengths calibrated."""
        arms = self.arms(scale)
        if column != "calibrated":
            return arms
        return {name: arm if name in self.as_fedavg else replace(arm, calibrate=True) for name, arm in arms.items()}


@dataclass(frozen=True)
class Outcome:
    """A reproduced figure or table of a paper."""

    study: Study
    scale: Scale
    records: Mapping[str, Records]  # by column: paper, calibrated, tuned
    learning_rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by column and arm, where tuned
    origins: Sequence[Mapping[str, Any]] = ()  # by which code and machine, and of which seeds

    def values(self, measure: str, column: str = "paper") -> Values | None:
        """Return a measure of every arm, one number per seed."""
        m = self.study.measures.get(measure)
        if m is None or column not in self.records:
            return None
        found, ends = m.numbers(self.records[column]), m.ends(self.records[column])
        if not ends:
            return Values(found, m.ratio)
        never = [arm for arm, numbers in found.items() if np.isnan(numbers).any()]
        last = np.max(list(ends.values()), axis=0)
        bounds = {arm: censored(found[arm], ends[arm]) for arm in never}
        return Values({arm: censored(numbers, last) for arm, numbers in found.items()}, True, never, bounds)

    def judged(self) -> list[Judged]:
        """Judge the claims of this item, before the correction for many claims.

        What stands in for the real thing judges no claim, except at smoke scale, where verdicts mean nothing.
        """
        fidelity, measures = self.study.fidelity(self.scale), self.study.measures
        if self.scale != "smoke" and self.study.stand_in(self.scale):
            return [Judged(claim, fidelity, evidence="a stand-in ran") for claim in claims_of(self.study.name)]
        return [
            judge(
                c, self.values(c.measure, c.column), fidelity, measures[c.measure].unit if c.measure in measures else ""
            )
            for c in claims_of(self.study.name)
        ]

    @property
    def notes(self) -> list[str]:
        """The study's notes, and what ran instead if something did."""
        return [*self.study.notes, *filter(None, [self.study.stand_in(self.scale)])]

    def rows(self) -> list[dict[str, str]]:
        """Return the table: a line for every arm, means with their t intervals, published numbers beside them."""
        found = []
        for column, records in self.records.items():
            numbers = {name: measure.numbers(records) for name, measure in self.study.measures.items()}
            first = {"column": self.named(column)} if len(self.records) > 1 else {}
            lr = {arm: {"learning rate": f"{rate:g}"} for arm, rate in self.learning_rates.get(column, {}).items()}
            found += [{**first, "method": arm, **lr.get(arm, {}), **self._cells(numbers, arm)} for arm in records]
        return found

    def _cells(self, numbers: Mapping[str, Mapping[str, Array]], arm: str) -> dict[str, str]:
        cells: dict[str, str] = {}
        for name, measure in self.study.measures.items():
            cells[name] = self._cell(measure, numbers[name][arm])
            if name in self.study.published:
                number = self.study.published[name].get(arm)
                cells[f"{name}, published"] = "—" if number is None else _format(number, measure)
        return cells

    @staticmethod
    def _cell(measure: Measure, numbers: Array) -> str:
        seen = numbers[np.isfinite(numbers)]
        if not seen.size:
            return "never" if measure.end else "—"
        if measure.end and seen.size < numbers.size:
            return f"{seen.size} of {numbers.size} seeds, the first {_format(float(seen.min()), measure)}"
        spread = paired_difference(seen, 0 * seen)
        half = (spread.interval[1] - spread.interval[0]) / 2
        text = _format(spread.mean, measure)
        return text if seen.size < 2 or half == 0 else f"{text} ± {_format(half, measure, 2)}"

    def named(self, column: str) -> str:
        """Return what is shown as a column's name; beside a calibrated one, all have one learning rate."""
        alike = self.study.columns or self.study.name.startswith("beyond/")  # nobody published the latter
        return "one learning rate for all" if column == "paper" and alike else COLUMNS[column]

    def panels(self, column: str = "paper") -> list[Panel]:
        """Return what is drawn."""
        return [make(self.records[column]) for make in self.study.panels]

    def plain(self) -> dict[str, Any]:
        """Return everything but the curves as JSON-able data."""
        study, scale = self.study, self.scale
        return {
            "item": study.name,
            "shows": study.shows,
            "scale": scale,
            "fidelity": study.fidelity(scale),
            "settings": compare_settings(study, scale),
            "seeds": study.seeds[scale],
            "rows": self.rows(),
            "measures": {
                column: {
                    name: {arm: _list(v) for arm, v in values.by_arm.items()}
                    for name in study.measures
                    if (values := self.values(name, column))
                }
                for column in self.records
            },
            "notes": self.notes,
        }


def compare_settings(study: Study, scale: Scale) -> dict[str, dict[str, Any]]:
    """Return every setting as published, at laptop scale and as used, side by side."""
    shown: dict[str, Scale] = {"published": "paper", "laptop": "laptop", "used": scale}
    by = {label: study.settings(each) for label, each in shown.items()}
    return {name: {label: values.get(name) for label, values in by.items()} for name in by["used"]}


def count_runs(study: Study, scale: Scale) -> int:
    """Return how many runs a study takes."""
    return len(study.arms(scale)) * study.seeds[scale] * (1 + len(study.columns))


def is_trained(arm: Any) -> bool:
    """Return whether an arm is an experiment, which can be timed."""
    return isinstance(arm, Experiment)


def _format(value: float | str, measure: Measure, digits: int | None = None) -> str:
    if isinstance(value, str):
        return value
    if measure.unit == "%":
        return f"{100 * value:.1f}"
    return f"{value:.{digits or measure.digits}g}"


def _list(values: Any) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
