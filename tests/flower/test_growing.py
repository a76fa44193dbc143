"""Fleets that grow, lose nodes and get them back: asked are those who are there, as in a replay in the simulator."""

import logging

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.terms import Terms, VirtualClock
from flower.plain_app import SAMPLES, N, initial, plain, pull
from flower.rehearsal import CLIENTS, Growing, Replay, app, asked_in, experiment, reasons, run, share

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
    weight = strategy._population(np.ones(N, bool)).weight[[place[node] for node in grid.nodes]]
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
