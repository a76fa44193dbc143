"""Sweeps: a grid over any fields of an experiment × methods × seeds, and the best point of every method.

The best point is chosen on samples that are held out of the training data (``Dataset.split``), as `reproduce --tune`
chooses. Then it is run again, on all training data and with seeds of its own, and scored on the test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data import load
from fedweave.engine.pool.protocol import Pool
from fedweave.method import Method
from fedweave.runs.callbacks import Callbacks, callbacks_of
from fedweave.runs.compare import (
    Comparison,
    Point,
    Points,
    Together,
    check_at_once,
    compared,
    count_left,
    methods_of,
    seeds_of,
    with_data,
)
from fedweave.runs.experiment import Experiment, check_experiment, load_data
from fedweave.runs.folders import BEST, finished_rounds, is_comparison, planned, run_inside
from fedweave.runs.grid import grid_of, point_text
from fedweave.runs.loop import Interrupted, load_result, workers_of
from fedweave.runs.progress import shown_progress
from fedweave.runs.results import Result, diverged, frame_of, pandas
from fedweave.statistics import mean_over_seeds
from fedweave.tasks import default_for

VALIDATION = 0.1  # of the training samples, where nobody says


@dataclass(frozen=True)
class Sweep(Comparison):
    """Methods at the points of a grid; ``results`` are the runs of the grid.

    ``points`` has the swept fields of each result, by their paths. ``tested`` compares the best points: trained again
    on all training data, with seeds that the grid did not use, and scored on the test set. It is None where the grid
    itself was scored on the test set (``validation=0``), or while the grid is unfinished.
    """

    points: Sequence[Point]
    tested: Comparison | None = None

    @property
    def validation(self) -> float:
        """The share of the training samples that the points are judged on; 0: on the test set."""
        return (self.results[0].experiment.get("validation") or 0.0) if self.results else 0.0

    @property
    def fields(self) -> list[str]:
        """The paths of the swept fields."""
        return list(dict.fromkeys(path for point in self.points for path in point))

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row per method and point: mean and 95 % interval over the seeds of the metric at the end.

        ``mean``, ``low`` and ``high`` are None where a run has no finite value at its end, because it diverged:
        ``failed`` counts those. With one seed there is no interval. ``best`` marks the best point of the method.
        """
        rows = [_row(method, point, runs) for (method, point), runs in self._groups().items()]
        best = [_best([row for row in rows if row["method"] == method]) for method in {r["method"]: 0 for r in rows}]
        return [row | {"best": any(row is one for one in best)} for row in rows]

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The best point of every method that has one: its row of ``summary``, and how it did on the ``test`` set."""
        rows = {row["method"]: row for row in self.summary if row["best"]}
        tested = {row["method"]: row for row in _rows_of(self.tested)}
        keys = ("metric", "seeds", "mean", "low", "high", "failed", "unfinished", "ended_early")
        return {m: row | {"test": {k: tested[m][k] for k in keys} if m in tested else None} for m, row in rows.items()}

    def __str__(self) -> str:
        from fedweave.report import as_text, sweep_tables

        return as_text(sweep_tables(self)) if self.results else repr(self)

    def report(self, path: str | Path) -> Path:
        """Write the sweep as one self-contained HTML page."""
        from fedweave.report import write_sweep

        return write_sweep(self, Path(path))

    def curves(self, path: str | Path) -> Path:
        """Write the curves of the best points on the test set as one .png, .svg or .pdf file."""
        if self.tested is None:
            raise BadInput("This sweep has no curves: they show its best points on the test set, which were not run.")
        return self.tested.curves(path)

    @property
    def table(self) -> list[dict[str, Any]]:
        """The ``summary`` with plain values alone: each swept field is a column."""
        rows = ((row, {path: row["point"].get(path) for path in self.fields}) for row in self.summary)
        return [
            {"method": row["method"], **point, **{k: v for k, v in row.items() if k != "point"}} for row, point in rows
        ]

    def to_pandas(self, points: bool = False) -> Any:
        """Return the rows per round of the grid's runs as one pandas DataFrame, with method, seed and swept fields.

        With ``points`` it has a row for each method and point instead, as ``summary`` has them.
        """
        if points:
            return pandas().DataFrame(self.table)
        keys = [{k: run.summary[k] for k in ("method", "seed")} for run in self.results]
        places = [{path: point.get(path) for path in self.fields} for point in self.points]
        return frame_of(self.results, [own | point for own, point in zip(keys, places, strict=True)])

    def _groups(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], list[Result]]:
        groups: dict[tuple[str, tuple[tuple[str, Any], ...]], list[Result]] = {}
        order = {method: n for n, method in enumerate(dict.fromkeys(r.summary["method"] for r in self.results))}
        for result, point in zip(self.results, self.points, strict=True):
            groups.setdefault((result.summary["method"], tuple(point.items())), []).append(result)
        return dict(sorted(groups.items(), key=lambda group: order[group[0][0]]))

    def __repr__(self) -> str:
        best = "; ".join(f"{method} {point_text(row['point'])}" for method, row in self.best.items())
        return f"Sweep({len(self.results)} runs; best: {best or 'none'})"

    def _repr_html_(self) -> str:
        from fedweave.report import sweep_html

        return sweep_html(self)


def sweep(
    methods: Sequence[Method | str],
    experiment: Experiment,
    over: Mapping[str, Sequence[Any]],
    seeds: int = 1,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    command: str | None = None,
    at_once: int | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Run every method at every point of a grid with every seed, and test the best point of each method.

    ``over`` has lists of values by the paths of fields: ``{"lr": [0.01, 0.1], "fedprox:method.solver.mu": [0, 0.1]}``.
    Names before a colon say which methods have this axis. ``experiment.validation`` is the share of the training
    samples on which points are judged, a tenth unless given; 0 judges them on the test set. The other parameters are
    those of ``compare``: an interrupted sweep continues when this is called again with the same arguments.
    """
    return plan_sweep(methods, experiment, over, seeds).run(out, callbacks, command, at_once, progress)


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep's grid, and where each is in it."""

    runs: Mapping[str, Experiment]
    points: Points

    def run(
        self,
        out: str | Path | None,
        callbacks: Callbacks = (),
        command: str | None = None,
        at_once: int | None = None,
        progress: bool | None = None,
    ) -> Sweep:
        """Do all runs, and then those of the best points."""
        heard, at_once, folder = callbacks_of(callbacks), check_at_once(at_once), Path(out) if out else None
        first, left = next(iter(self.runs.values())), count_left(folder, self.runs, swept=True)
        with shown_progress(progress, left) as bar, workers_of(first) as workers:
            return finish(self.runs, self.points, folder, Together((*bar, *heard), command, at_once), workers)


