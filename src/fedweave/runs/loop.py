"""Run and resume experiments."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedweave.core.crash_points import crash_point
from fedweave.core.determinism import deterministic
from fedweave.core.records import Array, ServerState, State
from fedweave.core.settings import BadInput, brief
from fedweave.engine.pool.choose import choose_pool
from fedweave.engine.pool.protocol import Pool
from fedweave.local.torch.device import choose_device
from fedweave.round import Round, measures, run_round
from fedweave.runs.evaluation import evaluate
from fedweave.runs.experiment import Experiment, check_experiment, from_plain, refuse_old_fields, to_plain
from fedweave.runs.factories import own_model
from fedweave.runs.results import Result, summarise
from fedweave.runs.session import Session, prepare, refuse_foreign_state
from fedweave.runs.start import started
from fedweave.store.database import reading
from fedweave.store.run_folder import RunFolder

OnRound = Callable[[Mapping[str, Any]], None]  # called with the row of every finished round
Watch = Callable[[str, Experiment], OnRound]  # called with name and experiment when a run begins


class Interrupted(KeyboardInterrupt):
    """A run was stopped; its state is saved in ``folder``."""

    def __init__(self, folder: Path | None, round: int):
        super().__init__(f"interrupted after round {round}")
        self.folder, self.round = folder, round


def run(
    experiment: Experiment, out: str | Path | None = None, watch: Watch | None = None, command: str | None = None
) -> Result:
    """Run an experiment. With ``out`` everything is kept in that folder and can be resumed; without, in memory."""
    with workers_of(experiment) as workers:
        return run_with(experiment, Path(out) if out else None, watch, command, workers)


def resume(
    run_folder: str | Path, experiment: Experiment | None = None, watch: Watch | None = None, trust: bool = False
) -> Result:
    """Continue an interrupted run, bit for bit. ``experiment`` is needed only for data or models given in Python.

    Without ``trust`` nothing is imported or read because the folder says so: plug-ins, images or a trace.
    """
    with closing(RunFolder.open(Path(run_folder))) as store:  # closed also when refused: the next try is not locked out
        stored, manifest = store.experiment, store.manifest
        if manifest.get("engine") == "flower":
            raise BadInput(
                f"{str(run_folder)!r} is the run of a real fleet: `flwr run` with the same 'out' continues it."
            )
        refuse_edited(manifest.get("experiment") or stored, stored)
        if experiment is not None:
            check_experiment(experiment)
            refuse_another(stored, experiment)
        experiment = experiment or from_plain(stored, trust)
        with workers_of(experiment) as workers:
            return resume_with(store, experiment, watch, workers)


FREE = {"pool", "workers", "device", "tables"}  # settings that change no bit


def refuse_edited(began: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose experiment.json is not what the run began with."""
    before, now = ({k: v for k, v in plain.items() if k not in FREE} for plain in (began, stored))
    if other := different(before, now):
        raise BadInput(
            f"experiment.json has been changed since this run began: {'; '.join(other)}. "
            "Put it back, or start a new run."
        )


def refuse_another(stored: Mapping[str, Any], given: Experiment) -> None:
    """Refuse to continue a run with other settings.

    Data and start values have digests in the manifest, own models have no name, and the rest has no effect.
    """
    refuse_old_fields(stored)
    plain = json.loads(json.dumps(to_plain(given)))
    free = {"data", "start"} | FREE | (set() if isinstance(plain["model"], str) else {"model"})
    fixed = {k: v for k, v in plain.items() if k not in free}
    if other := different({k: stored.get(k) for k in fixed}, fixed):
        raise BadInput(
            f"The experiment differs from the one this run began with in {'; '.join(other)}. "
            "Give the same one, or start a new run."
        )


def different(before: Any, now: Any, path: str = "") -> list[str]:
    """Return a phrase for every field in which two plain descriptions differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*before, *(k for k in now if k not in before)]
        return [d for k in keys for d in different(before.get(k), now.get(k), f"{path}.{k}" if path else str(k))]
    texts = [brief(json.dumps(value), 200) for value in (before, now)]
    return [] if before == now else [f"{brief(path)} ({texts[0]} then, {texts[1]} now)"]


def refuse_another_start(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose model began with other values, wherever they are kept now."""
    before, ours = ((manifest.get("start") or {}).get("sha256") for manifest in (began, now))
    if before != ours:
        raise BadInput(
            f"The start values are not those that this run began with: {different(before, ours, 'SHA-256')[0]}."
        )


