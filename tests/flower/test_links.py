"""A strategy learns links from seconds and bytes, and keeps them; privacy on a fleet is that of the simulator."""

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.aggregate import Private
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.tensors import Tensors, packed
from fedweave.local.solvers import Prox
from fedweave.sample import Uniform
from flower.plain_app import N, initial, plain
from flower.rehearsal import CLIENTS, LinkGrid, app, experiment, flat, network

SLOW = 2


def rate(client):
    return 1e3 if client == SLOW else 1e4


def test_feddd_has_slow_links_send_less_and_knows_them_after_a_load(tmp_path):
    """As with flower.server: the rate of client 2, a tenth of the others', is found to a few per cent."""
    clock = VirtualClock()
    terms = Terms(answer_seconds=1000, poll_seconds=0.1)
    fleet = LinkGrid(clock, rate, app(), CLIENTS)
    strategy = flower.Strategy(fw.methods.feddd(), clients=CLIENTS, fraction_evaluate=0, terms=terms, clock=clock)
    took = []
    for _ in range(6):  # one more round each time
        before = clock.now()
        strategy.start(fleet, strategy.arrays or network(), num_rounds=1)
        took.append(clock.now() - before)
    assert took[-1] < 0.5 * took[0]
    rates = strategy._known.population(np.ones(CLIENTS, bool)).up_rate
    assert rates[SLOW] == pytest.approx(1e3, rel=0.05)
    assert (np.delete(rates, SLOW) > 4e3).all()
    strategy.save(tmp_path)
    loaded = flower.Strategy.load(tmp_path, clock=clock)
    known = loaded._begin(loaded.arrays, fleet)
    assert np.array_equal(known.population(np.ones(CLIENTS, bool)).up_rate, rates)


@pytest.mark.parametrize("method", [fw.methods.fedcs, fw.methods.oort, fw.methods.latency_optimal, fw.methods.tifl])
def test_methods_that_go_by_latency_learn_who_is_slow(method):
    """The slow client is asked at first, and seldom once its seconds are known."""
    clock, seen, rounds = VirtualClock(), [], 24
    nodes = flower.LocalGrid(plain(), N).nodes
    slow = nodes.index(min(nodes))  # the first by number, which ties are broken by
    app = plain(seen, **{"first-gradient": 0.5})
    fleet = LinkGrid(clock, lambda client: 1e3 if client == slow else 1e4, app, N)
    options = {"fraction_evaluate": 0, "terms": Terms(answer_seconds=1000, poll_seconds=0.1), "clock": clock}
    flower.Strategy(method(2), **options).start(fleet, initial(), num_rounds=rounds)
    asked = np.array([[client, config["server-round"]] for client, config in seen])
    counts = np.bincount(asked[asked[:, 1] > rounds // 2, 0], minlength=N)
    assert slow in asked[:, 0], "else there is nothing to learn"
    assert counts[slow] < 0.7 * counts.mean()


def test_private_aggregation_over_a_strategy_has_the_simulators_bits():
    """Clipping, noise and what is spent: Prox has clients introduce themselves, so that weights are known at once."""
    method = fw.Method(Uniform(3), Prox(mu=0.01), Private(clip=0.2, noise=0.5), name="private")
    same = experiment(method, rounds=3, epochs=1, steps=None, batch_size=20, lr=0.05)
    options = {"lr": 0.05, "epochs": 1, "batch_size": 20, "clients": CLIENTS, "fraction_evaluate": 0}
    strategy = flower.Strategy(method, **options, clock=VirtualClock())
    arrays = network()
    result, simulated = strategy.start(flower.LocalGrid(app(), CLIENTS), arrays, num_rounds=3), fw.run(same)
    x = np.empty(simulated.x.size, np.float32)
    Tensors.of_record(arrays).read(result.arrays, x)
    assert np.array_equal(x, simulated.x)
    spent = np.bincount(simulated.clients["client"], minlength=CLIENTS)
    assert strategy._state.aggregator["spent"].tolist() == spent.tolist()
    told = [result.train_metrics_clientapp[r]["epsilon"] for r in (1, 2, 3)]
    assert told == simulated.rounds["epsilon"].tolist(), "what was spent can be read, as in a run"


def test_no_client_of_a_fleet_moves_a_private_sum_by_more_than_its_clip():
    """The same rounds with and without one client's answer, however large: the noise is the same."""
    found = []
    for value in (1e4, 0.0):
        grid = flower.LocalGrid(plain(), N)
        honest = grid._answered

        def answered(message, node, grid=grid, honest=honest, value=value):
            reply = honest(message, node)
            if node == grid.nodes[0] and message.metadata.message_type == "train":
                for name, array in message.content["arrays"].items():
                    reply.content["arrays"][name] = packed(array.numpy() + np.float32(value))
            return reply

        grid._answered = answered
        method = fw.Method(Uniform(N), aggregator=Private(clip=0.3, noise=0.1), name="private")
        strategy = flower.Strategy(method, fraction_evaluate=0, max_length_ratio=None, clock=VirtualClock())
        found.append(flat(strategy.start(grid, initial(), num_rounds=1).arrays))
    moved = np.linalg.norm(found[0] - found[1])
    assert 0.9 * 0.3 / N < moved <= 0.3 / N * (1 + 1e-5)
