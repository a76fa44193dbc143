"""Answers that come twice, late in the next round's mail and in any order: the bits of a clean run."""

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.engine.simulator import Simulator
from fedweave.fleet.server.terms import Terms, VirtualClock
from flower.plain_app import N, initial, plain
from flower.rehearsal import CLIENTS, SlowGrid, app, asked_in, experiment, reasons, run


class Unruly(SlowGrid):
    """A fleet whose answers take random times; each comes twice at once, and again with whatever comes later."""

    def __init__(self, clock, seed, *args, **kwargs):
        self._rng, self._past, self.doubled = np.random.default_rng(seed), [], 0
        super().__init__(clock, lambda client: float(self._rng.uniform(0, 9)), *args, **kwargs)

    def pull_messages(self, message_ids):
        came = list(super().pull_messages(message_ids))
        mail = [*came, *came, *self._past]
        self.doubled += len(came) + len(self._past)
        self._past = [*self._past[-20:], *came]
        return [mail[i] for i in self._rng.permutation(len(mail))]


def fate(client, message):
    """Lose some answers, always the same ones."""
    return "raises" if asked_in(message) and (asked_in(message) + client) % 4 == 0 else ""


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.scaffold, fw.methods.fedaware, fw.methods.feddd])
def test_doubled_and_reordered_answers_are_the_clean_run(method, tmp_path):
    same = experiment(method(4), rounds=4)
    clean = run(same, flower.LocalGrid(app(), CLIENTS, fate=fate))
    for seed in range(2):
        clock = VirtualClock()
        fleet = Unruly(clock, seed, app(), CLIENTS, fate=fate)
        found = run(same, fleet, Terms(poll_seconds=1), clock, out=tmp_path / f"{seed}")
        assert found.summary["digest"] == clean.summary["digest"]
        for column in ("round", "client", "received", "steps", "loss", "bytes_up"):
            assert np.array_equal(found.clients[column], clean.clients[column], equal_nan=True), column
        assert fleet.doubled > 40
        assert not [why for _, why in reasons(tmp_path / f"{seed}") if "app failed" not in why]


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.fedacs])
def test_a_strategy_takes_each_answer_once(method):
    found = []
    for seed in (None, 0, 1):
        clock = VirtualClock()
        fleet = flower.LocalGrid(plain(), N) if seed is None else Unruly(clock, seed, plain(), N)
        terms = Terms(poll_seconds=1)
        strategy = flower.Strategy(method(3), clock=clock, terms=terms)
        found.append(strategy.start(fleet, initial(), num_rounds=4))
    for other in found[1:]:
        assert {n: a.data for n, a in other.arrays.items()} == {n: a.data for n, a in found[0].arrays.items()}
        assert dict(other.train_metrics_clientapp) == dict(found[0].train_metrics_clientapp)


def test_the_simulator_does_not_care_whose_result_comes_first(tiny, monkeypatch):
    """Workers answer when they are done; here in a random order, one piece per client."""
    clean, real, rng = fw.run(tiny(fw.methods.scaffold(5))), Simulator._each, np.random.default_rng(0)
    orders = []

    def shuffled(self, x, calls):
        done = list(real(self, x, calls))
        order = rng.permutation(len(done))
        orders.append(order.tolist())
        yield from (done[i] for i in order)

    monkeypatch.setattr(Simulator, "_each", shuffled)
    monkeypatch.setattr(
        "fedweave.local.torch.trainer.TorchTrainer.pieces",
        lambda self, jobs: list(np.arange(jobs.client.size)[:, None]),
    )
    found = fw.run(tiny(fw.methods.scaffold(5)))
    assert any(order != sorted(order) for order in orders)
    assert found.rounds["received"].tolist() == clean.rounds["received"].tolist()
    assert found.summary["digest"] == clean.summary["digest"], "clients alone and in company"
