"""A recorded outcome: everything about a reproduced item that pages, verdicts and later checks need, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from fedweave.core.typed_json import Checked
from fedweave.papers.common.drawn import DrawnPanel, summarize
from fedweave.papers.common.study import COLUMNS, Outcome
from fedweave.tables.files import read_json

Measured = dict[str, dict[str, dict[str, list[float | None]]]]  # by column, measure and arm: one number per seed


class Cost(Checked):
    """What the runs of an item took, each counted once, wherever it was computed."""

    runs: int
    processor_seconds: float
    wall_seconds: float  # of the runs, one after another
    unknown: int  # runs that were kept before their cost was


class Origin(Checked):
    """By which code, software and processor the runs of these seeds were computed."""

    seeds: list[int]
    code: str  # digest of the library's source
    versions: dict[str, str]
    processor: dict[str, str]


class Recorded(Checked):
    """The content of a file in ``results``. What older files do not have is None."""

    item: str
    shows: str
    scale: str
    fidelity: str
    settings: dict[str, dict[str, Any]]
    seeds: int
    rows: list[dict[str, str]]
    measures: Measured
    notes: list[str]
    columns: dict[str, str] = Field(default_factory=dict)
    panels: dict[str, list[DrawnPanel]] | None = None
    cost: Cost | None = None
    origins: list[Origin] | None = None
    tuned: bool = False  # with --tune
    claims: list[dict[str, Any]] = Field(default_factory=list)
    date: str = ""
    processor: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)

    def model_post_init(self, _: Any) -> None:
        """Name the columns of files that do not."""
        if not self.columns:
            self.columns = {column: COLUMNS[column] for column in self.measures}


def to_recorded(outcome: Outcome) -> Recorded:
    """Return an outcome with what its figures show and what its runs took, its claims before correction."""
    columns = {column: outcome.named(column) for column in outcome.records}
    return Recorded(
        **outcome.plain(),
        columns=columns,
        panels=summarize({column: outcome.panels(column) for column in columns}),
        cost=_cost(outcome),
        origins=[Origin(**origin) for origin in outcome.origins],
        tuned="tuned" in columns,
        claims=[judged.plain() for judged in outcome.judged()],
    )


def _cost(outcome: Outcome) -> Cost:
    runs = {id(run): run for records in outcome.records.values() for many in records.values() for run in many}.values()
    known = [run.values["cost"] for run in runs if "cost" in run.values]
    seconds = {name: round(sum(cost[name] for cost in known), 1) for name in ("processor_seconds", "wall_seconds")}
    return Cost(runs=len(runs), **seconds, unknown=len(runs) - len(known))


def file_name(item: str, scale: str) -> str:
    """Return the name of an item's file, or of what belongs to it, without its ending."""
    return f"{item.replace('/', '-')}.{scale}"


def read_recorded(path: Path) -> Recorded:
    """Return a recorded outcome; BadInput in one sentence where the file is damaged."""
    return Recorded(**read_json(path, Recorded))


def all_recorded(folder: Path) -> Iterator[Recorded]:
    """Yield the outcomes of a folder by the names of their files."""
    for path in sorted(folder.glob("*.json")):
        yield read_recorded(path)


def to_json(content: Any) -> bytes:
    """Return JSON with lists of numbers on one line each: small, and a change is a change of few lines."""
    text = json.dumps(content, indent=1, allow_nan=False)
    one_line = re.compile(r"\[\n([^\[\]{}]*)\n *\]")  # real line ends: those of strings are written as \\n
    text = one_line.sub(lambda found: "[" + re.sub(r"\n *", " ", found[1]).strip() + "]", text)
    return f"{text}\n".encode()
