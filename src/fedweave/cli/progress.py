"""Progress of many small runs on the error stream: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedweave.runs.progress import LINE_SECONDS


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
