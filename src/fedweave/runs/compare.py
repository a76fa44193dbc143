"""Several methods on the same data, worlds and seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedweave.core.crash_points import crash_point
from fedweave.core.paths import check_name
from fedweave.core.settings import BadInput, shown
from fedweave.data import load
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.pool.ray import RayActors
from fedweave.method import Method
from fedweave.runs import method_names
from fedweave.runs.callbacks import Callback, Callbacks, callbacks_of
from fedweave.runs.experiment import Experiment, check_experiment
from fedweave.runs.loop import Interrupted, resume_with, run_with, workers_of
from fedweave.runs.plain import from_plain, to_plain
from fedweave.runs.results import Result, frame_of
from fedweave.runs.same_run import different, refuse_another
from fedweave.runs.session import prepare
from fedweave.runs.spread import spread
from fedweave.store.contents import Plan
from fedweave.store.run_folder import RunFolder, refuse_used, state_file
from fedweave.tables.files import read_json, shown_path, writable, write_file

Point = Mapping[str, Any]  # the swept fields of a run by their paths, as they are shown
Points = Mapping[str, Point]  # of all runs of a sweep, by name
BEST = "best"  # folder inside a sweep's, in which the best point of every method is tested


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same data, worlds and seeds."""

    results: Sequence[Result]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds, per method."""
        from fedweave.report import compare_rows

        return compare_rows(self.results)

    def report(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained HTML page."""
        from fedweave.report import write

        return write(self.results, Path(path))

    def curves(self, path: str | Path) -> Path:
        """Write the metric against rounds, simulated time and bytes as one .png, .svg or .pdf file."""
        from fedweave.report import write_curves

        return write_curves(self.results, Path(path))

    def to_pandas(self) -> Any:
        """Return the rows per round of all runs as one pandas DataFrame, with their method and seed."""
        return frame_of(self.results, [{key: run.summary[key] for key in ("method", "seed")} for run in self.results])

    def __repr__(self) -> str:
        names = dict.fromkeys(r.summary["method"] for r in self.results)
        return f"Comparison({len(self.results)} runs of {', '.join(names)})"


def compare(
    methods: Sequence[Method | str],
    experiment: Experiment,
    seeds: int = 1,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    command: str | None = None,
    at_once: int | None = None,
) -> Comparison:
    """Run every method, given itself or by name, with every seed; with ``out`` each run has its folder in there.

    An interrupted comparison goes on when it is called again with the same arguments and ``out``. On a Ray cluster
    ``at_once`` runs go on at the same time, each in a thread that also calls ``callbacks``; None: one per CPU.
    """
    check_experiment(experiment)
    zoo, numbers = methods_of(methods), seeds_of(experiment, seeds)
    # seed after seed: for one seed every method meets the same clients and world
    runs = {f"{m.name}-seed{seed}": replace(experiment, method=m, seed=seed) for seed in numbers for m in zoo}
    together = Together(callbacks_of(callbacks), command, check_at_once(at_once))
    with workers_of(experiment) as workers:
        return Comparison(together.do(with_data(runs), Path(out) if out else None, workers))


def methods_of(given: Sequence[Method | str]) -> list[Method]:
    """Return the methods of a comparison, each with a name of its own."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadInput(f"A comparison takes a list of methods, such as ['fedavg']. Got {shown(given)}.")
    if not given:
        raise BadInput("A comparison needs at least one method.")
    if wrong := [m for m in given if not isinstance(m, str | Method)]:
        raise BadInput(f"What is compared must be a Method, or the name of one. Got {shown(wrong[0])}.")
    methods = [method_names.parse(m) if isinstance(m, str) else m for m in given]
    names = [m.name for m in methods]
    twins = {n for n in names if names.count(n) > 1}
    if twins:
        raise BadInput(
            f"Two methods of a comparison are called {twins.pop()!r}. Give each its own name: in Python with "
            "dataclasses.replace(method, name=...), on the command line with a TOML file for each."
        )
    return methods


def seeds_of(experiment: Experiment, seeds: int) -> range:
    """Return so many seeds, from the experiment's own on."""
    if not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"'seeds' must be a whole number of at least 1. Got {shown(seeds)}.")
    return range(experiment.seed, experiment.seed + seeds)


def check_at_once(given: int | None) -> int | None:
    """Return how many runs may go on at the same time on a Ray cluster."""
    if given is not None and (not isinstance(given, int) or given < 1):
        raise BadInput(f"'at_once' must be a whole number of at least 1, or None. Got {shown(given)}.")
    return given


