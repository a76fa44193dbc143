"""Progress of runs: bars on a terminal, a table in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from itertools import count
from threading import Lock
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedweave.core.html import CELL, FAINT, TABLE
from fedweave.core.records import ServerState
from fedweave.core.settings import BadInput, shown
from fedweave.runs.callbacks import Callback, Row, Running
from fedweave.runs.refusals import Refusals
from fedweave.runs.results import ENDED, Result, ended_early, score_of

LINE_SECONDS = 5.0  # between two plain lines of a run
CELL_SECONDS = 0.2  # between two updates of a notebook
_showing = Lock()


@contextmanager
def shown_progress(progress: bool | None, runs: int) -> Generator[Sequence[Callback]]:
    """Give the callbacks that show the progress of so many runs; there are none where nothing is to be shown.

    None shows it on a terminal and in a notebook, and is silent elsewhere. Only one display is shown at a time: a run
    beside it, in another thread or inside a callback, is silent.
    """
    given: Any = progress
    if given not in (True, False, None):
        raise BadInput(f"'progress' must be True, False or None. Got {shown(given)}.")
    show = None if progress is False else _chosen(progress, runs)
    if show is None or not _showing.acquire(blocking=False):
        yield ()
        return
    try:
        yield (show,)
    finally:
        try:
            show.close()
        finally:
            _showing.release()


def _chosen(progress: bool | None, runs: int) -> Show | None:
    if in_notebook():
        return Cell(runs)
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if console.is_interactive and console.file.isatty():  # colours alone may be forced anywhere
        return Bars(runs, console)
    return Lines(runs, console) if progress else None


def in_notebook() -> bool:
    """Return whether a notebook's kernel runs this program; where IPython was never imported, none does."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find is not None and getattr(find(), "kernel", None) is not None


@dataclass
class Line:
    """What is shown of one run."""

    label: str
    total: int  # rounds
    done: int
    begun: float
    first: int  # the rounds that were done when it began
    seconds: float | None = None  # simulated ones after which it ends, if that comes before the last round
    clock: float = 0.0
    before: float = 0.0  # the part that was done when it began
    status: str = ""
    score: str = ""
    ended: bool = False
    failed: bool = False  # ended early, by an error or by Ctrl-C
    drawn: Any = None  # where, or when and at which round, by the kind of display

    @property
    def part(self) -> float:
        """What is done, from 0 to 1: of the rounds or of the simulated time, whichever ends first."""
        by_time = self.clock / self.seconds if self.seconds else 0.0
        return min(max(self.done / max(self.total, 1), by_time), 1.0)

    @property
    def share(self) -> float:
        """What is done, from 0 to 1, of what was left when it began."""
        return 1.0 if self.ended or self.before == 1 else (self.part - self.before) / (1 - self.before)

    @property
    def rounds(self) -> str:
        """The rounds, of how many unless the time is likely to end it before."""
        return f"{self.done} rounds" if self.seconds else f"{self.done}/{self.total} rounds"


class Show(Callback):
    """Keeps a line for each run: rounds done, score, simulated seconds. How it is drawn is up to each display."""

    def __init__(self, runs: int):
        self._runs, self._numbers, self._lines = runs, count(1), dict[Running, Line]()
        self._refusals = Refusals(self.say)

    def begin(self, run: Running) -> None:
        """Begin a line for a run; the first one also says where it trains."""
        number, done = next(self._numbers), run.rounds_done
        if number == 1 and not done:  # a run that is continued says where it began
            self.say(f"device: {run.manifest['device']}")
        if done:
            why = ended_early(run.past, vars(run.experiment), run.manifest.get("task"))
            what = f"ended after round {done}, because {ENDED[why]}" if why else f"continuing after round {done}"
            self.say(f"{run.label}: {what}{'' if why else f' of {run.experiment.rounds}'}")
        label = f"[{number}/{self._runs}] {run.label}" if self._runs > 1 else run.name
        line = Line(label, run.experiment.rounds, done, time.monotonic(), done, run.experiment.stop_after)
        line.clock = float(run.past["clock"][-1]) if done and line.seconds else 0.0
        line.before = line.part
        self._lines[run] = line
        self.draw(line)

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Bring the line of a run up to date."""
        line = self._lines[run]
        score, held_out = score_of(row, run.experiment.task), "validation " if run.experiment.validation else ""
        line.done, line.score = row["round"], f"{held_out}{score}" if score else line.score
        line.clock = float(row["clock"])
        line.status = f"{line.score}  clock {line.clock:.4g}{f'/{line.seconds:g}' if line.seconds else ''} s"
        self.draw(line)
        self._refusals.round(run, row, state)

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Draw the line of a run for the last time."""
        line = self._lines[run]
        line.ended, line.failed = True, error is not None
        self.draw(line)
        self._refusals.end(run, result, error)

    def say(self, text: str) -> None:
        """Show a line of text."""

    def draw(self, line: Line) -> None:
        """Show a line that is new or has changed."""

    def close(self) -> None:
        """End the display."""


