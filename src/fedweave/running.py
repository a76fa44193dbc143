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
from fedweave.experiment import Experiment, from_plain, load_data, to_plain
from fedweave.method import Method
from fedweave.records import Array, ServerState
from fedweave.report import compare_rows, write
from fedweave.results import Result, summarise
from fedweave.round import Round, run_round
from fedweave.session import Session, prepare
from fedweave.settings import BadInput
from fedweave.store.run_folder import RunFolder, refuse_used, write_file

Told = Callable[[Mapping[str, Any]], None]  # called with the row of every finished round
Watch = Callable[[str, Experiment], Told]  # called with name and experiment when a run begins


class Interrupted(KeyboardInterrupt):
    """A run was stopped; its state is saved in ``folder``."""

    def __init__(self, folder: Path | None, round: int):
        super().__init__(f"interrupted after round {round}")
        self.folder, self.round = folder, round


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    watch: Watch | None = None,
    command: str | None = None,
) -> Result:
    """Run an experiment. With ``out`` everything is kept in that folder and can be resumed; without, in memory."""
    session = prepare(experiment, command)
    store = RunFolder.create(Path(out) if out else None, to_plain(experiment), session.manifest)
    return _go(session, session.start, store, watch and watch(experiment.method.name, experiment))


def resume(run_folder: str | Path, experiment: Experiment | None = None, watch: Watch | None = None) -> Result:
    """Continue an interrupted run, bit for bit. ``experiment`` is needed only for data or models given in Python."""
    store = RunFolder.open(Path(run_folder))
    experiment = experiment or from_plain(store.read_json("experiment.json"))
    session, manifest = prepare(experiment), store.read_json("manifest.json")
    if session.manifest["data"] != manifest["data"]:
        raise BadInput(
            f"The data has changed since this run began: {manifest['data']} then, {session.manifest['data']} now."
        )
    told = watch and watch(experiment.method.name, experiment)
    return _go(session._replace(manifest=manifest), store.load_state() or session.start, store, told)


def _go(session: Session, state: ServerState, store: RunFolder, told: Told | None) -> Result:
    experiment, engine = session.experiment, session.engine
    past = store.columns("rounds")
    totals = {c: past[c][-1].item() if past[c].size else 0 for c in ("bytes_up", "bytes_down", "wall_seconds")}
    try:
        with engine:
            while state.round < experiment.rounds:
                begin = time.perf_counter()
                population = experiment.system.population(session.base, state.round + 1, experiment.seed)
                after, happened = run_round(
                    experiment.method, state, population, engine, experiment.lr, experiment.seed
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
        return f"Comparison({len(self.results)} runs of {', '.join(dict.fromkeys(r.summary['method'] for r in self.results))})"


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
    if out is None:
        return Comparison([run(e, None, watch, command) for e in runs.values()])
    folder = Path(out)
    refuse_used(folder, "compare.json")
    for e in runs.values():  # every misfit is an error now, before anything is written
        prepare(e, command)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "runs": {name: to_plain(e) for name, e in runs.items()}}
    write_file(folder / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    return _continue(folder, runs, watch, command)


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
    return _continue(Path(folder), runs, watch, content["command"])


def _continue(folder: Path, runs: Mapping[str, Experiment], watch: Watch | None, command: str | None) -> Comparison:
    return Comparison(
        [
            resume(folder / name, e, watch)
            if (folder / name / "run.sqlite").exists()
            else run(e, folder / name, watch, command)
            for name, e in runs.items()
        ]
    )


def runs_in(folder: str | Path) -> list[Path]:
    """Return the run folders of a comparison, or the run folder itself."""
    plan = Path(folder) / "compare.json"
    return [Path(folder) / name for name in json.loads(plan.read_text())["runs"]] if plan.is_file() else [Path(folder)]
