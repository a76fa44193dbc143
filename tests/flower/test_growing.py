"""Fleets that grow, lose nodes and get them back: asked are those who are there, as in a replay in the simulator."""

import logging

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.app import prepare
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.round import run_round
from flower.plain_app import SAMPLES, N, initial, plain, pull
from flower.rehearsal import CLIENTS, Growing, Replay, app, asked_in, experiment, network, reasons, run, share
from round.test_growth import Diary

DAYS = ["110000", "110000", "111111", "111111", "111111", "011010", "111111", "111111"]
KILLED, IN_ROUND = {0, 3, 5}, 5  # while they train; the round after it they are away


def fate(client, message):
    return "dead" if asked_in(message) == IN_ROUND and client in KILLED else ""


def terms():
    return Terms(clients=CLIENTS, connected=2)


def fleet():
    return Growing(app(), CLIENTS, DAYS, fate=fate)


@pytest.mark.parametrize("method", [fw.methods.fedavg, fw.methods.fedacs_estimated, fw.methods.mifa, fw.methods.fedau])
def test_a_fleet_that_grows_and_loses_nodes_is_its_replay_in_the_simulator(method, tmp_path, caplog):
    """2 nodes, then 6, of whom 3 are killed in round 5 and come back: the same model, cohorts and bookings."""
    grid, same = fleet(), experiment(method(4), rounds=len(DAYS))
    with caplog.at_level(logging.INFO):
        found = run(same, grid, terms(), out=tmp_path / "run", callbacks=grid.day_over)
    there = np.array([[c == "1" for c in day] for day in DAYS])
    seen, samples = np.logical_or.accumulate(there), np.array([len(share(c).x) for c in range(CLIENTS)])
    lost = [sorted(KILLED) if r == IN_ROUND else [] for r in range(1, len(DAYS) + 1)]
    world = Replay(there.tolist(), np.where(seen, samples, 0).tolist(), lost)
    replayed = fw.run(experiment(method(4), rounds=len(DAYS), system=world))
    assert found.summary["digest"] == replayed.summary["digest"]
    for column in ("round", "client", "count", "expected", "received"):
        assert np.array_equal(found.clients[column], replayed.clients[column], equal_nan=True), column
    assert there[found.clients["round"] - 1, found.clients["client"]].all(), "drawn from those who were there"
    asked = [found.clients["client"][found.clients["round"] == r].tolist() for r in range(1, len(DAYS) + 1)]
    assert max(map(len, asked[:2])) <= 2 < len(asked[2]), "more when more have come"
    booked = {(IN_ROUND, f"client {c}: its node is gone") for c in KILLED & set(asked[IN_ROUND - 1])}
    assert set(reasons(tmp_path / "run")) == booked != set()
    for client in KILLED & set(asked[IN_ROUND - 1]):
        assert f"client {client} (node {grid.nodes[client]}, partition-id={client}): its node is gone" in caplog.text


def test_a_server_that_stops_while_its_fleet_grows_goes_on_to_the_same_bits(tmp_path):
    same = experiment(fw.methods.fedacs_estimated(4), rounds=len(DAYS), system=fw.system.Measured())
    whole = fleet()
    expected = run(same, whole, terms(), callbacks=whole.day_over)
    grid = fleet()
    for stop in (3, 6, None):

        def told(row, stop=stop):
            grid.day_over(row)
            if row["round"] == stop:
                raise KeyboardInterrupt

        if stop:
            with pytest.raises(fw.Interrupted):
                run(same, grid, terms(), out=tmp_path / "run", callbacks=told)
            grid.forget()
    resumed = run(same, grid, terms(), out=tmp_path / "run", callbacks=told)
    assert resumed.summary["digest"] == expected.summary["digest"]
    assert resumed.clients["client"].tolist() == expected.clients["client"].tolist()


def test_rounds_that_overlap_ask_newcomers_too(tmp_path):
    grid, same = Growing(app(), CLIENTS, DAYS), experiment(fw.methods.fedbuff(4, buffer=2), rounds=len(DAYS))
    found = run(same, grid, terms(), callbacks=grid.day_over)
    asked = found.clients["client"][found.clients["received"] == 1]
    assert set(asked) == set(range(CLIENTS))
    assert set(found.clients["client"][found.clients["round"] <= 2]) <= {0, 1}


def test_sums_by_weight_wait_for_the_whole_fleet():
    grid = Growing(app(), CLIENTS, DAYS)
    with pytest.raises(fw.BadInput, match="PushPull keeps a sum over all clients by their weights"):
        run(experiment(fw.methods.focus(4), rounds=2), grid, terms())
    with pytest.raises(fw.BadInput, match="Cached keeps a sum"):
        plain_run(fw.Method(fw.sample.Uniform(2), aggregator=fw.aggregate.Cached()), ["11111"])


