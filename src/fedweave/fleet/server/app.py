"""The server's app: an experiment on a real fleet, kept in a run folder and continued from it after a crash."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedweave.core.records import Population, ServerState, State
from fedweave.core.settings import BadInput
from fedweave.data import Dataset
from fedweave.engine.machine import processor, versions
from fedweave.engine.pool.processes import Workers
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.fleet.server.engine import FlowerEngine
from fedweave.fleet.server.pulls import whole_answers
from fedweave.fleet.server.questions import as_known
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import MAX_LENGTH_RATIO, Clock, Terms, refuse_oracle, refuse_pacing
from fedweave.local.client_data import ClientData
from fedweave.local.torch.device import choose_device
from fedweave.pacing import ask_more
from fedweave.round import first_state
from fedweave.round.flights import under_way
from fedweave.round.growth import refuse_unknown
from fedweave.round.rules import Rules
from fedweave.runs.callbacks import Callback, Callbacks, Row, Running, callbacks_of
from fedweave.runs.experiment import Experiment, check_experiment, load_data
from fedweave.runs.factories import model_factory, own_model
from fedweave.runs.loop import extend, go_on, is_over
from fedweave.runs.own_models import first_vector
from fedweave.runs.plain import to_plain
from fedweave.runs.results import Result, score_of
from fedweave.runs.same_run import different, mind_machine, refuse_another, refuse_another_start, refuse_length
from fedweave.runs.session import Session, describe_model, describe_task, nominal_population, refuse_foreign_state
from fedweave.runs.start import started
from fedweave.store.run_folder import RunFolder
from fedweave.system.measured import Measured
from fedweave.tasks import default_for

TERMS = Terms()
CLOCK = Clock()


def server(
    experiment: Experiment | Callable[[Mapping[str, Any]], Experiment],
    *,
    terms: Terms | Callable[[Mapping[str, Any]], Terms] = TERMS,
    out: str | Path | None = None,
) -> ServerApp:
    """Return a ServerApp that runs the experiment on whatever clients are connected.

    The clients' data stays with them: of the experiment's data only the test samples are used, to evaluate, and its
    partition not at all. ``system=fedweave.system.Measured()`` has links and latencies learned from what is seen; any
    other world decides how much clients work. The experiment's ``start`` values are sent as every model is; frozen
    parameters are not sent, so the client's app has to set those itself. With ``out`` everything is kept in that
    folder, and a run that was interrupted goes on where it was; with another number of rounds it is extended.
    ``experiment`` and ``terms`` may be functions of the app's configuration, what ``flwr run -c`` changes; an ``out``
    there counts more than the one here.
    """
    if not callable(experiment):
        check_experiment(experiment)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = dict(context.run_config)
        folder = config.get("out") or out
        what = experiment if isinstance(experiment, Experiment) else experiment(config)
        when = terms if isinstance(terms, Terms) else terms(config)
        result = run(what, whole_answers(grid), when, Path(str(folder)) if folder else None, Say())
        log(INFO, "fedweave: done  accuracy %s  digest %s", result.summary["accuracy"], result.summary["digest"])

    return app


def run(
    experiment: Experiment,
    grid: Grid,
    terms: Terms = TERMS,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    clock: Clock = CLOCK,
) -> Result:
    """Run an experiment on the clients of a grid, or continue it if the folder ``out`` has it already."""
    check_experiment(experiment)
    heard, folder = callbacks_of(callbacks), Path(out) if out else None
    if folder is None or not (folder / "run.sqlite").is_file():
        session = prepare(experiment, grid, terms, clock)
        store = RunFolder.create(folder, to_plain(experiment), session.manifest)
        return go_on(session, store.start(session.start, experiment.tables), store, heard)
    with closing(RunFolder.open(folder)) as store:  # closed also when refused: the next try is not locked out
        return _continued(experiment, grid, terms, store, heard, clock)


def _continued(
    experiment: Experiment, grid: Grid, terms: Terms, store: RunFolder, heard: Sequence[Callback], clock: Clock
) -> Result:
    """Continue a run with the fleet that is there now."""
    stored = store.experiment
    refuse_another(stored, replace(experiment, rounds=stored["rounds"]))
    manifest, state = store.manifest, store.load_state(tables=None)
    store.refuse_broken_log(state.round if state else 0, experiment.audit)
    refuse_length(stored, experiment, state.round if state else 0)
    known = state.fleet if state and state.fleet else {"samples": np.array(manifest.get("samples") or [], np.int64)}
    session = prepare(experiment, grid, terms, clock, known)
    if other := different(manifest["data"], session.manifest["data"]):
        raise BadInput(f"The server's data has changed since this run began: {'; '.join(other)}.")
    refuse_another_start(manifest, session.manifest)
    mind_machine(manifest, session.manifest)
    extend(store, experiment)
    state = store.load_state(experiment.tables)
    store.rewind(state.round if state else 0)
    if state is not None:
        refuse_foreign_state(session, state)
        _recall(session, store)
        if not is_over(store, state):
            _ask_again(session, state)
    state = state or store.start(session.start, experiment.tables)
    return go_on(session._replace(manifest=store.manifest), state, store, heard)


def _refuse_simulated(experiment: Experiment) -> None:
    """Refuse what only the simulator can do."""
    said = {
        "A real fleet does not tell its true gradients: --true-gradients is for the simulator.": (
            experiment.true_gradients
        ),
        "A real fleet does not tell the training loss of all clients: --evaluate train is for the simulator.": (
            "train" in experiment.evaluate
        ),
        "A real fleet does not tell scores on its own test data: --client-eval is for the simulator.": (
            experiment.client_eval is not None
        ),
        "The clients of a real fleet do what they do: --adversary is for the simulator.": experiment.adversary,
        "A real fleet's training data stays with its clients: --validation is for the simulator.": (
            experiment.validation
        ),
        "How many answers a round of a real fleet needs is said by Terms, not by the Experiment.": (
            experiment.min_answers
        ),
        "Sub-models are for the simulator: every client of a real fleet trains the whole model.": experiment.submodels,
    }
    if problems := [sentence for sentence, asked_for in said.items() if asked_for]:
        raise BadInput(*problems)


def prepare(experiment: Experiment, grid: Grid, terms: Terms, clock: Clock, known: State | None = None) -> Session:
    """Wait for the fleet, and set up the experiment on it; ``known`` is what was known of one that was here before."""
    method = experiment.paced_method
    refuse_oracle(method)
    _refuse_simulated(experiment)
    data = load_data(experiment)
    (name, model), own = model_factory(experiment, data), own_model(experiment.model) is not None
    model, start_values = started(model, experiment.start)
    if name == "quadratic" and not own:
        raise BadInput("The quadratic model is solved in closed form, in the simulator only: a fleet needs a network.")
    refuse_pacing(method.pacing, terms)
    task = experiment.task or default_for(data.y)
    x, constants = first_vector(name, model, data, experiment.seed, task)
    roster = Roster(grid, terms, clock, classes=data.classes if method.upload.masks else None)
    if known is not None and known["samples"].size:
        roster.recall(known)
    roster.gather()
    if experiment.weights == "data":
        refuse_unknown(method, roster.samples)
    measured = experiment.system if isinstance(experiment.system, Measured) else None
    device, why = choose_device(experiment.device)
    bench = torch_simulator(model, _test_only(data), method.solver, experiment.seed, Workers(1), device, task=task)
    method = replace(method, sampler=ask_more(method.sampler, terms.over_selection)).widened
    layout, seed = bench.layout, experiment.seed
    engine = FlowerEngine(grid, roster, layout, method, seed, bench.evaluate, terms, measured, clock)

    def base() -> Population:
        size = np.full(roster.size, layout.dim * x.itemsize)
        return replace(nominal_population(experiment, roster.believed()), model_bytes=size, covered=roster.covered)

    def world(round: int) -> Population:
        there = roster.gather()
        now = experiment.system.population(base(), round, seed)
        now = measured.known(now, engine.seen) if measured else now
        return replace(now, available=now.available & there)

    start = as_known(first_state(method, x, base(), layout.parameters))
    manifest = {
        "engine": "flower",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "data": data.facts,
        "model": describe_model(name, layout, constants if own else data),
        "start": start_values,
        "task": describe_task(task),
        "device": f"{why}, {roster.size} clients over Flower",
        "processor": processor(),  # the server's: nodes do not tell theirs
        "trainer": "TorchTrainer on Flower nodes",
        "labels": None,
        "samples": roster.samples.tolist(),
        "terms": {f.name: getattr(terms, f.name) for f in dataclasses.fields(terms)},
    }
    return Session(
        experiment=experiment,
        engine=engine,
        base=base(),
        start=start,
        manifest=manifest,
        world=world,
        method=method,
        rules=_rules(experiment),
        tested=np.zeros(0, int),
        every_round=True,
        fleet=roster.fleet,
        learn=engine.learn,
        own_model=model if own else None,
    )


def _rules(experiment: Experiment) -> Rules:
    """Return the rules of a fleet's rounds: an experiment that has the simulator's limit for lengths gets a fleet's."""
    rules, simulated = experiment.rules, Experiment.__dataclass_fields__["max_length_ratio"].default
    same = rules.max_length_ratio == simulated
    return rules._replace(max_length_ratio=MAX_LENGTH_RATIO if same else rules.max_length_ratio, remember_lengths=True)


