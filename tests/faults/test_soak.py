"""Thousands of rounds in which a tenth of the clients sends rubbish and links lose what they please."""

import gc

import numpy as np
import psutil
import pytest
from fleet import THOROUGH, WORLD

import fedweave as fw
from fedweave.engine.quadratic import QuadraticEngine
from fedweave.options import experiments_of
from fedweave.records import Trouble

ROUNDS = 20_000 if THOROUGH else 2_000
BAD = np.array([3, 11])  # of 20 clients
HONEST = QuadraticEngine.train


def with_rubbish(self, round, x, cohort, population, lr, *has):
    """As the engine does it, but the bad clients' answers are spoilt, each round in another way."""
    replies = HONEST(self, round, x, cohort, population, lr, *has)
    bad = np.isin(cohort.ids, BAD) & replies.received
    updates = replies.updates.copy()
    updates[bad, round % x.size] = [np.nan, np.inf, -np.inf][round % 3]
    return replies._replace(updates=updates)


def with_nothing(self, round, x, cohort, population, lr, *has):
    """The same, but nothing is heard of the bad clients at all."""
    replies = HONEST(self, round, x, cohort, population, lr, *has)
    good = ~np.isin(cohort.ids, BAD)
    updates = np.where(good[:, None], replies.updates, 0)
    change = None if replies.change is None else np.where(good[:, None], replies.change, 0)
    got = replies._replace(received=replies.received & good, updates=updates, change=change)
    only_bad = replies.received.any() and not got.received.any()  # such a round is abandoned: nothing is learned of it
    return got._replace(trouble=Trouble(abandoned="the bad ones alone answered")) if only_bad else got


@pytest.mark.parametrize("method", ["fedacs_estimated", "fedvarp", "scaffold"])
def test_bad_clients_change_nothing_and_nothing_piles_up(method, tmp_path, monkeypatch):
    world = {**WORLD, "clients": "20", "per_round": "6", "rounds": str(ROUNDS), "evaluate_every": "50"}
    (experiment,), _ = experiments_of([method], world)
    grown, process = [], psutil.Process()

    def watch(name, experiment):
        def told(row):
            if row["round"] in (ROUNDS // 4, ROUNDS):
                gc.collect()
                grown.append(process.memory_info().rss)

        return told

    monkeypatch.setattr(QuadraticEngine, "train", with_rubbish)
    spoilt = fw.run(experiment, tmp_path / "run", watch)
    monkeypatch.setattr(QuadraticEngine, "train", with_nothing)
    clean = fw.run(experiment)
    assert spoilt.summary["digest"] == clean.summary["digest"]
    assert spoilt.rounds["refused"].sum() > ROUNDS / 10
    assert spoilt.rounds["round"].tolist() == list(range(1, ROUNDS + 1))
    assert np.isfinite(spoilt.x).all()
    slope = (grown[1] - grown[0]) / (ROUNDS * 3 / 4) * 1000
    assert slope < (1 if THOROUGH else 4) * 2**20, f"{slope / 2**20:.2f} MB per 1,000 rounds"
