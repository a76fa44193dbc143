"""Run, resume and compare experiments."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data import Dataset
from fedweave.engine.simulator import choose_device, workers_for
from fedweave.engine.workers import Workers
from fedweave.experiment import Experiment, from_plain, load_data, to_plain
from fedweave.method import Method
from fedweave.records import Array, ServerState
from fedweave.report import compare_rows, write
from fedweave.results import Result, summarise
from fedweave.round import Round, run_round
from fedweave.session import Session, prepare
from fedweave.settings import BadInput
from fedweave.store.run_folder import RunFolder, refuse_used, writable, write_file

Told = Callable[[Mapping[str, Any]], None]  # called with the row of every finished round
Watch = Callable[[str, Experiment], Told]  # called with name and experiment when a run begins


class Interrupted(KeyboardInterrupt):
    """A run was stopped; its state is saved in ``folder``."""

    def __init__(self, folder: Path | None, round: int):
        super().__init__(f"interrupted after round {round}")
        self.folder, self.round = folder, round


def run(
    experiment: Experiment, out: str | Path | None = None, watch: Watch | None = None, command: str | None = None
) -> Result:
    """Run an experiment. With ``out`` everything is kept in that folder and can be resumed; without, in memory."""
    with _workers(experiment) as workers:
        return _run(experiment, Path(out) if out else None, watch, command, workers)


def resume(run_folder: str | Path, experiment: Experiment | None = None, watch: Watch | None = None) -> Result:
    """Continue an interrupted run, bit for bit. ``experiment`` is needed only for data or models given in Python."""
    store = RunFolder.open(Path(run_folder))
    stored = store.read_json("experiment.json")
    if experiment is not None:
        _refuse_another(stored, experiment)
    experiment = experiment or from_plain(stored)
    with _workers(experiment) as workers:
        return _resume(store, experiment, watch, workers)


def _refuse_another(stored: Mapping[str, Any], given: Experiment) -> None:
    """Refuse to continue a run with other settings. Data has a digest, own models no name, and the rest no effect."""
    plain = json.loads(json.dumps(to_plain(given)))
    free = {"data", "workers", "device"} | (set() if isinstance(plain["model"], str) else {"model"})
    other = [k for k, v in plain.items() if k not in free and v != stored.get(k)]
    if other:
        raise BadInput(
            f"The experiment differs from the one this run began with in {', '.join(other)}. "
            "Give the same one, or start a new run."
        )


def _workers(experiment: Experiment) -> Workers:
    return workers_for(experiment.workers, choose_device(experiment.device)[0])


def _run(
    experiment: Experiment, out: Path | None, watch: Watch | None, command: str | None, workers: Workers
) -> Result:
    session = prepare(experiment, workers, command)
    store = RunFolder.create(out, to_plain(experiment), session.manifest)
    return _go(session, session.start, store, watch)


def _resume(store: RunFolder, experiment: Experiment, watch: Watch | None, workers: Workers) -> Result:
    session, manifest = prepare(experiment, workers), store.read_json("manifest.json")
    if session.manifest["data"] != manifest["data"]:
        raise BadInput(
            f"The data has changed since this run began: {manifest['data']} then, {session.manifest['data']} now."
        )
    return _go(session._replace(manifest=manifest), store.load_state() or session.start, store, watch)


def _go(session: Session, state: ServerState, store: RunFolder, watch: Watch | None) -> Result:
    experiment, engine = session.experiment, session.engine
    told = watch and watch(experiment.method.name, experiment)
    past = store.columns("rounds")
    totals = {c: past[c][-1].item() if past[c].size else 0 for c in ("bytes_up", "bytes_down", "wall_seconds")}
    try:
        while state.round < experiment.rounds:
            begin = time.perf_counter()
            population = experiment.system.population(session.base, state.round + 1, experiment.seed)
            after, happened = run_round(
                experiment.method, state, population, engine, experiment.lr, experiment.seed, experiment.calibrate
            )
            due = after.round % experiment.evaluate_every == 0 or after.round == experiment.rounds
            scores = engine.evaluate(after.x) if due else {}
            totals["wall_seconds"] += time.perf_counter() - begin
            row = _row(state, after, happened, scores, totals)
            store.add(row, _client_rows(after.round, happened), happened.refused)
            state = after
            store.save(state)
            if told:
                told(row)
    except KeyboardInterrupt:
        raise Interrupted(store.folder, state.round) from None
    finally:  # whatever happened, the finished rounds are kept
        store.save(state, always=True)
        result = _result(store, to_plain(experiment), session.manifest, state)
        store.close()
    return result


def _row(
    before: ServerState,
    after: ServerState,
    happened: Round,
    scores: Mapping[str, Any],
    totals: dict[str, Any],
) -> dict[str, Any]:
    cohort, replies = happened.cohort, happened.replies
    totals["bytes_up"] += int(replies.bytes_up.sum())
    totals["bytes_down"] += after.x.nbytes * cohort.ids.size
    heard = replies.loss[replies.received]
    return {
        "round": after.round,
        "clock": after.clock,
        "seconds": after.clock - before.clock,
        "device_seconds": float(replies.seconds.sum()),
        "accuracy": scores.get("accuracy", np.nan),
        "loss": scores.get("loss", np.nan),
        "train_loss": float(heard.mean()) if heard.size else np.nan,
        "asked": cohort.ids.size,
        "received": int(replies.received.sum()),
        "refused": len(happened.refused),
        "class_accuracy": scores.get("class_accuracy", np.zeros(0)),
        **totals,
    }


def _client_rows(round: int, happened: Round) -> dict[str, Array]:
    cohort, replies = happened.cohort, happened.replies
    return {
        "round": np.full(cohort.ids.size, round),
        "client": cohort.ids,
        "count": cohort.count,
        "expected": cohort.expected,
        "received": replies.received.astype(int),
        "steps": replies.steps,
        "loss": replies.loss,
        "seconds": replies.seconds,
        "bytes_up": replies.bytes_up,
    }


def _result(store: RunFolder, plain: Mapping[str, Any], manifest: Mapping[str, Any], state: ServerState) -> Result:
    rounds = store.columns("rounds")
    summary = {
        "method": plain["method"]["name"],
        "seed": plain["seed"],
        **summarise(rounds, plain["target"]),
        "run": str(store.folder) if store.folder else None,
        "digest": hashlib.sha256(state.x.tobytes()).hexdigest(),
    }
    return Result(plain, manifest, rounds, store.columns("clients"), summary, state.x, store.folder)


def load_result(folder: str | Path) -> Result:
    """Return the result of a run folder, finished or not."""
    store = RunFolder.open(Path(folder))
    state = store.load_state()
    if state is None:
        raise BadInput(f"The run {str(folder)!r} has no finished round yet. `fedweave resume {folder}` continues it.")
    plain, manifest = store.read_json("experiment.json"), store.read_json("manifest.json")
    result = _result(store, plain, manifest, state)
    store.close()
    return result


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same data, worlds and seeds."""

    results: Sequence[Result]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds, per method."""
        return compare_rows(self.results)

    def report(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained HTML page."""
        return write(self.results, Path(path))

    def __repr__(self) -> str:
        names = dict.fromkeys(r.summary["method"] for r in self.results)
        return f"Comparison({len(self.results)} runs of {', '.join(names)})"