def _test_only(data: Dataset) -> ClientData:
    """Return what a server needs of a data set: its test samples, and one of training for its shape."""
    return ClientData.of(data.take(np.arange(1)), [])


def _recall(session: Session, store: RunFolder) -> None:
    """Learn again from the rows what was seen of the clients before the interruption."""
    engine, measured = session.engine, session.experiment.system
    if not isinstance(engine, FlowerEngine) or not isinstance(measured, Measured):
        return
    rows = store.columns("clients")
    for r in np.unique(rows["round"]):
        columns = (rows[c][rows["round"] == r] for c in ("client", "received", "seconds", "bytes_up"))
        engine.seen = measured.visited(engine.seen, *columns)


def _ask_again(session: Session, state: ServerState) -> None:
    """Ask those again who were under way when the server stopped: what they answered it is gone with it."""
    engine, method = session.engine, session.method
    if isinstance(engine, FlowerEngine) and method.pacing.overlaps:
        engine.resume(state.clock, under_way(method, state, session.base, engine, session.experiment.seed))


class Say(Callback):
    """Writes a line per round to the log that ``flwr run --stream`` shows."""

    def round(self, run: Running, row: Row, state: ServerState) -> None:
        """Write the line."""
        score, total = score_of(row, run.experiment.task), run.experiment.rounds
        heard = f"{row['received']} of {row['asked']} answered"
        refused = f", {row['refused']} refused" if row["refused"] else ""
        log(INFO, "fedweave: %s round %s/%s  %s  %s%s", run.name, row["round"], total, score, heard, refused)
