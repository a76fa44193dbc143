"""Progress of long runs on the error stream: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedweave.core.records import ServerState
from fedweave.runs.callbacks import Callback, Row, Running
from fedweave.runs.results import score_of

LINE_SECONDS = 5.0


class Count:
    """One line for many parallel runs: how many are done."""

    def __init__(self, label: str):
        self._label, self._last = label, 0.0
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task(label, total=1)

    def __enter__(self) -> Callable[[int, int], None]:
        self._bars.__enter__()
        return self._update

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, value, where)

    def _update(self, done: int, total: int) -> None:
        self._bars.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and (done == total or time.monotonic() - self._last > LINE_SECONDS):
            self._last = time.monotonic()
            self._console.print(f"{self._label}: {done}/{total} runs", highlight=False)


@dataclass
class Line:
    """What is shown of one run."""

    label: str
    task: TaskID
    last: float  # when it was printed
    score: str = ""


class Show(Callback):
    """One line per run: rounds done, accuracy, simulated seconds, time left."""

    def __init__(self, runs: int, device: str = "", by_folder: bool = False):
        self._device = device  # printed when the first run begins
        self._by_folder = by_folder  # runs are called by their folders: in a sweep these name the points
        self._console = Console(stderr=True)
        self._runs, self._numbers = runs, count(1)
        self._lines = dict[Running, Line]()
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Show:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, value, where)

    def begin(self, run: Running) -> None:
        """Begin a line for a run."""
        number, experiment = next(self._numbers), run.experiment
        if number == 1 and self._device:
            self._console.print(f"device: {self._device}", highlight=False)
        name = run.folder.name if self._by_folder and run.folder else f"{run.name}, seed {experiment.seed}"
        label = f"[{number}/{self._runs}] {name}" if self._runs > 1 else run.name
        task = self._bars.add_task(label, total=experiment.rounds, status="")
        self._lines[run] = Line(label, task, time.monotonic())

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Bring the line of a run up to date."""
        line, total = self._lines[run], run.experiment.rounds
        line.score = score_of(row, run.experiment.task) or line.score
        status = f"{line.score}  clock {row['clock']:.4g} s"
        self._bars.update(line.task, completed=row["round"], status=status)
        due = row["round"] == total or time.monotonic() - line.last > LINE_SECONDS
        if due and not self._console.is_terminal:
            line.last = time.monotonic()
            said = f"{line.label}  round {row['round']}/{total}  {status}"
            self._console.print(said, highlight=False, soft_wrap=True)
        if row["refused"]:
            said = f"{line.label}  round {row['round']}: refused {row['refused']} updates"
            self._console.print(said, soft_wrap=True)
