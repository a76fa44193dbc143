"""A client does not trust its server: no answer is that of a sample or two, and who allows no evaluation does none."""

from functools import cache

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType, RecordDict

import fedweave as fw
from fedweave import flower
from fedweave.core.spec import describe
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.request import TrainRequest, ask, ask_loss
from fedweave.fleet.wire.tensors import packed
from fedweave.local.solvers import SGD
from flower.rehearsal import experiment, run

FEATURES, CLASSES, LABELS = 5, 3, np.array([0] * 7 + [1] * 4 + [2])


def partition(samples=LABELS.size):
    x = np.random.default_rng(0).standard_normal((samples, FEATURES)).astype(np.float32)
    return fw.data.Dataset("own", x, LABELS[:samples], x[:0], LABELS[:0], CLASSES)


@cache
def fleet(samples=LABELS.size, **floors):
    return flower.LocalGrid(flower.client("logistic", lambda who, of: partition(samples), **floors), 1)


def model(bias=(0.0, 0.0, 0.0)):
    weight = np.zeros((CLASSES, FEATURES), np.float32)
    return ArrayRecord({"fc1.weight": packed(weight), "fc1.bias": packed(np.array(bias, np.float32))})


def answer(grid, content, kind=MessageType.TRAIN):
    message = Message(content, grid.nodes[0], kind, group_id="1")
    (reply,) = grid.send_and_receive([message])
    return reply


def work(steps, batch_size, **given):
    request = TrainRequest(
        round=1, client=0, seed=0, steps=steps, batch_size=batch_size, lr=0.1, share=1.0,
        method={"solver": describe(SGD())}, **given,
    )  # fmt: skip
    return ask(request, model(), {})


def says(reply):
    return reply.error.reason if reply.has_error() else ""


@pytest.mark.parametrize(
    ("steps", "batch", "why"),
    [
        (1, 1, "samples in a batch, this client trains with min_batch=4"),
        (12, 1, "min_batch=4"),
        (2, 4, "asks for 8 samples in all, this client trains with min_samples=10"),
        (3, 4, ""),
        (1, 10, ""),
    ],
)
def test_one_step_on_one_sample_is_not_answered(steps, batch, why):
    """Else its update is the gradient of that sample, from which the sample itself follows: x = ∂W/∂b."""
    reply = answer(fleet(), work(steps, batch))
    assert why in says(reply)
    assert reply.has_error() == bool(why)


def test_the_attack_works_on_a_client_without_floors():
    """What the floors are for: the server reads the sample out of one answer."""
    careless = fleet(min_samples=1, min_batch=1)
    update = answer(careless, work(1, 1)).content["update"]
    weight, bias = (update[name].numpy() for name in ("fc1.weight", "fc1.bias"))
    sample = weight[0] / bias[0]
    assert np.abs(partition().x - sample).max(axis=1).min() < 1e-5


def test_a_client_may_insist_on_more():
    strict = fleet(min_steps=3, min_samples=12, min_batch=6)
    assert "asks for 2 steps, this client trains with min_steps=3" in says(answer(strict, work(2, 12)))
    assert "min_batch=6" in says(answer(strict, work(3, 5)))
    assert not says(answer(strict, work(3, 6)))
    with pytest.raises(fw.BadInput, match="'min_samples' parameter"):
        flower.client("logistic", lambda who, of: partition(), min_samples=0)


def test_a_client_with_too_few_samples_says_nothing_and_is_no_client():
    small = fleet(samples=9)
    kinds = {
        MessageType.TRAIN: work(3, 4),
        MessageType.QUERY: RecordDict({}),
        "query.loss": ask_loss(model(), 0),
    }
    for kind, content in kinds.items():
        assert "fewer samples than its min_samples=10" in says(answer(small, content, kind))
    with pytest.raises(RuntimeError, match=r"fewer samples than its min_samples=10"):
        run(experiment(rounds=1), small, Terms(start_seconds=5))


def histogram(grid):
    """The attack: models that always say the same class; each one's accuracy is the share of that class."""
    found = []
    for label in range(CLASSES):
        bias = np.where(np.arange(CLASSES) == label, 9.0, 0.0)
        reply = answer(grid, RecordDict({"arrays": model(bias)}), MessageType.EVALUATE)
        if reply.has_error():
            return says(reply)
        assert set(reply.content["metrics"]) == {"num-examples", "accuracy", "loss"}, "sums over all samples only"
        found.append(reply.content["metrics"]["accuracy"])
    return found


def test_labels_cannot_be_counted_by_evaluations_unless_the_client_allows_them():
    assert "does not evaluate models for others" in histogram(fleet())
    assert histogram(fleet(evaluate=True)) == pytest.approx(np.bincount(LABELS) / LABELS.size)


def test_an_evaluation_rests_on_as_many_samples_as_training():
    def load(who, of):
        data = partition()
        return fw.data.Dataset("own", data.x, data.y, data.x[:9], data.y[:9], CLASSES)

    grid = flower.LocalGrid(flower.client("logistic", load, evaluate=True), 1)
    assert "min_samples=10" in says(answer(grid, RecordDict({"arrays": model()}), MessageType.EVALUATE))


def test_a_request_that_leaves_the_work_to_the_client_meets_the_same_floors():
    request = TrainRequest(1, -1, 0, 0, 2, 0.1, 1.0, {"solver": describe(SGD())}, epochs=1.0)
    assert "min_batch=4" in says(answer(fleet(), ask(request, model(), {})))
