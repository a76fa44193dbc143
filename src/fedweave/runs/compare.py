"""Several methods on the same data, worlds and seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedweave.core.crash_points import crash_point
from fedweave.core.paths import check_name
from fedweave.core.settings import BadInput, shown
from fedweave.data import Dataset
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.pool.ray import RayActors
from fedweave.method import Method
from fedweave.runs import method_names
from fedweave.runs.callbacks import Callback, Callbacks, Running, callbacks_of
from fedweave.runs.experiment import Experiment, check_experiment, load_data
from fedweave.runs.loop import Interrupted, load_result, resume_with, run_with, workers_of
from fedweave.runs.plain import from_plain, to_plain
from fedweave.runs.progress import shown_progress
from fedweave.runs.results import Result
from fedweave.runs.same_run import different, refuse_another, refuse_length
from fedweave.runs.session import prepare
from fedweave.runs.spread import spread
from fedweave.store.contents import Plan
from fedweave.store.run_folder import RunFolder, refuse_used, state_file
from fedweave.tables.files import read_json, shown_path, writable, write_file


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

    def __repr__(self) -> str:
        names = dict.fromkeys(r.summary["method"] for r in self.results)
        return f"Comparison({len(self.results)} runs of {', '.join(names)})"

    def _repr_html_(self) -> str:
        from fedweave.report import comparison_html

        return comparison_html(self.results)


def compare(
    methods: Sequence[Method | str],
    experiment: Experiment,
    seeds: int = 1,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    command: str | None = None,
    at_once: int | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run every method, given itself or by name, with every seed; with ``out`` each run has its folder in there.

    An interrupted comparison goes on when it is called again with the same arguments and ``out``; the ``result`` of the
    ``Interrupted`` that Ctrl-C raises is a Comparison of the runs that have a finished round. On a Ray cluster
    ``at_once`` runs go on at the same time, each in a thread that also calls ``callbacks``; None: one per CPU.
    ``progress`` as for ``run``.
    """
    check_experiment(experiment)
    if at_once is not None and (not isinstance(at_once, int) or at_once < 1):
        raise BadInput(f"'at_once' must be a whole number of at least 1, or None. Got {shown(at_once)}.")
    heard = callbacks_of(callbacks)
    runs = _plan(methods, replace(experiment, data=load_data(experiment)), seeds)
    left = len(unfinished(Path(out), runs) if out and is_comparison(Path(out)) else runs)
    with shown_progress(progress, left) as bar, workers_of(experiment) as workers:
        heard = (*bar, *heard)
        if out is None:
            _try(runs, workers, command)

            so_far = _SoFar(runs)

            def run_one(name: str, own: Pool) -> Result:
                return run_with(runs[name], None, [*heard, so_far], command, own)

            try:
                return Comparison(spread(run_one, list(runs), workers, at_once))
            except KeyboardInterrupt as stopped:
                raise Interrupted(None, getattr(stopped, "round", 0), so_far.comparison()) from None
        folder, plain = Path(out), {name: to_plain(e) for name, e in runs.items()}
        if is_comparison(folder) and not different(_planned(folder)["runs"], json.loads(json.dumps(plain))):
            return _continue(folder, runs, heard, command, workers, at_once)
        refuse_used(folder, "compare.json")
        _try(runs, workers, command)
        content = {"command": command, "runs": plain}
        crash_point("compare: planned")
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            crash_point("compare: folder made")
            write_file(folder / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
        return _continue(folder, runs, heard, command, workers, at_once)


def _try(runs: Mapping[str, Experiment], workers: Pool, command: str | None) -> None:
    """Make every run ready once: a misfit is an error now, before anything is trained or written."""
    for e in runs.values():
        prepare(e, workers, command)


def _plan(given: Sequence[Method | str], experiment: Experiment, seeds: int) -> dict[str, Experiment]:
    """Return the runs by name, seed after seed: for one seed every method meets the same clients and world."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadInput(f"A comparison takes a list of methods, such as ['fedavg']. Got {shown(given)}.")
    if not given:
        raise BadInput("A comparison needs at least one method.")
    if wrong := [m for m in given if not isinstance(m, str | Method)]:
        raise BadInput(f"What is compared must be a Method, or the name of one. Got {shown(wrong[0])}.")
    if not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"'seeds' must be a whole number of at least 1. Got {shown(seeds)}.")
    methods = [method_names.parse(m) if isinstance(m, str) else m for m in given]
    names = [m.name for m in methods]
    twins = {n for n in names if names.count(n) > 1}
    if twins:
        raise BadInput(
            f"Two methods of a comparison are called {twins.pop()!r}. Give each its own name: in Python with "
            "dataclasses.replace(method, name=...), on the command line with a TOML file for each."
        )
    return {
        f"{method.name}-seed{seed}": replace(experiment, method=method, seed=seed)
        for seed in range(experiment.seed, experiment.seed + seeds)
        for method in methods
    }


class _SoFar(Callback):
    """Keeps what runs came to, however they ended."""

    def __init__(self, runs: Mapping[str, Experiment]):
        self._results = dict[str, Result | None].fromkeys(runs)

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Keep a result."""
        self.add(f"{run.name}-seed{run.experiment.seed}", result)

    def add(self, name: str, result: Result) -> None:
        """Keep the result of the run of this name."""
        self._results[name] = result

    def comparison(self, folder: Path | None = None) -> Comparison:
        """Return the runs that have a finished round; those that are only in the folder are read."""
        for name in [name for name, result in self._results.items() if result is None]:
            if folder and any((place := run_inside(folder, name)).glob("state-*.safetensors")):
                with suppress(BadInput):  # of a state that was not finished
                    self.add(name, load_result(place))
        return Comparison([result for result in self._results.values() if result and result.summary["rounds"]])


def resume_comparison(
    folder: str | Path,
    callbacks: Callbacks = (),
    trust: bool = False,
    rounds: int | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Finish an interrupted comparison: runs that are complete are only read; ``trust`` as for ``resume``.

    ``rounds`` gives all of its runs another length.
    """
    heard, content = callbacks_of(callbacks), _planned(Path(folder))
    runs = {name: from_plain(plain, trust) for name, plain in content["runs"].items()}
    if rounds is not None:
        runs = {name: replace(e, rounds=rounds) for name, e in runs.items()}
        _extend(Path(folder), runs, content)
    loaded: dict[Any, Dataset] = {}
    for name, e in runs.items():  # read each data set once
        loaded[e.data] = loaded.get(e.data) or load_data(e)
        runs[name] = replace(e, data=loaded[e.data])
    left = len(unfinished(Path(folder), runs))
    with shown_progress(progress, left) as bar, workers_of(next(iter(runs.values()))) as workers:
        return _continue(Path(folder), runs, (*bar, *heard), content["command"], workers)


def _extend(folder: Path, runs: Mapping[str, Experiment], content: dict[str, Any]) -> None:
    """Plan other lengths for the runs of a comparison; each is extended when its turn comes."""
    for name, e in runs.items():
        stored, done, place = content["runs"][name], 0, run_inside(folder, name)
        if (place / "run.sqlite").exists():
            with closing(RunFolder.open(place, write=False)) as store:
                state, stored = store.load_state(tables=None), store.experiment
                done = state.round if state else 0
        refuse_length(stored, e, done)
    changed = {name: plain | {"rounds": runs[name].rounds} for name, plain in content["runs"].items()}
    crash_point("compare: extending")
    with writable(folder):
        write_file(folder / "compare.json", (json.dumps({**content, "runs": changed}, indent=1) + "\n").encode())


def _is_over(place: Path, experiment: Experiment) -> bool:
    """Return whether a run of a comparison has nothing left to do."""
    if (place / state_file(experiment.rounds)).exists():
        return True
    may = experiment.stop_at_target or experiment.patience
    return bool(may and any(place.glob("state-*.safetensors")) and load_result(place).summary["ended_early"])


def _continue(
    folder: Path,
    runs: Mapping[str, Experiment],
    callbacks: Sequence[Callback],
    command: str | None,
    workers: Pool,
    at_once: int | None = None,
) -> Comparison:
    so_far = _SoFar(runs)
    heard = [*callbacks, so_far]

    def finish(name: str, own: Pool) -> Result:
        place = run_inside(folder, name)
        if (place / "run.sqlite").exists():
            with closing(RunFolder.open(place)) as store:
                stored = store.experiment  # the plan may have given it another length
                refuse_another(stored, replace(runs[name], rounds=stored["rounds"]))
                result = resume_with(store, runs[name], heard, own)
        else:
            result = run_with(runs[name], place, heard, command, own)
        so_far.add(name, result)
        crash_point("compare: run finished")
        return result

    try:
        left = unfinished(folder, runs)
        if left and isinstance(workers, RayActors) and not workers.joined:
            prepare(left[0], workers)  # joins the cluster if there is anything to train
        return Comparison(spread(finish, list(runs), workers, at_once))
    except KeyboardInterrupt as stopped:  # what can be continued is the whole comparison
        raise Interrupted(folder, getattr(stopped, "round", 0), so_far.comparison(folder)) from None


def unfinished(folder: Path, runs: Mapping[str, Experiment]) -> list[Experiment]:
    """Return the runs of a comparison that are not there yet, or not done."""
    return [e for name, e in runs.items() if not _is_over(run_inside(folder, name), e)]


def runs_in(folder: str | Path) -> list[Path]:
    """Return the run folders of a comparison, or the run folder itself."""
    folder = Path(folder)
    return [run_inside(folder, name) for name in _planned(folder)["runs"]] if is_comparison(folder) else [folder]


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return os.path.lexists(folder / "compare.json")


def run_inside(folder: Path, name: str) -> Path:
    """Return the folder of a run of a comparison; refuse a link, which may lead anywhere."""
    place = folder / check_name(name)
    if place.is_symlink():
        raise BadInput(f"{shown_path(place)} is a link: name the folder that it leads to.")
    return place


def _planned(folder: Path) -> dict[str, Any]:
    return read_json(folder / "compare.json", Plan)


def begun_in(folder: str | Path) -> list[Path]:
    """Return the runs that can be read: of an interrupted comparison, those with a finished round."""
    runs = runs_in(folder)
    return [run for run in runs if os.path.isdir(run) and any(run.glob("state-*.safetensors"))] or runs
