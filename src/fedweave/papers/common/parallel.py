"""Independent runs on all cores, with progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from threading import Thread
from typing import Any, TypeVar

PROCESSES = -1  # as many as there are cores
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")
Progress = Callable[[int, int], None]  # called with the number of finished runs and the total


def run_by_key(
    work: Callable[..., Found], calls: Mapping[Key, tuple[Any, ...]], on_progress: Progress | None = None
) -> dict[Key, Found]:
    """Return ``work(*call)`` of every call, by its key."""
    found: dict[Key, Found] = {}
    if on_progress:
        on_progress(0, len(calls))
    for key, result in run_as_ready(work, calls.items()):
        found[key] = result
        if on_progress:
            on_progress(len(found), len(calls))
    return {key: found[key] for key in calls}


def run_as_ready(
    work: Callable[..., Found], calls: Iterable[tuple[Key, tuple[Any, ...]]]
) -> Iterator[tuple[Key, Found]]:
    """Yield ``work(*call)`` of every call with its key, in whatever order they finish; calls are taken as needed."""
    from joblib import Parallel, delayed

    jobs = (delayed(_keyed)(work, key, call, os.getpid()) for key, call in calls)
    # max_nbytes: send large arrays instead of mapping them read-only, about which torch warns in every process
    results: Any = Parallel(n_jobs=PROCESSES, return_as="generator_unordered", max_nbytes=None)(jobs)
    yield from results


def run_in_order(
    work: Callable[..., Found], jobs: Sequence[tuple[Any, ...]], on_progress: Progress | None = None
) -> list[Found]:
    """Return ``work(*job)`` of every job, in their order."""
    return list(run_by_key(work, dict(enumerate(jobs)), on_progress).values())


def run_seeds(
    work: Callable[[Any], Found], experiments: Mapping[Key, Any], seeds: int, on_progress: Progress | None
) -> dict[Key, list[Found]]:
    """Return ``work(experiment)`` for every experiment and seed; one seed has the same clients and world for all."""
    calls = {(key, seed): (replace(e, seed=seed),) for seed in range(seeds) for key, e in experiments.items()}
    found = run_by_key(work, calls, on_progress)
    return {key: [found[key, seed] for seed in range(seeds)] for key in experiments}


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
