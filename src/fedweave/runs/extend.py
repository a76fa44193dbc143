"""A comparison that is given more rounds or more seeds, and what is said of a folder that has another one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.runs.experiment import Experiment
from fedweave.runs.folders import is_sweep, refuse_alone, run_inside
from fedweave.runs.same_run import different, refuse_length
from fedweave.store.run_folder import RunFolder, with_rounds
from fedweave.tables.files import shown_path, writable, write_file

Runs = dict[str, Experiment]
MOST = 3  # differences that are named


def with_length(folder: Path, runs: Runs, plan: dict[str, Any], rounds: int) -> tuple[Runs, dict[str, Any]]:
    """Return the runs and the plan of a comparison with another length; each is extended when its turn comes."""
    if plan.get("points") is not None:
        raise BadInput(
            "A sweep cannot be extended, because other points may be best after more rounds. Start a new one."
        )
    refuse_alone(folder, rounds)
    runs = {name: replace(e, rounds=rounds) for name, e in runs.items()}
    for name, e in runs.items():
        stored, done, place = plan["runs"][name], 0, run_inside(folder, name)
        if (place / "run.sqlite").exists():
            with closing(RunFolder.open(place, write=False)) as store:
                state, stored = store.load_state(tables=None), store.experiment
                done = state.round if state else 0
        refuse_length(stored, e, done)
    longer = {name: plain | {"rounds": rounds} for name, plain in plan["runs"].items()}
    return runs, _written(folder, {**plan, "command": with_rounds(plan["command"], rounds), "runs": longer})


def with_seeds(folder: Path, runs: Runs, plan: dict[str, Any], seeds: int) -> tuple[Runs, dict[str, Any]]:
    """Return the runs and the plan of a comparison with so many seeds, as if it had begun with them."""
    if plan.get("points") is not None or is_sweep(folder.resolve().parent):
        raise BadInput(
            "A sweep cannot be given more seeds, because another point may be best over them. Start a new one."
        )
    first = next(iter(runs.values())).seed
    there = len({e.seed for e in runs.values()})
    if not isinstance(seeds, int) or seeds < there:
        rule = f"a whole number of at least {there}"
        raise BadInput(f"This comparison has {there} seeds, so 'seeds' must be {rule}. Got {seeds!r}.")
    models = {name.removesuffix(f"-seed{first}"): name for name, e in runs.items() if e.seed == first}
    names = {
        f"{stem}-seed{seed}": (name, seed) for seed in range(first, first + seeds) for stem, name in models.items()
    }
    plain = {new: plan["runs"][name] | {"seed": seed} for new, (name, seed) in names.items()}
    runs = {new: replace(runs[name], seed=seed) for new, (name, seed) in names.items()}
    command = plan["command"]
    if isinstance(command, str) and command.startswith("fedweave compare "):
        command = re.sub(r" --seeds[ =]\S+", "", command) + f" --seeds {seeds}"
    return runs, _written(folder, {**plan, "command": command, "runs": plain})


def _written(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    crash_point("compare: extending")
    with writable(folder):
        write_file(folder / "compare.json", (json.dumps(plan, indent=1) + "\n").encode())
    return plan


def refuse_another_plan(folder: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse to continue a comparison with other runs, and say in what they differ."""
    old, new = there["runs"], asked["runs"]
    found = list[str]()
    for what, of in (("methods", lambda run: run["method"]["name"]), ("seeds", lambda run: run["seed"])):
        before, now = (len({of(run) for run in runs.values()}) for runs in (old, new))
        if before != now:
            found.append(f"{what} ({before} there, {now} asked)")
    fields = [phrase for name in old if name in new for phrase in different(old[name], new[name])]
    found += list(dict.fromkeys(fields))[:MOST] or ([] if found else ["its runs"])
    more = len({run["seed"] for run in new.values()})
    only = set(old) < set(new) and not fields and len(found) == 1 and there.get("points") is None
    swept, kinds = [plan.get("points") is not None for plan in (there, asked)], ("comparison", "sweep")
    what = f"{'another' if swept[0] == swept[1] else 'a'} {kinds[swept[0]]}"
    way = f"resume {folder} --seeds {more}` adds the seeds" if only else f"resume {folder}` continues that one"
    raise BadInput(
        f"The folder {shown_path(folder)} holds {what}, which differs in {'; '.join(found)}. "
        f"`fedweave {way}; for a new one choose another --out."
    )
