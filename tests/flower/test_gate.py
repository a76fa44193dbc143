"""One gate for all that clients say: samples, losses, evaluations and lengths that would give one of them the fleet."""

import logging
import re

import numpy as np
import pytest
from flwr.app import MetricRecord

import fedweave as fw
import worlds
from fedweave import flower
from fedweave.fleet.admitted import complete
from fedweave.fleet.server.app import prepare
from fedweave.fleet.server.seats import capped
from fedweave.fleet.server.terms import Terms, VirtualClock
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import packed
from flower.plain_app import SAMPLES, N, initial, plain, pull
from flower.rehearsal import BAD, CLIENTS, Tampered, app, asked_in, experiment, reasons, run, share

HUGE = 9_000_000


def start(strategy, grid, rounds=1, **kwargs):
    return strategy.start(grid, initial(), num_rounds=rounds, **kwargs)


def tampered(change, kind, fleet=None):
    """A fleet of a plain app whose client 2 changes its answers of a kind."""
    grid = fleet or flower.LocalGrid(plain(), N)
    honest = grid._answered

    def answered(message, node):
        reply = honest(message, node)
        if node == grid.nodes[BAD] and message.metadata.message_type == kind:
            change(reply.content)
        return reply

    grid._answered = answered
    return grid


def claims(samples):
    def change(content):
        content["metrics"]["num-examples"] = samples

    return change


def test_claimed_samples_do_not_capture_a_sampler():
    """The median of 10, 20, 40, 50 and the claim is 40: whoever claims more than ten times that counts as 400."""
    grid = tampered(claims(HUGE), "train")
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock())
    start(strategy, grid)
    place = {node: client for client, node in strategy._places.node.items()}
    weight = strategy._known.population(np.ones(N, bool)).weight[[place[node] for node in grid.nodes]]
    believed = np.where(np.arange(N) == BAD, 400, SAMPLES)
    assert weight == pytest.approx(believed / believed.sum())
    given = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock(), terms=Terms(max_samples_ratio=None))
    start(given, tampered(claims(HUGE), "train"))
    assert given._known.population(np.ones(N, bool)).weight.max() > 0.99, "who wants to believe them can"


def test_a_claim_at_the_door_counts_little_and_the_log_names_it(caplog):
    class Boasting(flower.LocalGrid):
        def _answered(self, message, node):
            reply = super()._answered(message, node)
            if node == self.nodes[BAD] and not asked_in(message):
                reply.content["hello"]["num-examples"] = HUGE
            return reply

    fleet, clock = Boasting(app(), CLIENTS), VirtualClock()
    with caplog.at_level(logging.WARNING):
        world = prepare(experiment(), fleet, Terms(), clock).world(1)
    samples = np.array([len(share(c).x) for c in range(CLIENTS)])
    samples[BAD] = HUGE
    samples[BAD] = int(10 * np.median(samples))
    assert world.weight == pytest.approx(samples / samples.sum())
    said = rf"client {BAD} \(node {fleet.nodes[BAD]}, partition-id={BAD}\) claims {HUGE} samples, {samples[BAD]} count"
    assert re.search(said, caplog.text)


def test_of_two_numbers_the_smaller_is_the_measure():
    assert capped(np.array([0, 900, 0, 0]), 10).tolist() == [0, 900, 0, 0], "one alone cannot be compared"
    assert capped(np.array([1, 900, 0, 0]), 10).tolist() == [1, 10, 0, 0]
    assert capped(np.array([1, 900, 2, 0]), 10).tolist() == [1, 20, 2, 0]
    assert capped(np.array([1, 900, 2, 0]), None).tolist() == [1, 900, 2, 0]


EVALUATIONS = {
    "nan": (lambda content: content["metrics"].update({"accuracy": float("nan")}), "accuracy = nan"),
    "infinite": (lambda content: content["metrics"].update({"accuracy": float("inf")}), "accuracy = inf"),
    "list": (lambda content: content["metrics"].update({"each": [0.5, float("nan")]}), "each = nan"),
    "samples": (claims(10**15), "num-examples = 1000000000000000"),
    "none": (claims(0), "num-examples = 0"),
    "many": (lambda c: c.update({"more": MetricRecord({f"m{i}": i for i in range(2000)})}), "reports 2002 numbers"),
    "long": (lambda c: c.update({"more": MetricRecord({"x" * 5000: 1})}), "name of 5000 characters"),
    "large": (lambda c: c.update({"more": MetricRecord({"m": [1.0] * 200_000})}), r"sent 16000\d\d bytes"),
}


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_a_bad_evaluation_is_refused_by_name_and_changes_nothing(kind, caplog):
    change, why = EVALUATIONS[kind]
    grid = tampered(change, "evaluate")
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock())
    with caplog.at_level(logging.INFO):
        found = start(strategy, grid).evaluate_metrics_clientapp[1]["accuracy"]
    others = np.arange(N) != BAD
    assert found == pytest.approx(SAMPLES[others] @ (np.arange(N)[others] / 10) / SAMPLES[others].sum())
    place = {node: client for client, node in strategy._places.node.items()}
    who = rf"evaluation of client {place[grid.nodes[BAD]]} \(node {grid.nodes[BAD]}\): .*{why}"
    assert re.search(who, caplog.text), caplog.text


