"""Judge the model after a round: on the common test set, on all clients' training data, on each one's own test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Population, ServerState
from fedweave.core.roles import Scores
from fedweave.round import measures
from fedweave.runs.experiment import Experiment
from fedweave.runs.session import Session

COLUMNS = ("accuracy", "loss", "class_accuracy")  # metrics that are columns of every run


class Evaluation(NamedTuple):
    """What was found; empty where nothing was due."""

    test: Scores  # the task's metrics on the common test set; they may still be under way
    measured: dict[str, float]  # the columns that only some runs have, but for those
    clients: Mapping[str, Array]  # rows of the table client_scores


def evaluate(session: Session, after: ServerState, population: Population) -> Evaluation:
    """Evaluate what the experiment wants to know of the model after this round."""
    e, engine, measured = session.experiment, session.engine, dict[str, float]()
    test: Scores = {}
    if _due(e.evaluate_every, after, e.rounds):
        if "test" in e.evaluate:
            test = engine.evaluate_later(after.x)
        if "train" in e.evaluate:
            everyone = np.arange(population.size)
            measured["objective"] = float(population.weight @ engine.losses(after.x, everyone))
        if e.true_gradients:
            surrogate = session.method.aggregator.surrogate(after.aggregator)
            measured |= measures.of_gradients(engine, after.x, population, surrogate)
    found = Evaluation(test, measured, {})
    due = e.client_eval is not None and _due(e.client_eval, after, e.rounds)
    return with_clients(session, after, found) if due else found


def with_clients(session: Session, after: ServerState, found: Evaluation) -> Evaluation:
    """Return an evaluation with the scores of the clients on their own test samples."""
    ids = session.tested
    scores = session.engine.evaluate_clients(after.x, ids)
    measured = found.measured | measures.of_clients(scores, session.manifest["task"]["higher_is_better"])
    rows = {"round": np.full(ids.size, after.round), "client": ids, "value": scores}
    return found._replace(measured=measured, clients=rows)


def ends_with_more(experiment: Experiment, last: int) -> bool:
    """Return whether a run whose last round is this one evaluates more in it than a longer run would."""
    return any(every and last % every for every in (experiment.evaluate_every, experiment.client_eval))


def _due(every: int, after: ServerState, last: int) -> bool:
    return after.round % every == 0 or after.round == last
