"""What the JSON files of a run folder must hold for fedweave to read them; they may hold more."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fedweave.core.paths import FileName
from fedweave.core.typed_json import Checked


def _rectangular(rows: list[list[int]]) -> list[list[int]]:
    if len({len(row) for row in rows}) > 1:
        raise ValueError("all rows must have one length")
    return rows


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it must be printable text")
    return text


Number = Annotated[int, Field(ge=0, lt=2**63)]
Printable = Annotated[str, AfterValidator(_printable)]


class StoredMethod(Checked):
    """A method, by its name; its parts are checked when it is built."""

    name: FileName


class StoredExperiment(Checked):
    """What reports read of an experiment; all of it is checked when it is built."""

    method: StoredMethod
    seed: Number
    rounds: Number
    target: float | None
    calibrate: bool = False


class StoredTask(Checked):
    """By which metric a run is judged."""

    primary: Printable
    higher_is_better: bool


class Manifest(Checked):
    """manifest.json: where a run comes from."""

    versions: dict[str, Printable]
    data: dict[str, Any]
    experiment: StoredExperiment | None = None
    command: str | list[str] | None = None
    task: StoredTask | None = None
    labels: Annotated[list[list[Number]], AfterValidator(_rectangular)] | None = None
    samples: list[Number] | None = None
    plugins: dict[str, Printable] | None = None


class Plan(Checked):
    """compare.json: the runs of a comparison by the names of their folders."""

    command: Printable | None
    runs: Annotated[dict[FileName, StoredExperiment], Field(min_length=1)]


class AuditLine(Checked):
    """One line of the audit log."""

    round: Number
    verdict: Printable
    chain: str
