"""What users of Flower's FedAvg are used to: its arguments, against FedAvg itself, and its metrics."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedweave as fw
from fedweave import flower
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.tensors import packed
from flower.plain_app import SAMPLES, N, initial, plain, pull


def start(strategy, rounds=2, grid=None, arrays=None, **kwargs):
    return strategy.start(grid or flower.LocalGrid(plain(), N), arrays or initial(), num_rounds=rounds, **kwargs)


def ours(per_round=N, method=fw.methods.fedavg, **options):
    return flower.Strategy(method(per_round), clock=VirtualClock(), **options)


class Counting(flower.LocalGrid):
    """A fleet that counts who is asked what."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = {"train": [], "evaluate": []}

    def push_messages(self, messages):
        messages = list(messages)
        if messages:
            self.asked[messages[0].metadata.message_type].append(len(messages))
        return super().push_messages(messages)

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        (10, {"fraction_train": 0.5, "fraction_evaluate": 0.25}),
        (10, {"fraction_train": 0.05, "fraction_evaluate": 0.05}),
        (9, {"fraction_train": 0.5, "min_train_nodes": 6, "fraction_evaluate": 0.34, "min_evaluate_nodes": 4}),
        (5, {"fraction_train": 0.99, "fraction_evaluate": 1.0, "min_available_nodes": 5}),
        (5, {"fraction_train": 0.0, "fraction_evaluate": 0.5}),
        (5, {"fraction_train": 1.0, "fraction_evaluate": 0.0}),
    ],
)
def test_as_many_are_asked_as_flowers_fedavg_asks(nodes, options):
    app, counted = plain(), []
    for strategy in (ours(**options), FedAvg(**options)):
        grid = Counting(app, nodes, node_config=lambda i: {"partition-id": i % N})
        start(strategy, 2, grid)
        counted.append(grid.asked)
    assert counted[0] == counted[1]


def test_fraction_train_holds_instead_of_per_round_and_says_so(caplog):
    grid = Counting(plain(), 10, node_config=lambda i: {"partition-id": i % N})
    result = start(ours(2, fw.methods.fedavgm, fraction_train=0.7), 3, grid)
    assert grid.asked["train"] == [7, 7, 7]
    assert result.train_metrics_clientapp[3]["received"] == 7
    assert "0.7 of the nodes, whatever the method's per_round says" in caplog.text
    grid.online = set(grid.nodes[:5])
    start(ours(2, fraction_train=0.7), 1, grid)
    assert grid.asked["train"][-1] == 3, "of those who are there"


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        (fw.methods.fedavg_full(), {"fraction_train": 0.5}, r"fraction_train=0.5 needs a sampler with a fixed cohort"),
        (fw.methods.fedavg(3), {"min_train_nodes": 4}, r"asks per_round=3 clients, fewer than min_train_nodes=4"),
        (
            fw.methods.fedavg(3),
            {"min_available_nodes": 4, "terms": Terms(connected=5)},
            r"Terms\(connected=5\) and min_available_nodes=4 say the same thing",
        ),
        (fw.methods.scaffold(3), {"arrayrecord_key": "model"}, "It reads 'arrays' and 'config'"),
        (fw.methods.fedavg(3), {"fraction_train": 1.5}, "'fraction_train' parameter"),
        (fw.methods.fedavg(3), {"min_evaluate_nodes": -1}, "'min_evaluate_nodes' parameter"),
    ],
)
def test_contradictions_are_refused_at_once(method, options, says):
    with pytest.raises(fw.BadInput, match=says):
        flower.Strategy(method, **options)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, 2),
        ({"min_available_nodes": 4}, 4),
        ({"clients": 5}, 5),
        ({"clients": 5, "min_available_nodes": 3}, 3),
        ({"min_train_nodes": 3}, 3),
        ({"min_available_nodes": 2, "min_train_nodes": 4}, 4),
        ({"terms": Terms(connected=3, start_seconds=5)}, 3),
    ],
)
def test_a_round_waits_for_the_nodes_it_needs_and_not_for_ever(options, wanted):
    grid = flower.LocalGrid(plain(), N)
    patience = {"terms": Terms(start_seconds=5)} | options
    grid.online = set(sorted(grid.nodes)[: wanted - 1])
    with pytest.raises(RuntimeError, match=f"{wanted - 1} clients are there after 5 s, {wanted} must be"):
        start(ours(**patience), 1, grid)
    grid.online = set(sorted(grid.nodes)[:wanted])
    assert start(ours(wanted, **patience), 1, grid).train_metrics_clientapp[1]["received"] == wanted


def test_an_evaluation_with_too_few_nodes_is_skipped(caplog):
    grid = flower.LocalGrid(plain(), N)
    grid.online = set(grid.nodes[:2])
    result = start(ours(2, min_evaluate_nodes=3, clients=N, min_available_nodes=2), 1, grid)
    assert result.evaluate_metrics_clientapp == {}
    assert "2 nodes are there to evaluate, min_evaluate_nodes=3: skipped" in caplog.text


