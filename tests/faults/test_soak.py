"""Thousands of rounds in which a tenth of the clients sends rubbish and links lose what they please."""

import gc
import logging
from collections import Counter, deque

import numpy as np
import psutil
import pytest
from fleet import THOROUGH, WORLD
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedweave as fw
from fedweave import flower
from fedweave.cli.options import experiments_of
from fedweave.core.records import Failures
from fedweave.engine.simulator import Simulator
from fedweave.fleet.server.terms import VirtualClock
from fedweave.fleet.wire.tensors import packed

ROUNDS = 20_000 if THOROUGH else 1_000
BAD = np.array([3, 11])  # of 20 clients
HONEST = Simulator.train


def with_rubbish(self, assignment):
    """As the engine does it, but the bad clients' answers are spoilt, each round in another way."""
    replies = HONEST(self, assignment)
    bad = np.isin(assignment.cohort.ids, BAD) & replies.received
    updates = replies.updates.copy()
    updates[bad, assignment.round % assignment.x.size] = [np.nan, np.inf, -np.inf][assignment.round % 3]
    return replies._replace(updates=updates)


def with_nothing(self, assignment):
    """The same, but nothing is received of the bad clients at all."""
    replies = HONEST(self, assignment)
    got = replies.keep_only(~np.isin(assignment.cohort.ids, BAD))
    only_bad = replies.received.any() and not got.received.any()  # such a round is abandoned: nothing is learned of it
    return got._replace(failures=Failures(abandoned="the bad ones alone answered")) if only_bad else got


@pytest.mark.parametrize("method", ["fedacs_estimated", "fedvarp", "scaffold"])
def test_bad_clients_change_nothing_and_nothing_piles_up(method, tmp_path, monkeypatch):
    world = {**WORLD, "clients": "20", "per_round": "6", "rounds": str(ROUNDS), "evaluate_every": "50"}
    (experiment,), _ = experiments_of([method], world)
    grown, held, process = [], [], psutil.Process()

    def watch(row):
        if row["round"] in (ROUNDS // 4, ROUNDS):
            gc.collect()
            grown.append(process.memory_info().rss)
            held.append((process.num_fds(), process.num_threads()))

    monkeypatch.setattr(Simulator, "train", with_rubbish)
    spoilt = fw.run(experiment, tmp_path / "run", watch)
    monkeypatch.setattr(Simulator, "train", with_nothing)
    clean = fw.run(experiment)
    assert spoilt.summary["digest"] == clean.summary["digest"]
    assert spoilt.rounds["refused"].sum() > ROUNDS / 10
    assert spoilt.rounds["round"].tolist() == list(range(1, ROUNDS + 1))
    assert np.isfinite(spoilt.x).all()
    (handles, threads), (still, also) = held
    assert still <= handles + 1, "the first save may come after the first look, and opens the file of a table"
    assert also == threads
    slope = (grown[1] - grown[0]) / (ROUNDS * 3 / 4) * 1000
    assert slope < (1 if THOROUGH else 4) * 2**20, f"{slope / 2**20:.2f} MB per 1,000 rounds"


FLEET, SICK = 10, 3  # clients, and the one that sends rubbish
MODEL = ArrayRecord(
    {"w": packed(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)), "b": packed(np.zeros(3, np.float32))}
)


def client_app(message, context):
    """Move every value a little, by who and when: an app of somebody else, as quick as can be."""
    client, r = context.node_config["partition-id"], int(message.metadata.group_id)
    moved = {
        n: packed(0.9 * a.numpy() + np.float32(0.01 * ((client + 3 * r) % 7)))
        for n, a in message.content["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 10 + client})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


class BadWeather(flower.LocalGrid):
    """Answers are lost, come twice, come again rounds later, and in any order; the sick client's are rubbish."""

    def __init__(self, sick):
        super().__init__(ClientApp(), FLEET)
        self._sick, self._rng, self._again = sick, np.random.default_rng(0), deque(maxlen=8)
        self.counts = Counter()

    def _answered(self, message, node):
        client, r = self.nodes.index(node), int(message.metadata.group_id)
        if (7 * client + 3 * r) % 11 == 0:
            self.counts["lost"] += 1
            return None
        answer = client_app(message, self._contexts[node])
        if client == SICK:
            if not self._sick:
                return None
            self.counts["bad"] += 1
            bad = [
                np.full(3, np.nan, np.float32),
                np.zeros(1, np.float32),
                np.zeros(3, int),
                np.full(3, 1e30, np.float32),
            ][r % 4]
            answer.content["arrays"]["b"] = packed(bad)
        return answer

    def pull_messages(self, message_ids):
        came = list(super().pull_messages(message_ids))
        mail = [*came, *came, *self._again]
        self.counts["doubled"] += len(came) + len(self._again)
        self._again.extend(came)
        return [mail[i] for i in self._rng.permutation(len(mail))]


def test_a_fleet_in_bad_weather_changes_nothing_and_nothing_piles_up():
    """Lost, doubled, reordered and bad answers over the wire: the model is that of a fleet without the sick client."""
    rounds = 2_000 if THOROUGH else 300
    found, process = [], psutil.Process()
    for sick in (False, True):
        grid, seen = BadWeather(sick), []

        def watch(r, arrays, seen=seen):
            if r in (rounds // 4, rounds):
                gc.collect()
                seen.append((process.memory_info().rss, process.num_fds(), process.num_threads()))

        terms = flower.Terms(answer_seconds=1, min_answers=0)
        method = fw.methods.fedavgm(5)
        strategy = flower.Strategy(method, terms=terms, clock=VirtualClock(), fraction_evaluate=0)
        logging.disable()
        try:
            found.append(strategy.start(grid, MODEL, num_rounds=rounds, evaluate_fn=watch))
        finally:
            logging.disable(logging.NOTSET)
    clean, spoilt = ({n: a.data for n, a in result.arrays.items()} for result in found)
    assert spoilt == clean
    assert min(grid.counts[kind] for kind in ("lost", "bad", "doubled")) > rounds / 10
    told = found[1].train_metrics_clientapp
    assert list(told) == list(range(1, rounds + 1))
    of_all = [sum(m["refused"] for m in result.train_metrics_clientapp.values()) for result in found]
    assert of_all[1] - of_all[0] == grid.counts["bad"], "a good one may be refused too: far longer than the median"
    (before, *handles), (after, *still) = seen
    assert still == handles, "handles and threads"
    slope = (after - before) / (rounds * 3 / 4) * 1000
    assert slope < (1 if THOROUGH else 8) * 2**20, f"{slope / 2**20:.2f} MB per 1,000 rounds"