def test_an_evaluation_with_ten_times_the_median_of_samples_counts_as_that():
    found = start(
        flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), tampered(claims(HUGE), "evaluate")
    ).evaluate_metrics_clientapp[1]["accuracy"]
    weight = np.where(np.arange(N) == BAD, 400, SAMPLES)
    assert found == pytest.approx(weight @ (np.arange(N) / 10) / weight.sum())


def pair(change, kind, **options):
    """A run of two rounds with two clients, of whom client 2 lies."""
    grid = tampered(change, kind)
    grid.online = {grid.nodes[BAD], grid.nodes[4]}
    return start(flower.Strategy(fw.methods.fedavg(2), clock=VirtualClock(), **options), grid, rounds=2)


def test_of_two_answers_one_that_claims_too_much_has_not_all_the_weight():
    told = pair(claims(HUGE), "train")
    moved = 10 / 11 * pull(BAD) + 1 / 11 * pull(4)
    assert told.arrays["b"].numpy() == pytest.approx(2 * moved)
    told = pair(claims(HUGE), "evaluate")
    assert told.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(10 / 11 * 0.2 + 1 / 11 * 0.4)


def test_of_two_answers_one_that_is_far_too_long_does_not_pass():
    told = pair(far, "train")
    assert [record["refused"] for record in told.train_metrics_clientapp.values()] == [1, 1]
    assert told.arrays["b"].numpy() == pytest.approx(2 * pull(4))
    assert pair(far, "train", max_length_ratio=None).arrays["b"].numpy() > 1e5


def far(content):
    content["arrays"]["b"] = packed(np.array(1e6, np.float32))


def test_an_answer_that_comes_alone_is_compared_with_those_before_it():
    """As where rounds overlap and each one ends a round; one length of each other client counts."""
    grid = tampered(far, "train")
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock(), min_train_nodes=1)
    grid.online -= {grid.nodes[BAD]}
    start(strategy, grid)
    grid.online = {grid.nodes[BAD]}
    told = start(strategy, grid)
    assert told.train_metrics_clientapp[2]["refused"] == 1
    assert told.arrays["b"].numpy() == 0, "the model that it began with"


@pytest.mark.parametrize("loss", [float("nan"), [0.5, float("inf")]])
def test_a_loss_that_is_no_number_does_not_poison_the_metrics(loss):
    def change(content):
        content["metrics"]["train_loss"] = loss

    told = start(flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), tampered(change, "train"))
    others, told = np.arange(N) != BAD, told.train_metrics_clientapp[1]
    assert told["train_loss"] == pytest.approx(SAMPLES[others] @ np.arange(N)[others] / SAMPLES[others].sum())
    assert (told["refused"], told["received"]) == (1, N - 1)


def test_an_update_nine_hundred_times_as_long_as_the_median_does_not_pass(tmp_path):
    def change(content):
        content["arrays"]["b"] = packed(np.array(900 * pull(2) * np.sqrt(10), np.float32))  # ten values move by pull(2)

    told = start(flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), tampered(change, "train"))
    assert told.train_metrics_clientapp[1]["refused"] == 1

    def longer(message, context):
        reply = app()(message, context)
        if asked_in(message):
            record = reply.content["update"]
            for name in record:
                record[name] = packed(900 * record[name].numpy())
            sealed(reply.content, asked_in(message), BAD)
        return reply

    def tried(**given):
        folder = tmp_path / f"{given}"
        run(experiment(fw.methods.fedavg(CLIENTS), rounds=1, **given), Tampered(longer), out=folder)
        return [why for _, why in reasons(folder)]

    (said,) = tried()
    assert re.search(rf"client {BAD}: its update is .* times as long as the median, more than 100", said)
    assert tried(max_length_ratio=None) == [], "whoever says otherwise is heard"


LEFT_OUT = {
    "not reported": lambda content: content["metrics"].pop("accuracy"),
    "a list": lambda content: content["metrics"].update({"accuracy": [0.5, 0.5]}),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_one_client_does_not_take_a_metric_from_all(kind, caplog):
    grid = tampered(LEFT_OUT[kind], "evaluate")
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock())
    with caplog.at_level(logging.WARNING):
        found = start(strategy, grid).evaluate_metrics_clientapp[1]["accuracy"]
    others = np.arange(N) != BAD
    assert found == pytest.approx(SAMPLES[others] @ (np.arange(N)[others] / 10) / SAMPLES[others].sum())
    place = {node: client for client, node in strategy._places.node.items()}
    who = f"client {place[grid.nodes[BAD]]} (node {grid.nodes[BAD]})"
    assert f"'accuracy' is averaged without {who}, which does not report it as the others do" in caplog.text