def weighted(metrics, key_of=lambda client: {}):
    """An app whose clients report lists and weights of their own."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        arrays = ArrayRecord(
            {n: packed(a.numpy() + np.float32(pull(client))) for n, a in message.content["arrays"].items()}
        )
        record = MetricRecord({**metrics(client), **key_of(client)})
        return Message(RecordDict({"arrays": arrays, "metrics": record}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        return Message(RecordDict({"metrics": MetricRecord({**metrics(client), **key_of(client)})}), reply_to=message)

    return app


def lists(client):
    return {"by_class": [client / 10, 1.0 - client / 10], "loss": float(client), "counts": [client, 7]}


@pytest.mark.parametrize("key", ["num-examples", "trust"])
def test_weights_and_list_metrics_are_flowers_own(key):
    """FedAvg weighs models and metrics by the key; an app need not report its examples beside it."""
    app = weighted(lists, lambda client: {key: float(2 + client**2)})
    found = [start(s, 2, flower.LocalGrid(app, N)) for s in (ours(weighted_by_key=key), FedAvg(weighted_by_key=key))]
    for name, array in found[1].arrays.items():
        assert found[0].arrays[name].numpy() == pytest.approx(array.numpy(), rel=1e-6)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        mine, theirs = (getattr(result, kind)[2] for result in found)
        for name, value in theirs.items():
            assert mine[name] == pytest.approx(value), name
        assert key not in mine


def test_small_weights_count_and_bad_ones_are_refused():
    good = {0: 0.25, 1: 0.5, 2: 0.25}
    bad = {3: -1.0, 4: float("nan")}
    app = weighted(lists, lambda client: {"trust": (good | bad)[client]})
    result = start(ours(weighted_by_key="trust", fraction_evaluate=0), 1, flower.LocalGrid(app, N))
    assert result.train_metrics_clientapp[1]["refused"] == 2
    mean = 0.25 * pull(0) + 0.5 * pull(1) + 0.25 * pull(2)
    assert result.arrays["b"].numpy() == pytest.approx(mean)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(0.5 * 1 + 0.25 * 2)


def test_the_users_functions_get_the_admitted_answers_and_the_key():
    got = {}

    def of(kind):
        def function(contents, key):
            got[kind] = [dict(record) for c in contents for record in c.metric_records.values()], key
            return MetricRecord({"largest": max(record["loss"] for record in got[kind][0])})

        return function

    app = weighted(lists, lambda client: {"num-examples": int(SAMPLES[client]) if client != 1 else 10**9})
    strategy = ours(train_metrics_aggr_fn=of("train"), evaluate_metrics_aggr_fn=of("evaluate"))
    result = start(strategy, 1, flower.LocalGrid(app, N))
    assert result.train_metrics_clientapp[1] == {"asked": N, "received": N - 1, "refused": 1, "largest": 4.0}
    assert result.evaluate_metrics_clientapp[1] == {"largest": 4.0}
    told, key = got["train"]
    assert sorted(record["loss"] for record in told) == [0, 2, 3, 4], "client 1 claims too many examples"
    assert key == "num-examples"
    assert all(len(record["by_class"]) == 2 for record in told)
    with pytest.raises(fw.BadInput, match=r"must return a MetricRecord\. It returned 3"):
        start(ours(train_metrics_aggr_fn=lambda contents, key: 3), 1)


def test_a_mean_leaves_out_what_is_not_finite_and_lists_that_differ(caplog):
    def metrics(client):
        return {"loss": float("nan") if client == 2 else 1.0, "short": [1.0] * (1 + client % 2)}

    app = weighted(metrics, lambda client: {"num-examples": 10})
    told = start(ours(), 1, flower.LocalGrid(app, N)).evaluate_metrics_clientapp[1]
    assert told["loss"] == 1
    assert "short" not in told
    assert "clients report 'short' with different lengths: it has no mean" in caplog.text


def test_doubles_are_cast_with_one_note(caplog):
    found = [
        start(ours(), 3, flower.LocalGrid(plain(dtype=dtype), N)) for dtype in (np.float32, np.float64, np.float16)
    ]
    assert found[1].train_metrics_clientapp[3]["received"] == N
    for name, array in found[0].arrays.items():
        assert found[1].arrays[name].dtype == "float32"
        assert found[1].arrays[name].numpy() == pytest.approx(array.numpy(), rel=1e-6)
        assert found[2].arrays[name].numpy() == pytest.approx(array.numpy(), rel=5e-3, abs=5e-3)
    assert caplog.text.count("clients send w as float64, which is cast to the model's float32") == 1


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_client_that_changes_what_it_was_sent_changes_nothing_for_the_others(as_bytes):
    """On a grid in this process as over a network: each node has its own arrays and its own config."""
    app, rounds = ClientApp(), []

    @app.train()
    def train(message, context):
        record, config = message.content["arrays"], message.content["config"]
        for name in record:
            record[name] = packed(record[name].numpy() + 1)
        rounds.append(config["server-round"])
        config["server-round"] = 99
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    model = initial()
    result = ours(fraction_evaluate=0).start(flower.LocalGrid(app, N, bytes=as_bytes), model, num_rounds=1)
    assert rounds == [1] * N
    assert result.arrays["b"].numpy() == pytest.approx(1)
    assert model["b"].numpy() == 0


def test_apps_that_name_their_records_otherwise_are_served():
    app = ClientApp()

    @app.train()
    def train(message, context):
        assert message.content["settings"]["server-round"] == 1
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"net": message.content["net"], "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        size = len(message.content["net"]) + message.content["settings"]["server-round"]
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "size": size})}), reply_to=message)

    result = start(ours(arrayrecord_key="net", configrecord_key="settings"), 1, flower.LocalGrid(app, N))
    assert result.train_metrics_clientapp[1]["received"] == N
    assert result.evaluate_metrics_clientapp[1]["size"] == 4


def test_a_local_grid_has_a_run_config():
    app, seen = ClientApp(), []

    @app.train()
    def train(message, context):
        seen.append(dict(context.run_config))
        return Message(
            RecordDict({"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}), reply_to=message
        )

    start(ours(fraction_evaluate=0), 1, flower.LocalGrid(app, N, run_config={"lr": 0.1, "local-epochs": 2}))
    assert seen == [{"lr": 0.1, "local-epochs": 2}] * N
