"""Callbacks of runs: a progress bar, a tracker, or a function of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.core.records import Failure, ServerState
from fedweave.core.settings import BadInput, shown
from fedweave.runs.experiment import Experiment
from fedweave.store.export import Columns

if TYPE_CHECKING:
    from fedweave.runs.results import Result

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)  # a key of dictionaries
class Running:
    """A run that has begun."""

    experiment: Experiment
    manifest: Mapping[str, Any]
    folder: Path | None
    rounds_done: int  # of a run that is continued, when it began again
    past: Columns = field(default_factory=dict)  # the rows of those rounds, as in ``Result.rounds``
    failures: list[tuple[str, Failure]] = field(default_factory=list)  # of the last round: refused | failed | abandoned

    @property
    def name(self) -> str:
        """The name of its method."""
        return self.experiment.method.name

    @property
    def label(self) -> str:
        """Its method and its seed, as fedavg-seed0; in a folder with others what it is called there."""
        seed = f"-seed{self.experiment.seed}"
        return self.folder.name if self.folder and self.folder.name.endswith(seed) else f"{self.name}{seed}"


class Callback:
    """Called when a run begins, after each round and when it ends; override what you need.

    All runs of a comparison share it; runs that train at the same time call it from several threads. An exception
    that it raises ends the run; the finished rounds are kept.
    """

    def begin(self, run: Running) -> None:
        """Called before the first round of a run, or before the next one when a run is continued."""

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Called after a round, with its row, as in ``Result.rounds``, and the state after it, with the model ``x``."""

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Called when a run ends; ``error`` is what ended it early, such as KeyboardInterrupt, or None."""


class EachRow(Callback):
    """Calls a function with the row of every round."""

    def __init__(self, function: Callable[[Row], object]):
        self._function = function

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Pass the row on."""
        self._function(row)


Given = Callback | Callable[[Row], object]
Callbacks = Given | Iterable[Given]


def callbacks_of(given: Callbacks) -> tuple[Callback, ...]:
    """Return callbacks, given one by one or as several; a function is called with the row of every round."""
    several = given if isinstance(given, Iterable) else (given,)
    return tuple(_callback(one) for one in several)


def _callback(given: Given) -> Callback:
    if isinstance(given, Callback):
        return given
    if not callable(given) or isinstance(given, type):
        raise BadInput(f"A callback is a fedweave.Callback, or a function of a round's row. Got {shown(given)}.")
    return EachRow(given)
