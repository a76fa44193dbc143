"""Several methods on the same data, worlds and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput, shown
from fedweave.data import load
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.pool.ray import RayActors
from fedweave.method import Method
from fedweave.runs import method_names
from fedweave.runs.callbacks import Callback, Callbacks, Running, callbacks_of
from fedweave.runs.experiment import Experiment, check_experiment
from fedweave.runs.extend import refuse_another_plan, with_length, with_seeds
from fedweave.runs.folders import BEST, finished_rounds, is_comparison, is_sweep, planned, run_inside
from fedweave.runs.loop import Interrupted, load_result, resume_with, run_with, workers_of
from fedweave.runs.plain import from_plain, to_plain
from fedweave.runs.progress import shown_progress
from fedweave.runs.results import Result, flat, frame_of, may_end_early
from fedweave.runs.same_run import different, refuse_another
from fedweave.runs.session import prepare
from fedweave.runs.spread import spread
from fedweave.store.run_folder import RunFolder, refuse_used
from fedweave.tables.files import writable, write_file

Point = Mapping[str, Any]  # the swept fields of a run by their paths, as they are shown
Points = Mapping[str, Point]  # of all runs of a sweep, by name
Work = Callable[[str, Experiment, Sequence[Callback], Pool], Result]


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same data, worlds and seeds.

    ``summary`` has a dictionary for each ``method``: means over its ``seeds``, each with a sample standard deviation
    (``value_std`` and so on; None with one seed).

    At the end: ``value`` of the task's ``metric`` and its ``best`` (``higher_is_better`` says which direction that is);
    ``accuracy``, ``best_accuracy``, ``loss``, ``objective``; over clients ``client_mean``, ``client_std``,
    ``client_worst``, ``client_worst_decile``, and who ``worst_client`` is. Of the whole run: ``simulated_seconds``,
    ``bytes_up``, ``bytes_down``, ``wall_seconds``.

    With a ``target``: ``reached`` by so many seeds (``reached_of`` as text), and over these ``rounds_to_target``,
    ``seconds_to_target``, ``bytes_to_target`` (upload) and ``total_bytes_to_target``. ``time_ratio`` is simulated time
    over that of ``baseline``, fedavg or else the first method; ``note`` says why there is none.

    ``paired`` is the difference to the first method seed by seed: ``difference`` with the 95 % interval ``low`` to
    ``high``, ``verdict``, ``margin``, ``detectable``. ``paired_clients`` is the same for the worst tenth of the
    clients, ``paired_costs`` for each cost to the target. ``by_seed`` has the single values.

    What to look at: runs that ``diverged``, ``stalled``, are ``unfinished``, ``ended_early`` as asked or were ``short``
    (all rounds were done before ``stop_after``), of ``rounds_min`` to ``rounds_max`` rounds, ``abandoned`` of
    ``abandoned_of`` in all, ``refused_rounds``; ``best_round`` of a single run, and whether it was ``calibrated`` or
    used a ``validation`` split.
    """

    results: Sequence[Result]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One dictionary per method, with the keys above."""
        from fedweave.report import compare_rows

        return compare_rows(self.results)

    @property
    def table(self) -> list[dict[str, Any]]:
        """The ``summary`` with plain values alone: ``paired_low`` is the ``low`` of ``paired``."""
        rows = ({k: v for k, v in row.items() if k != "by_seed"} for row in self.summary)
        return [flat({k: v for k, v in row.items() if v is not None or "paired" not in k}) for row in rows]

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

    def __str__(self) -> str:
        from fedweave.report import as_text, comparison_tables

        return as_text(comparison_tables(self.results)) if self.results else repr(self)

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

    An interrupted comparison continues when this is called again with the same arguments and ``out``. Ctrl-C raises
    ``Interrupted``, whose ``result`` is a Comparison of the runs that have a finished round. On a Ray cluster
    ``at_once`` runs train at the same time, each in a thread that also calls ``callbacks``; None: one per CPU.
    ``progress`` as for ``run``.
    """
    check_experiment(experiment)
    zoo, numbers = methods_of(methods), seeds_of(experiment, seeds)
    # seed after seed: for one seed every method meets the same clients and world
    runs = {f"{m.name}-seed{seed}": replace(experiment, method=m, seed=seed) for seed in numbers for m in zoo}
    heard, at_once, runs = callbacks_of(callbacks), check_at_once(at_once), with_data(runs)
    folder = Path(out) if out else None
    with shown_progress(progress, count_left(folder, runs)) as bar, workers_of(experiment) as workers:
        return compared(Together((*bar, *heard), command, at_once).do(runs, folder, workers))


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
    """Return how many runs may train at the same time on a Ray cluster."""
    if given is not None and (not isinstance(given, int) or given < 1):
        raise BadInput(f"'at_once' must be a whole number of at least 1, or None. Got {shown(given)}.")
    return given


