"""Find run folders: those named, those of comparisons and sweeps, and those in folders that contain such."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.core.settings import BadInput
from fedweave.store.contents import Plan
from fedweave.tables.files import read_json, shown_path

MOST_RUNS = 2000  # that are listed
MOST_FOLDERS = 20_000  # that are looked into
DEPTH = 5  # levels of folders below those named
MOST_BYTES = 2**28  # of a JSON file; more is no run's


class Place(NamedTuple):
    """Where a run is, or will be."""

    folder: Path
    name: str  # as the page shows it: below the folder that was named
    planned: Mapping[str, Any] | None = None  # the settings of a run that has not begun
    problem: str | None = None  # why nothing can be read of it


Stamp = tuple[int, ...] | None


def stamp(path: Path) -> Stamp:
    """Return what changes when a file does; None without a file."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size


def bounded_json(path: Path, kind: Any) -> Any:
    """Return the content of a JSON file of a run folder; refuse one that no run has."""
    found = stamp(path)
    if found and found[-1] > MOST_BYTES:
        raise BadInput(f"{shown_path(path)} cannot be read: it has {found[-1]:,} bytes.")
    return read_json(path, kind)


class Finder:
    """Finds the runs below folders, again and again; a plan is read again when it has changed."""

    def __init__(self, roots: Sequence[Path]):
        self._roots = list({os.path.realpath(root): root for root in roots}.values())
        self._plans: dict[Path, tuple[Stamp, Mapping[str, Any] | BadInput]] = {}
        self._looked = 0

    def __call__(self) -> tuple[list[Place], bool]:
        """Return the runs, and whether there are more than are listed."""
        self._looked, found = 0, dict[str, Place]()
        before, self._plans = self._plans, {}
        for root in self._roots:
            for place in self._below(root, root, DEPTH, before):
                found.setdefault(os.path.realpath(place.folder), place)
                if len(found) > MOST_RUNS:
                    return list(found.values())[:MOST_RUNS], True
        return list(found.values()), self._looked > MOST_FOLDERS

    def _below(self, folder: Path, root: Path, depth: int, known: Mapping[Path, Any]) -> Iterator[Place]:
        self._looked += 1
        if self._looked > MOST_FOLDERS:
            return
        if os.path.lexists(folder / "run.sqlite") or os.path.lexists(folder / "experiment.json"):
            yield Place(folder, self._name(folder, root))
            return
        planned: set[str] = set()
        if os.path.lexists(folder / "compare.json"):
            plan = self._plan(folder / "compare.json", known)
            if isinstance(plan, BadInput):
                yield Place(folder, self._name(folder, root), problem=str(plan))
            else:
                planned = set(plan)
                for name, experiment in plan.items():
                    begun = os.path.lexists(folder / name / "run.sqlite") and not (folder / name).is_symlink()
                    yield Place(folder / name, self._name(folder / name, root), None if begun else experiment)
        if depth:
            for inner in _folders(folder):
                if inner not in planned:
                    yield from self._below(folder / inner, root, depth - 1, known)

    def _name(self, folder: Path, root: Path) -> str:
        """Return a run's name: its path below the folder that was named, which comes first if there are several."""
        above = () if len(self._roots) == 1 and folder != root else (root.absolute().name,)
        return "/".join((*above, *folder.relative_to(root).parts))

    def _plan(self, path: Path, known: Mapping[Path, Any]) -> Mapping[str, Any] | BadInput:
        """Return the settings of the planned runs by their names."""
        now = stamp(path)
        if path not in known or known[path][0] != now:
            try:
                runs = bounded_json(path, Plan)["runs"]
                plan = {n: {"method": {"name": e["method"]["name"]}, **_short(e)} for n, e in runs.items()}
            except BadInput as e:
                plan = e
            self._plans[path] = now, plan
        else:
            self._plans[path] = known[path]
        return self._plans[path][1]


def _short(experiment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: experiment.get(key) for key in ("seed", "rounds", "data")}


def _folders(folder: Path) -> list[str]:
    """Return the folders in a folder, without hidden ones (a run that is being created) and links."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
    except OSError:
        return []
