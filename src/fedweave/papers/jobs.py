"""Many independent pieces of work on all cores, with a sign of life on the error stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_SECONDS = 10.0
PROCESSES = -1  # as many as there are cores


def on_all_cores(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], what: str) -> list[Any]:
    """Return ``work(*job)`` for every job, in their order; each runs in a process with one thread."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    done: list[Any] = [None] * len(jobs)
    last = begin = time.monotonic()
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=len(jobs))
        pool: Any = Parallel(n_jobs=PROCESSES, return_as="generator_unordered")
        found: Iterable[Any] = pool(delayed(_numbered)(i, work, job) for i, job in enumerate(jobs))
        for count, (i, result) in enumerate(found, 1):
            done[i] = result
            bar.advance(task)
            now = time.monotonic()
            if not console.is_terminal and (now - last > LINE_SECONDS or count == len(jobs)):
                last = now
                console.print(f"{what}: {count}/{len(jobs)} after {now - begin:.0f} s", highlight=False, soft_wrap=True)
    return done


def _numbered(i: int, work: Callable[..., Any], job: tuple[Any, ...]) -> tuple[int, Any]:
    return i, work(*job)