def with_data(runs: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Return the runs with their data in memory, each data set read once."""
    named = {e.data: e for e in runs.values() if isinstance(e.data, str)}
    loaded = {name: load(name) for name in named}
    return {n: replace(e, data=loaded[e.data]) if isinstance(e.data, str) else e for n, e in runs.items()}


def compared(results: Mapping[str, Result]) -> Comparison:
    """Return the comparison of these runs."""
    return Comparison(list(results.values()))


class Kept(Callback):
    """Keeps what the runs of a comparison came to, however they ended."""

    def __init__(self, runs: Mapping[str, Experiment]):
        self._names = {id(experiment): name for name, experiment in runs.items()}
        self._found = dict[str, Result | None].fromkeys(runs)

    def end(self, run: Running, result: Result, error: BaseException | None) -> None:
        """Keep the result of a run."""
        self._found[self._names[id(run.experiment)]] = result

    def so_far(self, folder: Path | None) -> dict[str, Result]:
        """Return the runs that have a finished round; those that are only in the folder are read."""
        for name in [name for name, result in self._found.items() if result is None]:
            with suppress(BadInput):  # a damaged one is told when it is continued
                if folder and finished_rounds(place := run_inside(folder, name)):
                    self._found[name] = load_result(place)
        return {name: result for name, result in self._found.items() if result and result.summary["rounds"]}


@dataclass(frozen=True)
class Together:
    """How several runs are done: callbacks, command, how many at the same time, and what they make."""

    callbacks: Sequence[Callback]
    command: str | None
    at_once: int | None = None
    made: Callable[[Mapping[str, Result]], Comparison] = compared  # of those that are there when Ctrl-C comes

    def do(
        self, runs: Mapping[str, Experiment], folder: Path | None, workers: Pool, points: Points | None = None
    ) -> dict[str, Result]:
        """Return the results of all runs; with a folder they are kept there, and continued if they have begun."""
        if folder is None:
            self._try(runs, workers, points)
            return self._spread(self._run, runs, None, workers)
        plan = {"runs": {name: to_plain(e) for name, e in runs.items()}, "points": points}
        if is_comparison(folder):
            there, asked = planned(folder), json.loads(json.dumps(plan))
            if different({key: there.get(key) for key in plan}, asked):
                refuse_another_plan(folder, there, asked)
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

    def go_on(self, runs: Mapping[str, Experiment], folder: Path, workers: Pool) -> dict[str, Result]:
        """Return the results of runs that were planned: those that are complete are only read."""
        left = unfinished(folder, runs)
        if left and isinstance(workers, RayActors) and not workers.joined:
            prepare(left[0], workers)  # joins the cluster if there is anything to train
        return self._spread(partial(self._finish, folder), runs, folder, workers)

    def _spread(
        self, work: Work, runs: Mapping[str, Experiment], folder: Path | None, workers: Pool
    ) -> dict[str, Result]:
        """Return what ``work`` makes of every run; Ctrl-C raises what they came to by then."""
        kept = Kept(runs)

        def one(name: str, own: Pool) -> Result:
            return work(name, runs[name], (*self.callbacks, kept), own)

        try:
            return dict(zip(runs, spread(one, list(runs), workers, self.at_once), strict=True))
        except KeyboardInterrupt as stopped:  # what can be continued is the whole comparison
            raise Interrupted(folder, getattr(stopped, "round", 0), self.made(kept.so_far(folder))) from None

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

    def _run(self, name: str, experiment: Experiment, callbacks: Sequence[Callback], workers: Pool) -> Result:
        return run_with(experiment, None, callbacks, self.command, workers)

    def _finish(
        self, folder: Path, name: str, experiment: Experiment, callbacks: Sequence[Callback], workers: Pool
    ) -> Result:
        place = run_inside(folder, name)
        if (place / "run.sqlite").exists():
            with closing(RunFolder.open(place)) as store:
                stored = store.experiment  # the plan may have given it another length
                refuse_another(stored, replace(experiment, rounds=stored["rounds"]))
                result = resume_with(store, experiment, callbacks, workers)
        else:
            result = run_with(experiment, place, callbacks, self.command, workers)
        crash_point("compare: run finished")
        return result


def resume_comparison(
    folder: str | Path,
    callbacks: Callbacks = (),
    trust: bool = False,
    rounds: int | None = None,
    progress: bool | None = None,
    seeds: int | None = None,
) -> Comparison:
    """Finish an interrupted comparison or sweep: complete runs are only read; ``trust`` as for ``resume``.

    ``rounds`` gives all runs of a comparison another length, and ``seeds`` a comparison more seeds: it becomes what one
    with so many would have been, bit for bit.
    """
    folder, heard = Path(folder), callbacks_of(callbacks)
    if not is_comparison(folder) and (folder / "run.sqlite").exists():
        raise BadInput(f"{str(folder)!r} holds a single run: `fedweave.resume` continues it.")
    plan = planned(folder)
    runs = {name: from_plain(plain, trust) for name, plain in plan["runs"].items()}
    if rounds is not None:
        runs, plan = with_length(folder, runs, plan, rounds)
    if seeds is not None:
        runs, plan = with_seeds(folder, runs, plan, seeds)
    runs = with_data(runs)
    with shown_progress(progress, count_left(folder, runs)) as bar, workers_of(next(iter(runs.values()))) as workers:
        together = Together((*bar, *heard), plan["command"])
        if plan.get("points") is None:
            return compared(together.go_on(runs, folder, workers))
        from fedweave.runs.sweep import finish  # which is built on this module

        return finish(runs, plan["points"], folder, together, workers)


def unfinished(folder: Path, runs: Mapping[str, Experiment]) -> list[Experiment]:
    """Return the runs of a comparison that are not there yet, or not done."""
    return [e for name, e in runs.items() if not _is_over(run_inside(folder, name), e)]


def _is_over(place: Path, experiment: Experiment) -> bool:
    """Return whether a run of a comparison has nothing left to do."""
    done = finished_rounds(place)
    may_end = done and may_end_early(vars(experiment))
    return done >= experiment.rounds or bool(may_end and load_result(place).summary["ended_early"])


def count_left(folder: Path | None, runs: Mapping[str, Experiment], swept: bool = False) -> int:
    """Return how many runs are left to do, with those of a sweep's best points, which may not be known yet."""
    begun = folder is not None and is_comparison(folder)
    left = len(unfinished(folder, runs)) if folder and begun else len(runs)
    if not (swept or (folder and is_sweep(folder))):
        return left
    tests = {f"{e.method.name}-seed{e.seed}" for e in runs.values() if e.validation}
    if folder is None or not is_comparison(folder / BEST):
        return left + len(tests)
    best, one = planned(folder / BEST)["runs"], next(iter(runs.values()))
    return left + len(unfinished(folder / BEST, {n: replace(one, rounds=e["rounds"]) for n, e in best.items()}))
