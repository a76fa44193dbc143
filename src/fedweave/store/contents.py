"""What the JSON files of a run folder must hold for fedweave to read them; they may hold more."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from fedweave.core.settings import FileName
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
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
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
    stop_at_target: bool = False
    patience: Number | None = None
    stop_after: float | None = None
    evaluate_every: Annotated[int, Field(gt=0, lt=2**63)] = 1
    validation: float | None = None


def _metric(name: str) -> str:
    if not name.isprintable() or name == "class_accuracy":
        raise ValueError("it must name a metric with one value per round")
    return name


class StoredTask(Checked):
    """By which metric a run is judged."""

    primary: Annotated[str, AfterValidator(_metric)]
    higher_is_better: bool


class StoredSample(Checked):
    """What a model of the library was built for, as ``fedweave.models.build`` takes it."""

    shape: list[Number]
    classes: Number
    tokens: Number
    each: bool
    outputs: Number


class StoredModel(Checked):
    """The model of a run: its tensors in the flat vector, and how to build one of the library."""

    name: Printable
    parameters: Number
    names: list[Printable] | None = None
    shapes: list[list[Number]] | None = None
    sample: StoredSample | None = None
    constants: str | None = None


class StoredStart(Checked):
    """Where a model's first values came from."""

    path: str | None
    sha256: str


class Manifest(Checked):
    """manifest.json: where a run comes from."""

    versions: dict[str, Printable]
    data: dict[str, Any]
    experiment: StoredExperiment | None = None
    task: StoredTask | None = None
    command: str | list[str] | None = None
    partition: Printable | None = None
    clients: Number | None = None
    labels: Annotated[list[list[Number]], AfterValidator(_rectangular)] | None = None
    samples: list[Number] | None = None
    test_samples: list[Number] | None = None
    client_names: list[Printable] | None = None
    class_names: list[Printable] | None = None
    model: StoredModel | None = None
    start: StoredStart | None = None
    plugins: dict[str, Printable] | None = None


class Plan(Checked):
    """compare.json: the runs of a comparison by the names of their folders, and in a sweep their points."""

    command: Printable | None
    runs: Annotated[dict[FileName, StoredExperiment], Field(min_length=1)]
    points: dict[str, dict[Printable, Printable | float | Whole | bool | None]] | None = None

    @model_validator(mode="after")
    def _each_run_has_a_point(self) -> Plan:
        if self.points is not None and self.points.keys() != self.runs.keys():
            raise ValueError("'points' must have the names of 'runs'")
        return self


class AuditLine(Checked):
    """One line of the audit log."""

    round: Number
    verdict: Printable
    chain: str
