"""Answers that come twice, late in the next round's mail and in any order: the bits of a clean run."""

import weakref

import numpy as np
import pytest
from flwr.app import ArrayRecord

import fedweave as fw
from fedweave import flower
from fedweave.engine.simulator import Simulator
from fedweave.fleet.server import mail
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import packed
from fedweave.tables import spool
from flower.plain_app import N, initial, plain
from flower.rehearsal import BAD, CLIENTS, SlowGrid, Tampered, app, asked_in, experiment, reasons, run


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


@pytest.fixture
def spooled(monkeypatch):
    """Answers lie in a file, however small, and are pulled one at a time."""
    monkeypatch.setattr(spool, "LARGE", 0)
    monkeypatch.setattr(mail, "PULLED", 1)


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.scaffold, fw.methods.feddd])
def test_spooled_answers_in_any_order_are_the_clean_run(method, tmp_path, request):
    same = experiment(method(4), rounds=4, audit=True)
    clean = run(same, flower.LocalGrid(app(), CLIENTS, fate=fate), out=tmp_path / "clean")
    request.getfixturevalue("spooled")
    for seed in range(2):
        clock, folder = VirtualClock(), tmp_path / f"{seed}"
        found = run(same, Unruly(clock, seed, app(), CLIENTS, fate=fate), Terms(poll_seconds=1), clock, out=folder)
        assert found.summary["digest"] == clean.summary["digest"]
        assert reasons(folder) == reasons(tmp_path / "clean")
        assert (folder / "audit.jsonl").read_text() == (tmp_path / "clean" / "audit.jsonl").read_text()


class Late(flower.LocalGrid):
    """A fleet that makes an answer when it is pulled, as if it came then; how many are alive is counted."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._todo, self._made, self.most = {}, [], 0

    def push_messages(self, messages):
        names = []
        for message in messages:
            names.append(f"m{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self._todo[names[-1]] = message
        return names

    def pull_messages(self, message_ids):
        todo = [self._todo.pop(name) for name in message_ids if name in self._todo]
        came = [self._answered(message, message.metadata.dst_node_id) for message in todo]
        records = [record for reply in came for record in reply.content.values() if isinstance(record, ArrayRecord)]
        self._made += [weakref.ref(array) for record in records for array in list(record.values())[:1]]
        self.most = max(self.most, sum(array() is not None for array in self._made))
        return came


def test_only_a_few_answers_are_in_memory_at_a_time(spooled):
    grid = Late(app(), CLIENTS)
    run(experiment(fw.methods.fedavg(CLIENTS), rounds=2), grid)
    assert grid.most <= 2, "the one that came, and perhaps the one before"
    grid = Late(plain(), N)
    flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()).start(grid, initial(), num_rounds=2)
    assert grid.most <= 2


@pytest.mark.parametrize("value", [np.nan, 1e6])
def test_a_spooled_answer_is_refused_as_any_other(value, tmp_path, request):
    def bad(message, context):
        answer = app()(message, context)
        if asked_in(message):
            content = answer.content
            (name, first), *_ = content["update"].items()
            content["update"][name] = packed(np.full(first.shape, value, np.float32))
            sealed(content, asked_in(message), BAD)
        return answer

    same, found = experiment(fw.methods.fedavg(CLIENTS), rounds=2), []
    for folder in ("memory", "file"):
        found.append(run(same, Tampered(bad), out=tmp_path / folder).summary["digest"])
        assert sum(f"client {BAD}" in why for _, why in reasons(tmp_path / folder)) == 2
        request.getfixturevalue("spooled")
    assert found[0] == found[1]
    assert reasons(tmp_path / "memory") == reasons(tmp_path / "file")


@pytest.mark.parametrize("spool_them", [False, True])
@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.fedacs])
def test_a_strategy_takes_each_answer_once(method, spool_them, request):
    found = []
    for seed in (None, 0, 1):
        clock = VirtualClock()
        fleet = flower.LocalGrid(plain(), N) if seed is None else Unruly(clock, seed, plain(), N)
        terms = Terms(poll_seconds=1)
        strategy = flower.Strategy(method(3), clock=clock, terms=terms)
        if spool_them and seed is not None:
            request.getfixturevalue("spooled")
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
