"""The folder of a comparison or sweep: its plan, compare.json, and the folders of its runs."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from fedweave.core.paths import check_name
from fedweave.core.settings import BadInput
from fedweave.store.contents import Plan
from fedweave.store.run_folder import RunFolder
from fedweave.tables.files import read_json, shown_path

BEST = "best"  # folder inside a sweep's, in which the best point of every method is tested


def runs_in(folder: str | Path) -> list[Path]:
    """Return the run folders of a comparison, with those of a sweep's best points, or the run folder itself."""
    folder = Path(folder)
    if not is_comparison(folder):
        return [folder]
    plan, best = planned(folder), run_inside(folder, BEST)
    runs = [run_inside(folder, name) for name in plan["runs"]]
    return runs + runs_in(best) if plan.get("points") is not None and is_comparison(best) else runs


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison, which may be a sweep."""
    return os.path.lexists(folder / "compare.json")


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return is_comparison(folder) and planned(folder).get("points") is not None


def run_inside(folder: Path, name: str) -> Path:
    """Return the folder of a run of a comparison; refuse a link, which may lead anywhere."""
    place = folder / check_name(name)
    if place.is_symlink():
        raise BadInput(f"{shown_path(place)} is a link: name the folder that it leads to.")
    return place


def planned(folder: Path) -> dict[str, Any]:
    """Return what the plan of a comparison says, as it was checked when it was read."""
    return read_json(folder / "compare.json", Plan)


def begun_in(folder: str | Path) -> list[Path]:
    """Return the runs that can be read: of an interrupted comparison, those with a finished round."""
    folder, runs = Path(folder), runs_in(folder)
    if not is_comparison(folder):
        return runs
    if not (begun := [run for run in runs if finished_rounds(run)]):
        raise BadInput(f"{shown_path(folder)} has no finished round yet. `fedweave resume {folder}` continues it.")
    return begun


def finished_rounds(run: Path) -> int:
    """Return how many rounds of a run are finished; a state whose file alone was written does not count."""
    if not os.path.isdir(run) or not os.listdir(run):
        return 0
    with closing(RunFolder.open(run, write=False)) as store:
        return store.last_round()


def refuse_alone(folder: Path, rounds: int) -> None:
    """Refuse another length for a part of a comparison or sweep: the rest of it would not fit any more."""
    part = folder.resolve()
    whole = part.parent
    runs = planned(whole)["runs"] if is_comparison(whole) else {}
    if part.name not in runs and not (part.name == BEST and is_sweep(whole)):
        return
    if part.name in runs and runs[part.name]["rounds"] == rounds:  # as all of them have, or will have
        return
    if whole.name == BEST and is_sweep(whole.parent):
        whole = whole.parent
    whole = whole if folder.is_absolute() else Path(os.path.relpath(whole))  # as the user names folders
    if is_sweep(whole):
        what, way = f"part of the sweep {shown_path(whole)}, which cannot be extended", "To"
    else:
        what = f"a run of the comparison {shown_path(whole)}, whose runs are equally long"
        way = f"`fedweave resume {whole} --rounds {rounds}` extends all of them; to"
    raise BadInput(f"{shown_path(folder)} is {what}. {way} extend it alone, copy its folder and resume the copy.")