def test_a_metric_that_few_report_has_no_mean():
    def invent(content):
        content["metrics"]["invented"] = 1.0

    told = start(flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock()), tampered(invent, "evaluate"))
    assert set(told.evaluate_metrics_clientapp[1]) == {"accuracy"}


def test_one_client_does_not_set_the_arrays_of_whole_numbers():
    """Each entry is the median of those that were admitted: no client alone decides it, whoever is first."""
    for liar in range(N):
        grid = flower.LocalGrid(plain(), N)
        honest = grid._answered

        def answered(message, node, honest=honest, liar=grid.nodes[liar]):
            reply = honest(message, node)
            if node == liar and message.metadata.message_type == "train":
                reply.content["arrays"]["num"] = packed(np.array([-999, 10**6], np.int64))
                reply.content["arrays"]["num_one"] = packed(np.array(10**6, np.int64))
            return reply

        grid._answered = answered
        model = initial()
        model["num"], model["num_one"] = packed(np.array([3, 5], np.int64)), packed(np.array(7, np.int64))
        strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock())
        found = strategy.start(grid, model, num_rounds=1).arrays
        assert [found[name].numpy().tolist() for name in ("num", "num_one")] == [[4, 6], 8]


def test_a_silent_client_does_not_hold_a_round_for_an_hour():
    clock = VirtualClock()
    grid = flower.LocalGrid(plain(), N, fate=lambda client, m: "silent" if client == BAD and asked_in(m) else "")
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=clock, fraction_evaluate=0)
    assert start(strategy, grid).train_metrics_clientapp[1]["received"] == N - 1
    assert clock.now() <= 601, "though Flower's own time-out is an hour"


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e40])
def test_a_loss_that_is_no_number_does_not_capture_power_of_choice(loss):
    """Else the largest loss is asked in every round."""

    class Screaming(flower.LocalGrid):
        def _answered(self, message, node):
            reply = super()._answered(message, node)
            if node == self.nodes[BAD] and message.metadata.message_type == "query.loss":
                reply.content["loss"]["loss"] = loss
            return reply

    result = run(experiment(fw.methods.power_of_choice(2), rounds=3), Screaming(app(), CLIENTS))
    assert BAD not in result.clients["client"]


def test_the_log_names_node_partition_and_client(caplog):
    fleet = flower.LocalGrid(app(), CLIENTS, fate=lambda c, m: ("raises", "dead", "")[c % 3] if asked_in(m) else "")
    with caplog.at_level(logging.INFO):
        run(experiment(fw.methods.fedavg(CLIENTS), rounds=1), fleet)
    for client, why in ((0, "its app failed: RuntimeError: no power"), (1, "its node is gone")):
        named = f"client {client} (node {fleet.nodes[client]}, partition-id={client}): {why}"
        assert named in caplog.text


def test_weights_below_one_are_capped_too():
    """Four clients of weight 0.001 and one of 1: the median is 0.001, so that none counts more than 0.01."""
    assert capped(np.array([0.001] * 4 + [1.0]), 10) == pytest.approx([0.001] * 4 + [0.01])
    assert capped(np.array([1, 1, 1, 1, 1000]), 0.5).tolist() == [1] * 5, "a number of samples is at least one"


def test_an_answer_without_what_a_method_must_hear_is_refused_and_the_run_goes_on():
    method, cohort = fw.methods.latency_optimal(3), worlds.cohort([4, 7, 9])
    heard = worlds.replies(np.ones((3, 2)), first_gradient=np.array([1.0, np.nan, 2.0]))
    left = complete(heard, cohort, method, first=True)
    assert left.received.tolist() == [True, False, True]
    assert list(map(str, left.failures.refused)) == ["client 7: no 'first-gradient'"]
    nobody = heard._replace(first_gradient=np.full(3, np.nan))
    with pytest.raises(fw.BadInput, match=r"needs the 'first-gradient' of every client, and client 4 does not report"):
        complete(nobody, cohort, method, first=True)
    assert not complete(nobody, cohort, method, first=False).received.any(), "later it is no wrong app"


def test_evaluations_that_come_twice_count_once_and_counts_are_the_servers():
    def loud(content):
        content["metrics"]["asked"] = -1.0

    grid = flower.LocalGrid(plain(), N)
    honest = grid._answered

    def answered(message, node):
        reply = honest(message, node)
        loud(reply.content)
        return reply

    grid._answered = answered
    strategy = flower.Strategy(fw.methods.fedavg(N), clock=VirtualClock())
    told = start(strategy, grid).train_metrics_clientapp[1]
    assert (told["asked"], told["received"]) == (N, N)


def test_a_fleet_that_was_too_small_may_be_tried_again():
    strategy = flower.Strategy(
        fw.methods.fedavg(2), clock=VirtualClock(), terms=Terms(connected=N + 1, start_seconds=1)
    )
    grid = flower.LocalGrid(plain(), N)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"{N + 1} must be"):
            start(strategy, grid)
