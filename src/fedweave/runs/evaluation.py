"""Judge the model after a round: on the common test set, on all clients' training data, on each one's own test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Population, ServerState
from fedweave.core.roles import Scores
from fedweave.round import measures
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
    if e.client_eval is None or not _due(e.client_eval, after, e.rounds):
        return Evaluation(test, measured, {})
    ids = session.tested
    scores = engine.evaluate_clients(after.x, ids)
    measured |= measures.of_clients(scores, session.manifest["task"]["higher_is_better"])
    return Evaluation(test, measured, {"round": np.full(ids.size, after.round), "client": ids, "value": scores})


def _due(every: int, after: ServerState, last: int) -> bool:
    return after.round % every == 0 or after.round == last
