"""An experiment made ready to run: data read and dealt out, model and world fitted to them, nothing trained yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from fedweave.core import plugins
from fedweave.core.flights import flights_of
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Layout, Population, ServerState, State
from fedweave.core.returned import read_only_error
from fedweave.core.roles import Engine
from fedweave.core.settings import BadInput, is_foreign, shown
from fedweave.core.spec import describe
from fedweave.data import Dataset
from fedweave.data.deal import Shares, covered, label_counts
from fedweave.data.partition import Auto, Natural
from fedweave.data.ragged import Ragged
from fedweave.engine.machine import processor, versions
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.simulator import Simulator
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.adversaries import with_adversary
from fedweave.local.client_data import ClientData
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.local.torch.device import choose_device
from fedweave.method import Method
from fedweave.round import Round, first_state
from fedweave.round.calibration import calibrated_lr
from fedweave.round.plan import view_of
from fedweave.round.read_only import read_only_record
from fedweave.round.rules import Rules
from fedweave.runs.experiment import Experiment, load_data
from fedweave.runs.factories import model_factory, own_model, submodel_factories
from fedweave.runs.own_models import first_vector
from fedweave.runs.own_parts import check_population, check_shares
from fedweave.runs.plain import to_plain
from fedweave.runs.start import started
from fedweave.store.states import misfit
from fedweave.system.worlds import steps_of
from fedweave.tasks import Task, default_for

MOST_LISTED = 10_000  # clients whose labels a manifest lists: no page shows more


class Session(NamedTuple):
    """An experiment made ready: data read, parts fitted, workers not yet started."""

    experiment: Experiment
    engine: Engine
    base: Population
    start: ServerState
    manifest: dict[str, Any]
    world: Callable[[int], Population]  # the clients as they are in a round
    method: Method  # the experiment's, which may ask more than it needs
    rules: Rules
    tested: Array  # (k,) the clients that have test samples of their own
    every_round: bool = False  # whether a round is too expensive to repeat: its state is saved at once
    fleet: Callable[[], State] = dict  # what to keep of a real fleet beside the state
    learn: Callable[[Round], None] | None = None  # takes in what a finished round tells of a real fleet
    own_model: Callable[..., Any] | None = None  # makes the model, with its start values, if it is none of the library


def prepare(experiment: Experiment, workers: Pool, command: str | None = None) -> Session:
    """Check everything that can be checked before training, and set it up."""
    data = load_data(experiment)
    task = experiment.task or default_for(data.y)
    if experiment.target is not None and task.primary == "accuracy" and not 0 <= experiment.target <= 1:
        raise BadInput(f"The target is a test accuracy, from 0 to 1. Got {experiment.target:g}.")
    method, partition = experiment.paced_method.widened, experiment.partition
    shares = partition.split(data, rng_for(experiment.seed, 0, Stream.PARTITION))
    shares = check_shares(shares, partition, data)
    (name, model), own = model_factory(experiment, data), own_model(experiment.model) is not None
    model, start_values = started(model, experiment.start)
    x, constants = first_vector(name, model, data, experiment.seed, task)
    base = nominal_population(experiment, Ragged.of(shares.train).sizes)
    test_samples = _test_samples(experiment, shares)
    device, why = choose_device(experiment.device, experiment.pool)
    solver, upload, seed = method.solver, method.upload, experiment.seed
    poisoned = experiment.adversary.poison(data, shares.train, seed) if experiment.adversary else data
    if (
        name == "quadratic" and not own
    ):  # known in closed form, so clients need no training: a thousand times as fast, and exact
        optimum = Ragged.of(shares.train).means(poisoned.x)
        trainer = QuadraticTrainer(Quadratics(optimum), solver, seed, base.weight)
        engine = Simulator(with_adversary(trainer, experiment.adversary, base.size), upload)
        x = x.astype(float)
    else:
        client_data = ClientData.of(poisoned, shares.train, shares.test if experiment.client_eval else ())
        parts = submodel_factories(experiment, model, data)
        skip = experiment.failures == "skip"
        engine = torch_simulator(
            model,
            client_data,
            solver,
            seed,
            workers,
            device,
            upload,
            parts,
            skip,
            task,
            experiment.adversary,
            experiment.roll,
        )
        workers.join()
    size = engine.models.sizes(np.arange(base.size))
    coverage = None if data.labels is None else covered(data, shares.train)
    base, foreign = read_only_record(replace(base, model_bytes=size, covered=coverage)), is_foreign(experiment.system)

    def world(round: int) -> Population:
        try:
            population = experiment.system.population(base, round, seed)
            return check_population(population, experiment.system, base) if round == 1 or foreign else population
        except Exception as error:
            if sentence := read_only_error(error, experiment.system):
                raise sentence from error
            raise

    first = world(1)  # a world that does not fit these clients says so now
    plain = to_plain(experiment)
    manifest = {
        "command": command,
        "experiment": plain,  # again: experiment.json is easily edited
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "plugins": plugins.fingerprints(plain),
        "data": data.facts,
        "model": {
            **describe_model(name, engine.layout, constants if own else data),
            "fleet_bytes": int(size.sum()),  # of all clients' models
        },
        "start": start_values,
        "task": describe_task(engine.trainer.task),
        "device": f"{why}, {workers}",
        "processor": processor(),
        "trainer": trainer_name(engine, why if device == "cuda" else device),  # a GPU by its name
        "partition": shown(partition.chosen(data) if isinstance(partition, Auto) else partition, 200),
        "clients": base.size,
        "labels": None if data.labels is None or base.size > MOST_LISTED else label_counts(data, shares.train).tolist(),
        "samples": None if base.size > MOST_LISTED else base.samples.tolist(),
        **({"test_samples": test_samples.tolist()} if experiment.client_eval else {}),
        **_names(experiment, data, shares),
    }
    start = first_state(method, x, base, engine.layout.parameters)
    if experiment.calibrate:  # a method whose step length nobody knows says so now
        calibrated_lr(method, start, view_of(method, start, first, engine, experiment.lr_at(1)))
    return Session(
        experiment=experiment,
        engine=engine,
        base=base,
        start=start,
        manifest=manifest,
        world=world,
        method=method,
        rules=experiment.rules,
        tested=np.flatnonzero(test_samples),
        own_model=model if own else None,
    )


def _names(experiment: Experiment, data: Dataset, shares: Shares) -> dict[str, list[str]]:
    """Return the names of the natural clients and of the classes, as far as the data has them."""
    found = {"class_names": list(data.class_names)} if data.class_names else {}
    natural = isinstance(experiment.partition, Natural | Auto) and len(shares.train) <= MOST_LISTED
    if data.client_names and data.group is not None and natural:
        found["client_names"] = [data.client_names[data.group[rows[0]]] for rows in shares.train]
    return found


def _test_samples(experiment: Experiment, shares: Shares) -> Array:
    """Return how many test samples each client has of its own; nothing where nobody asks."""
    if not experiment.client_eval:
        return np.zeros(0, np.int64)
    found = Ragged.of(shares.test).sizes
    if not found.any():
        raise BadInput(
            f"{type(experiment.partition).__name__} deals no test samples, so no client has test samples of its own: "
            "leave --client-eval out, or deal some."
        )
    return found


def describe_model(name: str, layout: Layout, of: Dataset | str) -> dict[str, Any]:
    """Return what is needed to take the model out of a run.

    ``of`` is the data that a model of the library was built for, or the digest of another model's constants.
    """
    found = {
        "name": name,
        "parameters": layout.parameters,
        "dim": layout.dim,
        "names": list(layout.names),
        "shapes": [list(shape) for shape in layout.shapes],
    }
    if isinstance(of, str):
        return found | {"constants": of}
    keys = ("shape", "classes", "tokens", "each", "outputs")
    return found | {"sample": dict(zip(keys, describe(of.sample), strict=True))}


def describe_task(task: Task) -> dict[str, Any]:
    """Return what a reader of a run's rows must know of its task."""
    return {"name": task.name, "primary": task.primary, "higher_is_better": task.higher_is_better}