def plan_sweep(
    methods: Sequence[Method | str], experiment: Experiment, over: Mapping[str, Sequence[Any]], seeds: int = 1
) -> Plan:
    """Return the runs of a sweep, with their data read; refuse a grid with anything wrong in it."""
    check_experiment(experiment)
    zoo, numbers = methods_of(methods), seeds_of(experiment, seeds)
    places, held = grid_of(over, zoo, experiment), _validation(experiment)
    # seed after seed: an interrupted sweep has something to show at every point
    named = {f"{p.stem}-seed{seed}": (p, seed) for seed in numbers for p in places}
    runs = with_data({name: replace(p.experiment, seed=seed, validation=held) for name, (p, seed) in named.items()})
    points = {name: dict(p.point) for name, (p, _) in named.items()}
    _check_metrics(runs.values())
    return Plan(runs, points)


def _check_metrics(experiments: Iterable[Experiment]) -> None:
    """Refuse points that cannot be compared."""
    tasks = {(e.task or default_for(load_data(e).y)).primary for e in experiments}
    if len(tasks) > 1:
        raise BadInput(f"The points of a sweep must be judged by one metric. These have {' and '.join(sorted(tasks))}.")


def _validation(experiment: Experiment) -> float:
    """Return the share that is held out; 0 where training samples and test samples are the same, as in quadratics."""
    if experiment.validation is not None:
        return experiment.validation
    data = load(experiment.data) if isinstance(experiment.data, str) else experiment.data
    return 0.0 if data.test_x is data.x else VALIDATION


