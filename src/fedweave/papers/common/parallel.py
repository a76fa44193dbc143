"""Many independent runs on all cores, with word of how far it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

PROCESSES = -1  # as many as there are cores
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")
Told = Callable[[int, int], None]  # called with how many runs are done, and of how many


def together(
    work: Callable[..., Found], calls: Mapping[Key, tuple[Any, ...]], told: Told | None = None
) -> dict[Key, Found]:
    """Return ``work(*call)`` of every call, by its key."""
    from joblib import Parallel, delayed

    jobs = (delayed(_labelled)(work, n, call) for n, call in enumerate(calls.values()))
    found: dict[int, Found] = {}
    if told:
        told(0, len(calls))
    # max_nbytes: large arrays are sent, not mapped read-only, which torch warns of in every process
    done: Any = Parallel(n_jobs=PROCESSES, return_as="generator_unordered", max_nbytes=None)(jobs)
    for n, result in done:
        found[n] = result
        if told:
            told(len(found), len(calls))
    return {key: found[n] for n, key in enumerate(calls)}


def on_all_cores(work: Callable[..., Found], jobs: Sequence[tuple[Any, ...]], told: Told | None = None) -> list[Found]:
    """Return ``work(*job)`` of every job, in their order."""
    return list(together(work, dict(enumerate(jobs)), told).values())


def _labelled(work: Callable[..., Found], n: int, call: tuple[Any, ...]) -> tuple[int, Found]:
    return n, work(*call)