def mind_machine(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the manifests of a run and of what continues it: refuse another fedweave, warn of other last bits."""
    before, ours = began["versions"].get("fedweave", ""), now["versions"].get("fedweave", "")
    if before.split(".")[:2] != ours.split(".")[:2]:
        raise BadInput(f"This run began with fedweave {before}, and this is {ours}. Continue it with that version.")
    if other := different(began["versions"], now["versions"]):
        warnings.warn(f"Resuming with other versions, the last bits may differ: {'; '.join(other)}.", stacklevel=2)
    if other := different(began.get("plugins"), now.get("plugins")) if "plugins" in began else []:
        warnings.warn(f"Resuming with changed plug-ins, the results may differ: {'; '.join(other)}.", stacklevel=2)
    facts = [fact for fact in ("processor", "trainer") if fact in began]
    if other := [difference for fact in facts for difference in different(began[fact], now[fact], fact)]:
        warnings.warn(
            "Resuming on another kind of processor or with another trainer, the last bits may differ: "
            f"{'; '.join(other)}.",
            stacklevel=2,
        )


def workers_of(experiment: Experiment) -> Pool:
    """Return the worker processes or Ray actors that an experiment asks for, not yet started."""
    check_experiment(experiment)
    device, _ = choose_device(experiment.device, experiment.pool)
    return choose_pool(experiment.workers, device, experiment.pool)


def run_with(
    experiment: Experiment, out: Path | None, watch: Watch | None, command: str | None, workers: Pool
) -> Result:
    """Run an experiment with workers that are already there."""
    session = prepare(experiment, workers, command)
    store = RunFolder.create(out, to_plain(experiment), session.manifest)
    return go_on(session, store.start(session.start, experiment.tables), store, watch)


def resume_with(store: RunFolder, experiment: Experiment, watch: Watch | None, workers: Pool) -> Result:
    """Continue a run with workers that are already there; a finished one is only read."""
    manifest, state = store.manifest, store.load_state(tables=None)
    store.refuse_broken_log(state.round if state else 0, experiment.audit)
    store.tidy()
    if state is not None and state.round >= experiment.rounds:
        own = own_model(experiment.model)
        own = own and started(own, experiment.start)[0]
        result = _result(store, to_plain(experiment), manifest, state, own)
        store.close()
        return result
    state = store.load_state(experiment.tables)
    store.rewind(state.round if state else 0)
    session = prepare(experiment, workers)
    if other := different(manifest["data"], session.manifest["data"]):
        raise BadInput(f"The data has changed since this run began: {'; '.join(other)}.")
    refuse_another_start(manifest, session.manifest)
    mind_machine(manifest, session.manifest)
    if state is not None:
        refuse_foreign_state(session, state)
    state = state or store.start(session.start, experiment.tables)
    return go_on(session._replace(manifest=manifest), state, store, watch)


def iterate(session: Session, state: ServerState | None = None) -> Iterator[tuple[ServerState, Round]]:
    """Yield the state after each round that is left, from this state or the first, and what happened in the round."""
    e, state = session.experiment, state or session.start
    while state.round < e.rounds:
        population = session.world(state.round + 1)
        state, happened = run_round(
            session.method, state, population, session.engine, e.lr, e.seed, e.calibrate, session.rules
        )
        yield state, happened
        del happened  # its updates would stay in memory beside those of the next round


def rounds(experiment: Experiment) -> Iterator[tuple[ServerState, Round]]:
    """Run an experiment round by round: yield the state after each, and what happened in it. Nothing is recorded.

    ``state.x`` is the model, ``happened.cohort`` and ``happened.replies`` say who was asked and what arrived.
    """
    with workers_of(experiment) as workers:
        steps, blas = iterate(prepare(experiment, workers)), ThreadpoolController()
        while True:
            with deterministic(blas):  # but not while the caller computes
                step = next(steps, None)
            if step is None:
                return
            yield step
            del step


def go_on(session: Session, state: ServerState, store: RunFolder, watch: Watch | None) -> Result:
    """Do the rounds that are left, from this state, and return what the whole run came to."""
    on_round = watch and watch(session.experiment.method.name, session.experiment)
    past, best = store.columns("rounds"), state.best
    totals = {c: past[c][-1].item() if past[c].size else 0 for c in ("bytes_up", "bytes_down", "wall_seconds")}
    try:
        with deterministic():
            begin = time.perf_counter()
            for after, happened in iterate(session, state):
                row = _record(session, state, after, happened, store, totals, begin)
                best = _better(best, row, after, session.manifest.get("task"))
                state = after._replace(best=best)
                store.save(state, always=session.every_round)
                if on_round:
                    on_round(row)
                del happened
                begin = time.perf_counter()
    except KeyboardInterrupt:
        raise Interrupted(store.folder, state.round) from None
    finally:
        try:  # whatever happened, the finished rounds are kept
            store.save(state, always=True)
            result = _result(store, to_plain(session.experiment), session.manifest, state, session.own_model)
        finally:
            store.close()
    return result


def _better(best: State, row: Mapping[str, Any], after: ServerState, task: Mapping[str, Any] | None) -> State:
    """Return the best model so far, of which this round's is one if it was evaluated."""
    value = float(row.get(task["primary"], np.nan)) if task else np.nan
    if not np.isfinite(value):
        return best
    if best and not (value > best["value"] if task and task["higher_is_better"] else value < best["value"]):
        return best
    return {"x": after.x, "round": np.array(after.round), "value": np.array(value)}


def _record(
    session: Session,
    before: ServerState,
    after: ServerState,
    happened: Round,
    store: RunFolder,
    totals: dict[str, Any],
    begin: float,
) -> dict[str, Any]:
    """Evaluate and measure a round that began at this moment, and add its rows to the store; return the first."""
    crash_point("stepped")
    found = evaluate(session, after, happened.view.population)
    measured = measures.of_parts(session.method, after, happened) | found.measured
    totals["wall_seconds"] += time.perf_counter() - begin
    row = {**_row(before, after, happened, found.test, totals), **measured}
    crash_point("evaluated")
    store.add(row, _client_rows(after.round, happened), happened.failures(), found.clients)
    if session.experiment.audit:
        store.note(after.round, _audit_lines(after, happened))
    crash_point("recorded")
    return row


def _row(
    before: ServerState,
    after: ServerState,
    happened: Round,
    scores: Mapping[str, Any],
    totals: dict[str, Any],
) -> dict[str, Any]:
    cohort, replies = happened.cohort, happened.replies
    totals["bytes_up"] += int(replies.bytes_up.sum())
    totals["bytes_down"] += happened.bytes_down
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
        "abandoned": int(bool(happened.abandoned)),
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


def _audit_lines(after: ServerState, happened: Round) -> list[dict[str, Any]]:
    """Return what became of each one that was asked, with the digest of what was used, and the model after it all."""
    why = {failure.client: (kind, failure.why) for kind, failure in happened.failures()}
    lines: list[dict[str, Any]] = []
    for row, client in enumerate(happened.cohort.ids.tolist()):
        if happened.replies.received[row]:
            digest = hashlib.sha256(np.ascontiguousarray(happened.replies.updates[row]).data).hexdigest()
            lines.append({"client": client, "verdict": "accepted", "sha256": digest})
        else:
            verdict, reason = why.get(client, ("lost", ""))
            lines.append({"client": client, "verdict": verdict, "why": reason})
    if happened.abandoned:
        lines.append({"verdict": "abandoned", "why": happened.abandoned})
    return [*lines, {"verdict": "model", "sha256": hashlib.sha256(after.x.tobytes()).hexdigest()}]


def _result(
    store: RunFolder,
    plain: Mapping[str, Any],
    manifest: Mapping[str, Any],
    state: ServerState,
    own_model: Callable[..., Any] | None = None,
) -> Result:
    rounds = store.columns("rounds")
    summary = {
        "method": plain["method"]["name"],
        "seed": plain["seed"],
        **summarise(rounds, plain["target"], manifest.get("task")),
        "run": str(store.folder) if store.folder else None,
        "digest": hashlib.sha256(state.x.tobytes()).hexdigest(),
    }
    clients, scores = store.columns("clients"), store.columns("client_scores")
    return Result(
        experiment=plain,
        manifest=manifest,
        rounds=rounds,
        clients=clients,
        summary=summary,
        x=state.x,
        folder=store.folder,
        client_scores=scores,
        best=state.best,
        factory=own_model,
    )


def load_result(folder: str | Path) -> Result:
    """Return the result of a run folder, finished or not."""
    with reading(Path(folder)), closing(RunFolder.open(Path(folder), write=False)) as store:
        state = store.load_state(tables=None)
        if state is None:
            raise BadInput(
                f"The run {str(folder)!r} has no finished round yet. `fedweave resume {folder}` continues it."
            )
        return _result(store, store.experiment, store.manifest, state)


def device_sentence(experiment: Experiment) -> str:
    """Return which device and how many processes an experiment will use, and why."""
    return f"{choose_device(experiment.device, experiment.pool)[1]}, {workers_of(experiment)}"