def finish(
    runs: Mapping[str, Experiment], points: Points, folder: Path | None, together: Together, workers: Pool
) -> Sweep:
    """Do what is left of a sweep: the runs of its grid, then those of the best points."""

    def swept(results: Mapping[str, Result]) -> Sweep:
        return Sweep(list(results.values()), [points[name] for name in results])

    def with_tests(results: Mapping[str, Result]) -> Sweep:
        return replace(found, tested=compared(results) if results else None)

    found = swept(replace(together, made=swept).do(runs, folder, workers, points))
    try:
        chosen = _tests(found.best, runs, points) if found.validation else {}
        if not chosen:
            return found
        return with_tests(replace(together, made=with_tests).do(chosen, folder and folder / BEST, workers))
    except KeyboardInterrupt as stopped:  # what can be continued is the whole sweep, and its grid is done
        raise Interrupted(folder, getattr(stopped, "round", 0), getattr(stopped, "result", found)) from None


def _tests(best: Mapping[str, Any], runs: Mapping[str, Experiment], points: Points) -> dict[str, Experiment]:
    """Return the runs of the best points on all training data, with the seeds that follow those of the grid."""
    seeds = sorted({e.seed for e in runs.values()})
    of = {(e.method.name, tuple(points[name].items())): e for name, e in runs.items()}
    best_of = {method: of[method, tuple(row["point"].items())] for method, row in best.items()}
    return {
        f"{method}-seed{seed}": replace(e, validation=None, seed=seed)
        for seed in range(seeds[-1] + 1, seeds[-1] + 1 + len(seeds))
        for method, e in best_of.items()
    }


def load_sweep(folder: Path) -> Sweep:
    """Return the sweep of a folder as far as it has come: runs without a finished round are left out."""
    found = _begun(folder, points := planned(folder)["points"])
    if not found:
        raise BadInput(f"The sweep {str(folder)!r} has no finished round yet. `fedweave resume {folder}` continues it.")
    results, best = [load_result(run_inside(folder, name)) for name in found], run_inside(folder, BEST)
    tested = _begun(best, planned(best)["runs"]) if is_comparison(best) else []
    comparison = Comparison([load_result(run_inside(best, name)) for name in tested])
    return Sweep(results, [points[name] for name in found], comparison if tested else None)


def _begun(folder: Path, names: Mapping[str, Any]) -> list[str]:
    return [name for name in names if finished_rounds(run_inside(folder, name))]


def _rows_of(comparison: Comparison | None) -> list[dict[str, Any]]:
    """Return a row for each method of a comparison."""
    return Sweep(comparison.results, [{}] * len(comparison.results)).summary if comparison else []


def _row(method: str, point: tuple[tuple[str, Any], ...], runs: Sequence[Result]) -> dict[str, Any]:
    values = np.array([_value(run) for run in runs])
    mean = mean_over_seeds(values)
    failed = int(np.isnan(values).sum())
    low, high = (float(end) if np.isfinite(end) and not failed else None for end in mean.interval)
    return {
        "method": method,
        "point": dict(point),
        "metric": runs[0].summary["metric"],
        "higher_is_better": runs[0].summary["higher_is_better"],
        "seeds": len(runs),
        "mean": None if failed else mean.mean,
        "low": low,
        "high": high,
        "failed": failed,
        "unfinished": sum(_is_unfinished(run) for run in runs),
        "ended_early": sum(run.summary.get("ended_early") in ("target", "patience") for run in runs),
    }


def _is_unfinished(run: Result) -> bool:
    return run.summary["rounds"] < run.experiment.get("rounds", 0) and not run.summary.get("ended_early")


def _value(run: Result) -> float:
    """Return the metric at the end of a run, nan if it diverged; of an unfinished one, what was found last."""
    if diverged(run.rounds, run.summary["metric"]):
        return np.nan
    values = run.rounds.get(run.summary["metric"], np.empty(0))
    if _is_unfinished(run):
        values = values[np.isfinite(values)]
    return float(values[-1]) if values.size and np.isfinite(values[-1]) else np.nan


def _best(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row with the best mean, the first of equal ones; points where a seed diverged do not count."""
    known = [row for row in rows if row["mean"] is not None]
    if not known:
        return None
    return (max if known[0]["higher_is_better"] else min)(known, key=lambda row: row["mean"])