def with_data(runs: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Return the runs with their data in memory, each data set read once."""
    named = {e.data: e for e in runs.values() if isinstance(e.data, str)}
    loaded = {name: load(name) for name in named}
    return {n: replace(e, data=loaded[e.data]) if isinstance(e.data, str) else e for n, e in runs.items()}


@dataclass(frozen=True)
class Together:
    """How several runs are done: who is told, by which command, and how many at the same time."""

    callbacks: Sequence[Callback]
    command: str | None
    at_once: int | None = None

    def do(
        self, runs: Mapping[str, Experiment], folder: Path | None, workers: Pool, points: Points | None = None
    ) -> list[Result]:
        """Return the results of all runs; with a folder they are kept there, and go on if they have begun."""
        if folder is None:
            self._try(runs, workers, points)
            return spread(partial(self._run, runs), list(runs), workers, self.at_once)
        plan = {"runs": {name: to_plain(e) for name, e in runs.items()}, "points": points}
        if is_comparison(folder) and not different(
            {key: planned(folder).get(key) for key in plan}, json.loads(json.dumps(plan))
        ):
            return self.go_on(runs, folder, workers)
        refuse_used(folder, "compare.json")
        self._try(runs, workers, points)
        content = {"command": self.command, **{key: value for key, value in plan.items() if value is not None}}
        crash_point("compare: planned")
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            crash_point("compare: folder made")
            write_file(folder / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
        return self.go_on(runs, folder, workers)

    def go_on(self, runs: Mapping[str, Experiment], folder: Path, workers: Pool) -> list[Result]:
        """Return the results of runs that were planned: those that are complete are only read."""
        try:
            left = [e for name, e in runs.items() if not (run_inside(folder, name) / state_file(e.rounds)).exists()]
            if left and isinstance(workers, RayActors) and not workers.joined:
                prepare(left[0], workers)  # joins the cluster if there is anything to train
            return spread(partial(self._finish, runs, folder), list(runs), workers, self.at_once)
        except KeyboardInterrupt as stopped:  # what can be continued is the whole comparison
            raise Interrupted(folder, getattr(stopped, "round", 0)) from None

    def _try(self, runs: Mapping[str, Experiment], workers: Pool, points: Points | None) -> None:
        """Make every run ready once: misfits are errors now, all at once, before anything is trained or written."""
        problems: dict[str, str] = {}
        for name, experiment in runs.items():
            try:
                prepare(experiment, workers, self.command)
            except BadInput as e:
                for problem in e.problems:
                    problems.setdefault(problem, f"{name}: {problem}" if points else problem)
        if problems:
            raise BadInput(*problems.values())

    def _run(self, runs: Mapping[str, Experiment], name: str, workers: Pool) -> Result:
        return run_with(runs[name], None, self.callbacks, self.command, workers)

    def _finish(self, runs: Mapping[str, Experiment], folder: Path, name: str, workers: Pool) -> Result:
        place = run_inside(folder, name)
        if (place / "run.sqlite").exists():
            with closing(RunFolder.open(place)) as store:
                refuse_another(store.experiment, runs[name])
                result = resume_with(store, runs[name], self.callbacks, workers)
        else:
            result = run_with(runs[name], place, self.callbacks, self.command, workers)
        crash_point("compare: run finished")
        return result


def resume_comparison(folder: str | Path, callbacks: Callbacks = (), trust: bool = False) -> Comparison:
    """Finish an interrupted comparison or sweep: complete runs are only read; ``trust`` as for ``resume``."""
    folder, heard = Path(folder), callbacks_of(callbacks)
    plan = planned(folder)
    runs = with_data({name: from_plain(plain, trust) for name, plain in plan["runs"].items()})
    together = Together(heard, plan["command"])
    with workers_of(next(iter(runs.values()))) as workers:
        if plan.get("points") is None:
            return Comparison(together.go_on(runs, folder, workers))
        from fedweave.runs.sweep import finish  # which is built on this module

        return finish(runs, plan["points"], folder, together, workers)


def runs_in(folder: str | Path) -> list[Path]:
    """Return the run folders of a comparison, with those of a sweep's best points, or the run folder itself."""
    folder = Path(folder)
    if not is_comparison(folder):
        return [folder]
    plan, best = planned(folder), run_inside(folder, BEST)
    runs = [run_inside(folder, name) for name in plan["runs"]]
    return runs + runs_in(best) if plan.get("points") is not None and is_comparison(best) else runs


def count_runs(folder: Path) -> int:
    """Return how many runs are done in a folder, with those of a sweep's best points, which may not be known yet."""
    if not is_comparison(folder):
        return 1
    plan = planned(folder)
    runs, swept = plan["runs"].values(), plan.get("points") is not None
    return len(runs) + len({(e["method"]["name"], e["seed"]) for e in runs if swept and e.get("validation")})


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
    runs = runs_in(folder)
    return [run for run in runs if has_begun(run)] or runs


def has_begun(run: Path) -> bool:
    """Return whether a run folder has a finished round."""
    return os.path.isdir(run) and any(run.glob("state-*.safetensors"))