# An app that does not say who its clients are, in Flower's own loop

COMING = ["10100", "10100", "11100", "11111", "01111", "11111"]


class Daily(Growing):
    """The next day comes when everybody was asked to evaluate."""

    def push_messages(self, messages):
        messages = list(messages)
        names = super().push_messages(messages)
        if messages and messages[0].metadata.message_type == "evaluate" and self.round < len(self._days):
            self.come()
        return names


def plain_run(method, days, seen=None, **options):
    grid = Daily(plain(seen), N, days)
    strategy = flower.Strategy(method, clock=VirtualClock(), **options)
    return strategy.start(grid, initial(), num_rounds=len(days)), strategy, grid


def test_fedavg_with_more_per_round_than_nodes_asks_all_who_are_there():
    """By hand: each round moves by the mean of those who are there, weighed by their samples."""
    seen = []
    result, strategy, _ = plain_run(fw.methods.fedavg(10), COMING, seen)
    x = 0.0
    for r, day in enumerate(COMING, 1):
        there = np.array([c == "1" for c in day])
        x += SAMPLES[there] @ np.array([pull(c) for c in range(N)])[there] / SAMPLES[there].sum()
        assert sorted(c for c, config in seen if config["server-round"] == r) == np.flatnonzero(there).tolist()
        assert result.train_metrics_clientapp[r]["asked"] == there.sum()
    assert result.arrays["b"].numpy() == pytest.approx(x, rel=1e-6)
    assert strategy._places.size == N


def test_a_step_is_as_long_as_those_who_have_come_make_it():
    """By hand: ω u over all who are there, of whom each is surely asked, is their mean."""
    result, _, _ = plain_run(fw.methods.fedavg_us(10), ["10100"])
    assert result.arrays["b"].numpy() == pytest.approx(10 / 40 * pull(0) + 30 / 40 * pull(2), rel=1e-6)
    with pytest.raises(fw.BadInput, match="asks for more clients than there are: 3"):
        plain_run(fw.methods.fedavg(10), ["11100"], clients=3)


def test_fedacs_with_two_early_nodes_asks_more_when_more_come():
    seen = []
    _, strategy, grid = plain_run(fw.methods.fedacs(2), ["10100"] * 3 + ["11111"] * 12, seen)
    early = {c for c, config in seen if config["server-round"] <= 3}
    assert early <= {0, 2}
    assert {c for c, _ in seen} == set(range(N))
    assert strategy._places.size == N, "as many as came"
    place = {node: client for client, node in strategy._places.node.items()}
    weight = strategy._known.population(np.ones(N, bool)).weight[[place[node] for node in grid.nodes]]
    assert weight == pytest.approx(SAMPLES / SAMPLES.sum()), "renewed"


@pytest.mark.parametrize("method", [fw.methods.mifa, fw.methods.fedpracis, fw.methods.fedaware, fw.methods.oort])
def test_methods_with_a_state_for_each_client_grow_too(method):
    result, strategy, _ = plain_run(method(2), COMING)
    assert strategy._places.size == N
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert result.train_metrics_clientapp[4]["received"] >= 1


def test_a_method_that_cannot_grow_says_so_once_and_goes_on(caplog):
    seen = []
    with caplog.at_level(logging.WARNING):
        plain_run(fw.Method(fw.sample.Fixed((0.5, 0.5), 2)), ["10100"] * 2 + ["11111"] * 4, seen)
    assert {c for c, _ in seen} == {0, 2}
    assert caplog.text.count("the fleet stays as large as it is, 2 clients: Fixed has 2 probabilities, but there") == 1


def test_a_stated_size_is_kept_and_min_available_waits():
    clock, grid = VirtualClock(), flower.LocalGrid(plain(), N)
    places = Places(grid, Terms(start_seconds=5), clock, clients=3, min_available=2)
    grid.online = set(sorted(grid.nodes)[:1])
    with pytest.raises(RuntimeError, match="1 clients are there after 5 s, 2 must be"):
        places.gather()
    grid.online = set(sorted(grid.nodes)[:2])
    assert places.gather().tolist() == [True, True, False]
    grid.online = set(grid.nodes)
    assert places.gather().tolist() == [True] * 3
    assert sum("is not asked: the fleet of 3 clients is complete" in said for said in places.news) == 2


LEAVING = ["11111", "11111", "01111", "00110", "11110", "11111"]


def test_a_stated_fleet_goes_on_with_those_who_are_there():
    """All five must come once; then a node that leaves is missing from its rounds and nothing else."""
    seen = []
    result, strategy, _ = plain_run(fw.methods.fedavg(N), LEAVING, seen, clients=N)
    for r, day in enumerate(LEAVING, 1):
        there = [c for c in range(N) if day[c] == "1"]
        assert sorted(c for c, config in seen if config["server-round"] == r) == there
        assert result.train_metrics_clientapp[r]["received"] == len(there)
    assert strategy._places.size == N