def compare(
    methods: Sequence[Method],
    experiment: Experiment,
    seeds: int = 1,
    out: str | Path | None = None,
    watch: Watch | None = None,
    command: str | None = None,
) -> Comparison:
    """Run every method with every seed; with ``out`` each run has its folder in there and all can be resumed."""
    runs = _plan(methods, replace(experiment, data=load_data(experiment)), seeds)
    with _workers(experiment) as workers:
        if out is None:
            return Comparison([_run(e, None, watch, command, workers) for e in runs.values()])
        folder = Path(out)
        refuse_used(folder, "compare.json")
        for e in runs.values():  # every misfit is an error now, before anything is written
            prepare(e, workers, command)
        content = {"command": command, "runs": {name: to_plain(e) for name, e in runs.items()}}
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
        return _continue(folder, runs, watch, command, workers)


def _plan(methods: Sequence[Method], experiment: Experiment, seeds: int) -> dict[str, Experiment]:
    """Return the runs by name, seed after seed: for one seed every method meets the same clients and world."""
    names = [m.name for m in methods]
    twins = {n for n in names if names.count(n) > 1}
    if twins:
        raise BadInput(
            f"Two methods of a comparison are called {twins.pop()!r}. Rename one: replace(method, name=...)."
        )
    return {
        f"{method.name}-seed{seed}": replace(experiment, method=method, seed=seed)
        for seed in range(experiment.seed, experiment.seed + seeds)
        for method in methods
    }


def resume_comparison(folder: str | Path, watch: Watch | None = None) -> Comparison:
    """Finish an interrupted comparison: runs that are complete are only read."""
    content = json.loads((Path(folder) / "compare.json").read_text())
    runs = {name: from_plain(plain) for name, plain in content["runs"].items()}
    loaded: dict[Any, Dataset] = {}
    for name, e in runs.items():  # read each data set once
        loaded[e.data] = loaded.get(e.data) or load_data(e)
        runs[name] = replace(e, data=loaded[e.data])
    with _workers(next(iter(runs.values()))) as workers:
        return _continue(Path(folder), runs, watch, content["command"], workers)


def _continue(
    folder: Path, runs: Mapping[str, Experiment], watch: Watch | None, command: str | None, workers: Workers
) -> Comparison:
    results: list[Result] = []
    try:
        for name, experiment in runs.items():
            if (folder / name / "run.sqlite").exists():
                results.append(_resume(RunFolder.open(folder / name), experiment, watch, workers))
            else:
                results.append(_run(experiment, folder / name, watch, command, workers))
    except KeyboardInterrupt as stopped:  # what can be continued is the whole comparison
        raise Interrupted(folder, getattr(stopped, "round", 0)) from None
    return Comparison(results)


def device_sentence(experiment: Experiment) -> str:
    """Return which device and how many processes an experiment will use, and why."""
    return f"{choose_device(experiment.device)[1]}, {_workers(experiment)}"


def runs_in(folder: str | Path) -> list[Path]:
    """Return the run folders of a comparison, or the run folder itself."""
    plan = Path(folder) / "compare.json"
    return [Path(folder) / name for name in json.loads(plan.read_text())["runs"]] if plan.is_file() else [Path(folder)]


def begun_in(folder: str | Path) -> list[Path]:
    """Return the runs that can be read: of an interrupted comparison, those with a finished round."""
    runs = runs_in(folder)
    return [run for run in runs if any(run.glob("state-*.safetensors"))] or runs
