"""What the atlas shows: the ledger with its verdicts, the recorded outcomes, and what was written beside them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fedweave import papers
from fedweave.core.settings import BadInput
from fedweave.core.typed_json import Checked
from fedweave.papers.common.judge import Judged, show_number
from fedweave.papers.common.ledger import LEDGER, SECTIONS, Claim
from fedweave.papers.common.recorded import Recorded, all_recorded, file_name
from fedweave.papers.common.study import Study
from fedweave.papers.common.unfinished import Unfinished
from fedweave.tables.files import shown_path

RANK = ("published", "full size", "faithful", "exact", "toy")


class Erratum(Checked):
    """Something that does not hold as printed."""

    where: str
    found: str
    check: str  # what shows it: a command, a module or function, or a document


class About(Checked):
    """A paper."""

    name: str
    title: str
    authors: str
    errata: list[Erratum] = Field(default_factory=list)


class Open(Checked):
    """A claim that is not confirmed: what was tried, and what would decide it."""

    claim: str
    tried: str
    would_decide: str


class Notes(Checked):
    """``notes.toml`` of a folder of records: what is written by hand."""

    unavailable: list[str] = Field(default_factory=list)  # data sets
    costs: dict[str, str] = Field(default_factory=dict)  # of items that were not run, by the beginning of their names
    open: list[Open] = Field(default_factory=list)


@dataclass(frozen=True)
class Contents:
    """Everything that the pages show."""

    judged: Sequence[tuple[Judged, Recorded | None]]  # every claim of the ledger, and the outcome that it is by
    records: Sequence[Recorded]
    notes: Notes
    about: Mapping[str, About]
    left: Mapping[str, tuple[str, int]]  # by item: the scale at which it is unfinished, and how many runs are done

    def papers(self) -> list[str]:
        """Return the papers that have claims, and the section beyond them."""
        return [paper for paper in SECTIONS if self.claims(paper)]

    def claims(self, paper: str) -> list[Judged]:
        """Return the claims of a paper, the primary one first."""
        return sorted((j for j, _ in self.judged if j.claim.paper == paper), key=lambda j: not j.claim.primary)

    def of_record(self, record: Recorded) -> list[Judged]:
        """Return the claims that were judged by a record."""
        file = record.item, record.scale
        return [j for j, by in self.judged if j.verdict != "not run" and by and (by.item, by.scale) == file]

    def records_of(self, paper: str) -> list[Recorded]:
        """Return the records of a paper's items, those of its most important claims first."""
        order = [j.claim.item for j in self.claims(paper)]
        mine = [record for record in self.records if record.item.split("/")[0] == paper]
        return sorted(mine, key=lambda r: (order.index(r.item) if r.item in order else len(order), r.item, r.scale))

    def why_not_run(self, judged: Judged) -> tuple[str, str]:
        """Return why a claim was not run, and what running it would take, as far as that is known."""
        item = judged.claim.item
        if item in self.left:
            scale, done = self.left[item]
            return f"under way: {done} runs are done, scale {scale}", self._cost(item)
        if any(record.item == item for record in self.records):
            tuned = "Its run was without --tune. " if judged.claim.column == "tuned" else ""
            return f"{tuned}{judged.evidence[:1].upper()}{judged.evidence[1:]}", ""
        data = data_of(papers.studies()[item])
        if data in self.notes.unavailable:
            return f"the data set {data} could not be had here", self._cost(item)
        return "not run yet", self._cost(item)

    def _cost(self, item: str) -> str:
        known = [name for name in self.notes.costs if item == name or item.startswith(f"{name}/")]
        return self.notes.costs[max(known, key=len)] if known else "not estimated"

    def remark(self, judged: Judged) -> str:
        """Return which of several others decides a claim, or on which side of what is printed ours is."""
        claim, record = judged.claim, next(by for j, by in self.judged if j is judged)
        if record is None or judged.difference is None:
            return ""
        ratio = _unit(claim)[1]
        if len(claim.others) > 1 and claim.kind in ("greater", "less", "equal"):
            values = record.measures[claim.column][claim.measure]
            means = {arm: _mean_difference(values[claim.ours], values[arm], ratio) for arm in claim.others}
            return next((f" against {arm}" for arm, mean in means.items() if isclose(mean, judged.difference)), "")
        if ratio and claim.kind in ("above", "below"):
            return f" the bound of {claim.value:g}"
        none = float(ratio)  # what no difference is
        printed = none if claim.kind == "value" else claim.factor if ratio else claim.value or none
        if judged.verdict != "contradicted" or not (
            claim.kind == "value" or (claim.kind == "equal" and printed != none)
        ):
            return ""
        return f", {'smaller' if judged.difference < printed else 'larger'} than printed"

    def open_of(self, judged: Judged) -> Open | None:
        """Return what is written about a claim that is not confirmed."""
        return next((entry for entry in self.notes.open if entry.claim == judged.claim.id), None)


def data_of(study: Study) -> str:
    """Return the data set of a study, as it is named in its settings; nothing where it needs none."""
    return str(study.settings("paper").get("data", ""))


def read_contents(folder: Path) -> Contents:
    """Return what the pages of a folder of records show."""
    left = {}
    for item in papers.studies():
        for scale in ("smoke", "laptop", "paper"):
            place = folder / "unfinished" / file_name(item, scale)
            if place.is_dir():
                left[item] = scale, len(Unfinished(place).entries)
    notes = _read_toml(folder / "notes.toml", Notes) if (folder / "notes.toml").exists() else Notes()
    return Contents(papers.judged_claims(folder), list(all_recorded(folder)), notes, read_about(), left)


def read_about() -> dict[str, About]:
    """Return the papers by their short names, with their errata."""
    return _read_toml(LEDGER / "about.toml", dict[str, About])


def _read_toml(path: Path, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as e:
        first = e.errors(include_url=False)[0] if isinstance(e, ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(e)
        raise BadInput(f"{shown_path(path)} cannot be read: {why}.") from None


def _unit(claim: Claim) -> tuple[str, bool]:
    """Return the unit of a claim's measure, and whether ratios of it are compared."""
    measure = papers.studies()[claim.item].measures.get(claim.measure)
    return (measure.unit, measure.ratio or measure.end is not None) if measure else ("", False)


def _mean_difference(ours: Sequence[float | None], other: Sequence[float | None], ratio: bool) -> float:
    """Return the mean difference, or ratio, over the seeds; nan where a run gave no number."""
    a, b = (np.array(values, float) for values in (ours, other))
    return float(np.exp(np.log(a / b).mean()) if ratio else (a - b).mean())


def shown_difference(judged: Judged) -> tuple[str, str, str]:
    """Return a claim's difference, its interval and what its seeds would have shown, in the measure's unit."""
    unit, ratio = _unit(judged.claim)

    def text(value: float | None) -> str:
        return "—" if value is None else show_number(value, unit, ratio)

    if judged.interval is None:
        return text(judged.difference), "—", text(judged.detectable)
    if isclose(*judged.interval):
        return text(judged.difference), "the same in every run", "—"
    return text(judged.difference), " to ".join(map(text, judged.interval)), text(judged.detectable)
