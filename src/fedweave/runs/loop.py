"""Run and resume experiments."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedweave.core.determinism import deterministic
from fedweave.core.records import ServerState
from fedweave.core.settings import BadInput
from fedweave.engine.pool.choose import choose_pool
from fedweave.engine.pool.protocol import Pool
from fedweave.local.torch.device import choose_device
from fedweave.round import Round, run_round
from fedweave.runs.callbacks import Callback, Callbacks, Running, callbacks_of
from fedweave.runs.evaluation import ends_with_more
from fedweave.runs.experiment import Experiment, check_experiment
from fedweave.runs.factories import own_model
from fedweave.runs.folders import is_comparison, refuse_alone
from fedweave.runs.plain import from_plain, to_plain
from fedweave.runs.progress import shown_progress
from fedweave.runs.recorder import Recorder
from fedweave.runs.refusals import divergence
from fedweave.runs.results import Result, ended_early, may_end_early, summarise, worst_client
from fedweave.runs.same_run import (
    different,
    mind_machine,
    refuse_another,
    refuse_another_start,
    refuse_edited,
    refuse_length,
)
from fedweave.runs.session import Session, prepare, refuse_foreign_state
from fedweave.runs.start import started
from fedweave.store.database import reading
from fedweave.store.run_folder import NoState, RunFolder


class Interrupted(KeyboardInterrupt):
    """A run was stopped; ``result`` is what it came to, and its state is saved in ``folder``, if it has one."""

    def __init__(self, folder: Path | None, round: int, result: Any = None):
        super().__init__(f"interrupted after round {round}")
        self.folder, self.round, self.result = folder, round, result


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    command: str | None = None,
    progress: bool | None = None,
) -> Result:
    """Run an experiment. With ``out`` everything is kept in that folder and can be resumed; without, in memory.

    ``callbacks`` are called after every round: a ``Callback``, a function of a round's row, or several of them.
    ``progress`` is shown on a terminal and in a notebook unless it is False, and with True also elsewhere.
    """
    heard = callbacks_of(callbacks)
    with shown_progress(progress, 1) as bar, workers_of(experiment) as workers:
        return run_with(experiment, Path(out) if out else None, (*bar, *heard), command, workers)


def resume(
    run_folder: str | Path,
    experiment: Experiment | None = None,
    callbacks: Callbacks = (),
    trust: bool = False,
    rounds: int | None = None,
    progress: bool | None = None,
) -> Result:
    """Continue an interrupted run, bit for bit. ``experiment`` is needed only for data or models given in Python.

    Without ``trust`` nothing is imported or read because the folder says so: plug-ins, images or a trace. ``rounds``
    gives it another length: what comes out is bit for bit what a run of so many rounds would have been.
    """
    heard = callbacks_of(callbacks)
    if is_comparison(Path(run_folder)):
        raise BadInput(f"{str(run_folder)!r} holds several runs: `fedweave.resume_comparison` continues them.")
    with closing(RunFolder.open(Path(run_folder))) as store:  # closed also when refused: the next try is not locked out
        stored, manifest = store.experiment, store.manifest
        if manifest.get("engine") == "flower":
            raise BadInput(
                f"{str(run_folder)!r} is the run of a real fleet: `flwr run` with the same 'out' continues it."
            )
        refuse_edited(manifest.get("experiment") or stored, stored)
        if experiment is not None:
            check_experiment(experiment)
            refuse_another(stored, experiment if rounds is None else replace(experiment, rounds=stored["rounds"]))
        experiment = experiment or from_plain(stored, trust)
        if rounds is not None:
            experiment = replace(experiment, rounds=rounds)
            if rounds != stored["rounds"]:
                refuse_alone(Path(run_folder), rounds)
        with shown_progress(progress, 1) as bar, workers_of(experiment) as workers:
            return resume_with(store, experiment, (*bar, *heard), workers)


def workers_of(experiment: Experiment) -> Pool:
    """Return the worker processes or Ray actors that an experiment asks for, not yet started."""
    check_experiment(experiment)
    device, _ = choose_device(experiment.device, experiment.pool)
    return choose_pool(experiment.workers, device, experiment.pool)


def run_with(
    experiment: Experiment, out: Path | None, callbacks: Sequence[Callback], command: str | None, workers: Pool
) -> Result:
    """Run an experiment with workers that are already there."""
    session = prepare(experiment, workers, command)
    store = RunFolder.create(out, to_plain(experiment), session.manifest)
    return go_on(session, store.start(session.start, experiment.tables), store, callbacks)


def resume_with(store: RunFolder, experiment: Experiment, callbacks: Sequence[Callback], workers: Pool) -> Result:
    """Continue a run with workers that are already there; a finished one is only read.

    Where the experiment has another number of rounds, the run is given that, once everything else is known to fit.
    """
    manifest, state = store.manifest, store.load_state(tables=None)
    store.refuse_broken_log(state.round if state else 0, experiment.audit)
    store.tidy()
    longer = refuse_length(store.experiment, experiment, state.round if state else 0)
    if state is not None and not longer and is_over(store, state):
        own = own_model(experiment.model)
        own = own and started(own, experiment.start)[0]
        result = _result(store, to_plain(experiment), manifest, state, own)
        store.close()
        return result
    session = prepare(experiment, workers)
    if other := different(manifest["data"], session.manifest["data"]):
        raise BadInput(f"The data has changed since this run began: {'; '.join(other)}.")
    refuse_another_start(manifest, session.manifest)
    mind_machine(manifest, session.manifest)
    extend(store, experiment)
    state = store.load_state(experiment.tables)
    store.rewind(state.round if state else 0)
    if state is not None:
        refuse_foreign_state(session, state)
    state = state or store.start(session.start, experiment.tables)
    return go_on(session._replace(manifest=store.manifest), state, store, callbacks)


def extend(store: RunFolder, experiment: Experiment) -> None:
    """Give a run as many rounds as the experiment has, if it has others.

    A last round in which more was evaluated than a longer run would have evaluated there is done again.
    """
    before, state = int(store.experiment["rounds"]), store.load_state(tables=None)
    done = state.round if state else 0
    if refuse_length(store.experiment, experiment, done):
        again = done == before and ends_with_more(experiment, before)
        store.extend(experiment.rounds, before - 1 if again else done)


def is_over(store: RunFolder, state: ServerState) -> bool:
    """Return whether a run has nothing left to do after this state: all rounds are done, or it ended early."""
    if state.round >= store.experiment["rounds"]:
        return True
    rounds = store.columns("rounds")
    rounds = {name: column[rounds["round"] <= state.round] for name, column in rounds.items()}
    return ended_early(rounds, store.experiment, store.manifest.get("task")) is not None


def iterate(session: Session, state: ServerState | None = None) -> Iterator[tuple[ServerState, Round]]:
    """Yield the state after each round that is left, from this state or the first, and what happened in the round."""
    e, state = session.experiment, state or session.start
    while state.round < e.rounds:
        lr = e.lr_at(state.round + 1)
        state, happened = run_round(
            session.method, state, session.world, session.engine, lr, e.seed, e.calibrate, session.rules
        )
        if session.learn is not None:
            session.learn(happened)
        yield state, happened
        del happened  # its updates would stay in memory beside those of the next round


def rounds(experiment: Experiment) -> Iterator[tuple[ServerState, Round]]:
    """Run an experiment round by round: yield the state after each, and what happened in it. Nothing is recorded.

    ``state.x`` is the model, ``happened.cohort`` and ``happened.replies`` say who was asked and what arrived.
    """
    check_experiment(experiment)
    if may_end_early(vars(experiment)):
        raise BadInput("fedweave.rounds evaluates nothing: leave 'stop_at_target', 'patience' and 'stop_after' out.")
    with workers_of(experiment) as workers:
        steps, blas = iterate(prepare(experiment, workers)), ThreadpoolController()
        while True:
            with deterministic(blas):  # but not while the caller computes
                step = next(steps, None)
            if step is None:
                return
            yield step
            del step


def go_on(session: Session, state: ServerState, store: RunFolder, callbacks: Sequence[Callback]) -> Result:
    """Do the rounds that are left, from this state, and return what the whole run came to."""
    run = Running(session.experiment, session.manifest, store.folder, state.round, store.columns("rounds"))
    record, begun, error = Recorder(session, state, store, run, callbacks), list[Callback](), None
    try:
        for callback in callbacks:
            begun.append(callback)
            callback.begin(run)
        with deterministic(), record:
            for after, happened in iterate(session, state) if not record.ended else ():
                record.add(after, happened)
                del happened
                if record.ended:
                    break
    except BaseException as e:
        error = e
    try:  # whatever happened, the finished rounds are kept
        store.save(record.state, always=True)
        result = _result(store, to_plain(session.experiment), session.manifest, record.state, session.own_model)
        abandoned = result.summary["abandoned"]
        why = [f.why for _, kind, f in store.failures() if kind == "abandoned"] if abandoned else ()
    finally:
        store.close()
    for callback in begun:  # each of them, whatever the others do
        try:
            callback.end(run, result, error)
        except BaseException as e:
            error = error or e
    if isinstance(error, KeyboardInterrupt):
        raise Interrupted(store.folder, record.state.round, result) from None
    if error is not None:
        raise error
    if why:
        said = f"{abandoned} of {result.summary['rounds']} rounds were abandoned and changed nothing"
        warnings.warn(f"{run.label}: {said}; the last: {why[-1]}.", stacklevel=4)  # of fw.run
    if said := divergence(result.summary):
        warnings.warn(f"{run.label}: {said}.", stacklevel=4)
    return result


def _result(
    store: RunFolder,
    plain: Mapping[str, Any],
    manifest: Mapping[str, Any],
    state: ServerState | None,
    own_model: Callable[..., Any] | None = None,
) -> Result:
    rounds, clients, scores = store.columns("rounds"), store.columns("clients"), store.columns("client_scores")
    for name, source in (("name", "client_names"), ("test_samples", "test_samples")):
        if scores["client"].size and manifest.get(source):
            scores[name] = np.array(manifest[source])[scores["client"]]
    found = summarise(rounds, plain["target"], manifest.get("task"))
    summary = {
        "method": plain["method"]["name"],
        "seed": plain["seed"],
        **found,
        **worst_client(scores, found["higher_is_better"]),
        "ended_early": ended_early(rounds, plain, manifest.get("task")),
        "run": str(store.folder) if store.folder else None,
        "digest": hashlib.sha256(state.x.tobytes()).hexdigest() if state else None,
    }
    return Result(
        experiment=plain,
        manifest=manifest,
        rounds=rounds,
        clients=clients,
        summary=summary,
        x=state.x if state else None,
        folder=store.folder,
        client_scores=scores,
        best=state.best if state else {},
        factory=own_model,
    )


def load_result(folder: str | Path) -> Result:
    """Return the result of a run folder, finished or not."""
    with reading(Path(folder)), closing(RunFolder.open(Path(folder), write=False)) as store:
        try:
            state = store.load_state(tables=None)
        except NoState:
            warnings.warn(f"The run {str(folder)!r} has lost its model; only its rows are read.", stacklevel=2)
            return _result(store, store.experiment, store.manifest, None)
        if state is None:
            raise BadInput(
                f"The run {str(folder)!r} has no finished round yet. `fedweave resume {folder}` continues it."
            )
        return _result(store, store.experiment, store.manifest, state)
