"""All runs of a page: found, read again when they change, with a bounded number of curves kept at hand."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedweave.core.settings import BadInput
from fedweave.watch.find import Finder
from fedweave.watch.follow import Curve, Takers
from fedweave.watch.read import Row, Run, opened

SECONDS = 1.0  # least time between two looks at the folders
KEPT_CURVES, KEPT_TAKERS = 96, 32  # beyond these the one that was not asked for the longest is read again

Kept = TypeVar("Kept", Curve, Takers)


class Recent(Generic[Kept]):
    """Keeps the most recently used entries."""

    def __init__(self, most: int):
        self._most, self._entries = most, OrderedDict[tuple[str, ...], Kept]()

    def get(self, key: tuple[str, ...], make: Callable[[], Kept]) -> Kept:
        """Return the entry of a key; make it if it is not there."""
        found = self._entries.pop(key) if key in self._entries else make()
        self._entries[key] = found
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return found

    def drop(self, key: tuple[str, ...]) -> None:
        """Forget an entry, if it is there."""
        self._entries.pop(key, None)


class Catalog:
    """The runs below some folders; may be used by several threads."""

    def __init__(self, roots: Sequence[Path], seconds: float = SECONDS):
        self._find, self._seconds, self._lock = Finder(roots), seconds, threading.Lock()
        self._runs: dict[str, Run] = {}
        self._version, self._looked, self._more = 0, -seconds, False
        self._curves, self._takers = Recent[Curve](KEPT_CURVES), Recent[Takers](KEPT_TAKERS)

    def changes(self, seen: Mapping[str, int]) -> tuple[list[Row], dict[str, int], bool]:
        """Return the rows that differ from those seen, all versions now, and whether the list is cut short."""
        with self._lock:
            self._refresh()
            now = {key: run.version for key, run in self._runs.items()}
            rows = [
                run.row | {"version": run.version} for key, run in self._runs.items() if seen.get(key) != run.version
            ]
            return rows, now, self._more

    def _refresh(self) -> None:
        if time.monotonic() - self._looked < self._seconds:
            return
        places, self._more = self._find()
        before, self._runs = {run.place.folder: run for run in self._runs.values()}, {}
        for place in places:
            run = before.get(place.folder) or Run(place)
            run.place = place
            self._runs[run.key] = run
            if run.refresh():
                self._version += 1
                run.version = self._version
        self._looked = time.monotonic()

    def curves(self, keys: Sequence[str], metric: str, axis: str) -> dict[str, Any]:
        """Return a metric of several runs along an axis; a run that cannot be read has a problem instead."""
        return {key: self._look(key, self._curve, metric, axis) for key in keys}

    def clients(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return how often the clients of several runs took part."""
        return {key: self._look(key, self._participation) for key in keys}

    def _look(self, key: str, read: Callable[..., dict[str, Any]], *what: str) -> dict[str, Any]:
        with self._lock:
            if (run := self._runs.get(key)) is None:
                return {"problem": "There is no such run any more."}
            if run.place.planned is not None:
                return {"problem": "This run has not begun."}
            try:
                return read(run, *what)
            except BadInput as e:
                return {"problem": str(e)}

    def _curve(self, run: Run, metric: str, axis: str) -> dict[str, Any]:
        return _followed(run, self._curves, metric, lambda: Curve(metric)).along(axis)

    def _participation(self, run: Run) -> dict[str, Any]:
        return _followed(run, self._takers, "", Takers).shares(run.clients)


def _followed(run: Run, kept: Recent[Kept], name: str, make: Callable[[], Kept]) -> Kept:
    """Return what follows a run, up to date."""
    follower = kept.get((run.key, name), make)
    try:
        with opened(run.place.folder) as db:
            follower.update(db)
    except BaseException:
        kept.drop((run.key, name))  # it may have half of what is new
        raise
    return follower