def test_clients_of_ours_in_a_stated_fleet_go_on_too():
    grid = Daily(app(), CLIENTS, ["111111", "101111", "001011", "111111"])
    strategy = flower.Strategy(fw.methods.fedprox(CLIENTS), clients=CLIENTS, clock=VirtualClock())
    result = strategy.start(grid, network(), num_rounds=4)
    assert [result.train_metrics_clientapp[r]["received"] for r in (1, 2, 3, 4)] == [6, 5, 3, 6]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"min_available_nodes": 4}, 4), ({"min_train_nodes": 3, "fraction_train": 0.1}, 3), ({}, 2)],
    ids=str,
)
def test_fewer_nodes_than_must_be_there_end_a_run_after_a_while(options, wanted):
    days = ["11111", "1" * (wanted - 1) + "0" * (N - wanted + 1)]
    patience = Terms(start_seconds=5)
    with pytest.raises(RuntimeError, match=f"{wanted - 1} clients are there after 5 s, {wanted} must be"):
        plain_run(fw.methods.fedavg(4), days, clients=N, terms=patience, **options)
    with pytest.raises(RuntimeError, match="4 clients are there after 5 s, 5 must be"):
        plain_run(fw.methods.fedavg(4), ["11110"], terms=Terms(start_seconds=5, clients=N))


# Data that grows

SIZES, CAP = [40, 400, 30, 3000], 2.0  # of client 2 from round to round; the last one is more than counts


class Renewed(flower.LocalGrid):
    """Flower starts a process for every message, so that data is read again: that of client 2 is not what it was."""

    def __init__(self):
        super().__init__({}, CLIENTS)

    def _answered(self, message, node):
        size = SIZES[max(asked_in(message), 1) - 1]

        def load(who, of):
            data = share(who)
            return data.take(np.resize(np.arange(len(data)), size)) if who == 2 else data

        self._app = flower.client("auto", load)
        return super()._answered(message, node)


def weights(method, kind):
    """The clients' weights after each round, in which nobody is refused."""
    found, there, terms = [], np.ones(CLIENTS, bool), Terms(max_samples_ratio=CAP)
    if kind == "server":
        session = prepare(experiment(method), Renewed(), terms, VirtualClock())
        state = session.start
        for r in range(1, len(SIZES) + 1):
            state, happened = run_round(session.method, state, session.world, session.engine, 0.05, 0)
            found.append(session.world(r + 1).weight)
            assert happened.replies.received.all()
        return found
    strategy = flower.Strategy(method, clients=CLIENTS, clock=VirtualClock(), terms=terms)

    def look(round, arrays):
        if round:
            found.append(strategy._known.population(there).weight)

    result = strategy.start(Renewed(), network(), len(SIZES), evaluate_fn=look)
    assert all(record["received"] == CLIENTS for record in result.train_metrics_clientapp.values())
    return found


@pytest.mark.parametrize("kind", ["server", "strategy"])
def test_a_client_whose_data_grows_counts_for_more_up_to_the_cap(kind):
    for found, size in zip(weights(fw.methods.fedprox(CLIENTS), kind), SIZES, strict=True):
        samples = np.array([len(share(c).x) for c in range(CLIENTS)])
        samples[2] = size
        samples = np.minimum(samples, int(CAP * np.median(samples)))
        assert found == pytest.approx(samples / samples.sum())
    assert samples[2] < size


@pytest.mark.parametrize("kind", ["server", "strategy"])
def test_weights_stay_as_declared_where_a_method_keeps_a_sum_by_them(kind):
    """FOCUS has Σ ω_i m_i: with another ω_i an earlier term could not be taken out again."""
    found = weights(fw.methods.focus(CLIENTS), kind)
    samples = np.array([len(share(c).x) for c in range(CLIENTS)])
    samples[2] = SIZES[0]
    samples = np.minimum(samples, int(CAP * np.median(samples)))
    assert all(np.array_equal(one, found[0]) for one in found)
    assert found[0] == pytest.approx(samples / samples.sum())


def test_a_part_that_changes_the_shape_of_its_state_stays_with_the_fleet_it_has(caplog):
    seen = []
    with caplog.at_level(logging.WARNING):
        plain_run(fw.Method(Diary(2)), ["10100"] * 2 + ["11111"] * 2, seen)
    assert {c for c, _ in seen} == {0, 2}
    assert "stays as large as it is, 2 clients: Diary keeps 'asked', which does not have the shape" in caplog.text