def refuse_foreign_state(session: Session, state: ServerState) -> None:
    """Refuse a stored state that cannot be one of this experiment; the states of own parts may change their shapes."""
    names = zip(("sampler", "aggregator", "server", "upload"), session.method.stateful, strict=True)
    parts = {name for name, part in names if not is_foreign(part)}
    counted = {name: np.zeros(session.base.size) for name in ("refused", "length") if name in state.refusals}
    start, under_way = session.start._replace(refusals=counted), flights_of(state.flights)
    if start.flights:  # any number may be under way
        start = start._replace(flights={**start.flights, **under_way._asdict()})
    if other := misfit(state, start, {"clients", "refusals", "flights", *parts}):
        raise BadInput(f"The state of round {state.round} is not of this experiment: {other} has another shape.")
    if under_way.client.max(initial=0) >= session.base.size:
        raise BadInput(f"The state of round {state.round} is not of this experiment: it has more clients under way.")


def nominal_population(experiment: Experiment, samples: Array) -> Population:
    """Return the clients as the experiment states them, before the world changes them."""
    n = samples.size
    batch_size = np.minimum(experiment.batch_size, samples)
    epochs = np.full(n, experiment.epochs or 1.0)
    steps = np.full(n, experiment.steps) if experiment.steps else steps_of(epochs, samples, batch_size)
    weight = samples / samples.sum() if experiment.weights == "data" else np.full(n, 1 / n)
    return Population(
        weight=weight,
        samples=samples,
        steps=steps,
        batch_size=batch_size,
        loss_rate=np.zeros(n),
        latency=np.ones(n),
        available=np.ones(n, bool),
    )


def trainer_name(engine: Simulator, device: str) -> str:
    """Return what trains and where; quadratics are solved without a device."""
    name = engine.trainer.name
    return name if name == QuadraticTrainer.name else f"{name} on {device}"
