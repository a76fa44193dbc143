"""Independent runs on all cores, with progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from threading import Thread
from typing import Any, TypeVar

PROCESSES = -1  # as many as there are cores
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")
Progress = Callable[[int, int], None]  # called with the number of finished runs and the total


def run_as_ready(
    work: Callable[..., Found], calls: Iterable[tuple[Key, tuple[Any, ...]]]
) -> Iterator[tuple[Key, Found]]:
    """Yield ``work(*call)`` of every call with its key, in whatever order they finish; calls are taken as needed."""
    from joblib import Parallel, delayed

    jobs = (delayed(_keyed)(work, key, call, os.getpid()) for key, call in calls)
    # max_nbytes: send large arrays instead of mapping them read-only, about which torch warns in every process
    results: Any = Parallel(PROCESSES, return_as="generator_unordered", max_nbytes=None, pre_dispatch="n_jobs")(jobs)
    yield from results


def _keyed(work: Callable[..., Found], key: Key, call: tuple[Any, ...], parent: int) -> tuple[Key, Found]:
    if os.getpid() != parent:
        _end_with(parent)
    return key, work(*call)


@cache
def _end_with(parent: int) -> None:
    """End this worker when the main process is gone; joblib's would work on, and then wait for five minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