class Lines(Show):
    """Plain lines on the error stream, now and then."""

    def __init__(self, runs: int, console: Console):
        super().__init__(runs)
        self._console = console

    def say(self, text: str) -> None:
        """Print it."""
        self._console.print(text, soft_wrap=True)

    def draw(self, line: Line) -> None:
        """Print the line if the last one is long ago, and the last one of a run."""
        when, done = line.drawn or (line.begun, line.first)
        due = line.ended or line.done == line.total or time.monotonic() - when > LINE_SECONDS
        if due and line.done > done:
            line.drawn = (time.monotonic(), line.done)
            self.say(f"{line.label}  round {line.rounds.removesuffix(' rounds')}  {line.status}")


class Bars(Show):
    """Bars on a terminal: one for each run that trains, and one for all; runs that have ended are lines above them."""

    def __init__(self, runs: int, console: Console):
        super().__init__(runs)
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # a file gets what is printed, as ever
        )
        self._all = self._bars.add_task("all runs", total=runs, status="", visible=runs > 1)

    def say(self, text: str) -> None:
        """Print it above the bars."""
        self._console.print(text, soft_wrap=True)

    def draw(self, line: Line) -> None:
        """Move the bar of a run, and that of all."""
        self._bars.start()  # now that there is something to show; does nothing the second time
        status = f"{line.rounds}  {line.status}"
        if line.drawn is None:
            line.drawn = self._bars.add_task(line.label, total=1.0, status=status)
        self._bars.update(line.drawn, completed=line.part, status=status)
        if self._runs == 1:
            return
        lines = list(self._lines.values())
        status = f"{sum(one.ended for one in lines)}/{self._runs} runs"
        self._bars.update(self._all, completed=sum(one.share for one in lines), status=status)
        if line.ended:
            self._bars.remove_task(line.drawn)
            self.say(f"{line.label:<24} {line.rounds}  {line.status}")

    def close(self) -> None:
        """Leave the bars as they are."""
        self._bars.stop()


class Cell(Show):
    """A table in the output of a notebook's cell: the runs that train, and in the end one line for all of them."""

    def __init__(self, runs: int):
        super().__init__(runs)
        self._id, self._lock, self._begun = f"fedweave-{uuid4().hex}", Lock(), time.monotonic()
        self._when: float | None = None  # of the last update
        self._note = ""

    def say(self, text: str) -> None:
        """Show it below the table, in place of what was said before."""
        self._note = text

    def draw(self, line: Line) -> None:
        """Update the cell if the last time is long enough ago."""
        if self._when is None or time.monotonic() - self._when > CELL_SECONDS:
            self._publish(self._table())

    def close(self) -> None:
        """Leave the finished bar, or one line for several runs."""
        if self._when is not None:
            self._publish(self._table(ended=True))

    def _publish(self, rows: Sequence[tuple[str, float, float, str]]) -> None:
        body = "".join(
            f'<tr><td style="{CELL}">{escape(name)}</td>'
            f'<td style="{CELL}"><progress value="{done:g}" max="{total:g}"></progress></td>'
            f'<td style="{CELL}">{escape(text.replace("  ", " · "))}</td></tr>'
            for name, done, total, text in rows
        )
        note = f'<div style="{FAINT}">{escape(self._note)}</div>' if self._note else ""
        content = {
            "text/html": f'<div><table style="{TABLE}">{body}</table>{note}</div>',
            "text/plain": "\n".join(f"{name}  {text}" for name, _, _, text in rows),
        }
        with self._lock:
            first, self._when = self._when is None, time.monotonic()
            import_module("IPython.display").display(content, raw=True, display_id=self._id, update=not first)

    def _table(self, ended: bool = False) -> list[tuple[str, float, float, str]]:
        """Return what is shown, as (name, done, total, text)."""
        lines, now = list(self._lines.values()), time.monotonic()
        several = self._runs > 1
        rows = [_cells(line, now) for line in lines if not several or line.failed or not (ended or line.ended)]
        if several:
            done = sum(line.ended and not line.failed for line in lines)
            rows.append(("all runs", done, self._runs, f"{done}/{self._runs} runs  took {_span(now - self._begun)}"))
        return rows


def _cells(line: Line, now: float) -> tuple[str, float, float, str]:
    passed, share = now - line.begun, line.share
    left = "" if line.ended or not share else f", {_span(passed / share * (1 - share))} left"
    text = f"{line.rounds}  {line.status}  took {_span(passed)}{left}"
    return line.label, line.part, 1.0, text


def _span(seconds: float) -> str:
    """Return a duration as 0.7 s, 17 s, 1:05 or 2:00:07."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60
    if not minutes:
        return f"{whole} s"
    return f"{hours}:{minutes % 60:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
