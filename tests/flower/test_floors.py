"""A client does not trust its server: no answer is that of a sample or two, and who allows no evaluation does none."""

from functools import cache

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_to_proto

import fedweave as fw
from fedweave import flower
from fedweave.core.spec import describe
from fedweave.fleet.client import digest
from fedweave.fleet.floors import Floors, keeps_secret
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.request import TrainRequest, ask, ask_loss
from fedweave.fleet.wire.tensors import packed
from fedweave.local.solvers import SGD, ControlVariate, Tracking
from flower.rehearsal import CLIENTS, app, experiment, run, share

FEATURES, CLASSES, LABELS = 5, 3, np.array([0] * 7 + [1] * 4 + [2])


def partition(samples=LABELS.size):
    x = np.random.default_rng(0).standard_normal((samples, FEATURES)).astype(np.float32)
    return fw.data.Dataset("own", x, np.resize(LABELS, samples), x[:0], LABELS[:0], CLASSES)


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


def work(steps, batch_size, arrays=None, **given):
    request = TrainRequest(**{
        "round": 1, "client": 0, "seed": 0, "steps": steps, "batch_size": batch_size, "lr": 0.1, "share": 1.0,
        "method": {"solver": describe(SGD())}, **given,
    })  # fmt: skip
    return ask(request, arrays or model(), {})


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


@pytest.mark.parametrize("solver", [SGD(decay=0.9999999), Tracking()], ids=["decay", "last step"])
def test_what_is_sent_may_be_that_of_one_batch_which_min_batch_bounds(solver):
    """A server can make all steps but one count for nothing: the update is then the gradient of four samples."""
    asked = {"lr": 0.001, "method": {"solver": describe(solver)}}
    update = answer(fleet(), work(3, 4, **asked)).content["update"]
    counted = 4 * (update["fc1.bias"].numpy() / -0.001 - 1 / CLASSES)  # minus how often each label occurs in the batch
    assert counted == pytest.approx(np.round(counted), abs=0.01)
    assert counted.sum() == pytest.approx(-4, abs=0.01)
    assert "min_batch=10" in says(answer(fleet(min_batch=10), work(3, 4, **asked)))


def test_a_client_may_insist_on_more():
    strict = fleet(min_steps=3, min_samples=12, min_batch=6)
    assert "asks for 2 steps, this client trains with min_steps=3" in says(answer(strict, work(2, 12)))
    assert "min_batch=6" in says(answer(strict, work(3, 5)))
    assert not says(answer(strict, work(3, 6)))
    with pytest.raises(fw.BadInput, match="'min_samples' parameter"):
        flower.client("logistic", lambda who, of: partition(), min_samples=0)


def test_a_client_with_too_few_samples_says_nothing_and_is_no_client():
    small = fleet(samples=9, evaluate=True)
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


def test_labels_cannot_be_counted_by_the_losses_that_power_of_choice_asks_for():
    """A model that always says one class has a loss that counts the samples of the others."""
    biased = ask_loss(model((9.0, 0.0, 0.0)), 0)
    assert "does not evaluate models for others" in says(answer(fleet(), biased, "query.loss"))
    loss = answer(fleet(evaluate=True), biased, "query.loss").content["loss"]["loss"]
    assert loss == pytest.approx(9 * (LABELS != 0).mean(), abs=0.01)


def test_power_of_choice_says_what_its_clients_must_allow():
    silent = flower.client("auto", lambda client, of: share(client))
    chosen = experiment(fw.methods.power_of_choice(2), rounds=1)
    with pytest.raises(fw.BadInput, match=r"^None of the clients .* evaluate=True"):
        run(chosen, flower.LocalGrid(silent, CLIENTS))
    some = {client: app() if client in (1, 4) else silent for client in range(CLIENTS)}
    result = run(experiment(fw.Method(fw.sample.PowerOfChoice(2, CLIENTS)), rounds=1), flower.LocalGrid(some, CLIENTS))
    assert sorted(result.clients["client"]) == [1, 4], "who does not tell its loss is passed over"


def test_an_evaluation_rests_on_as_many_samples_as_training():
    def load(who, of):
        data = partition()
        return fw.data.Dataset("own", data.x, data.y, data.x[:9], data.y[:9], CLASSES)

    grid = flower.LocalGrid(flower.client("logistic", load, evaluate=True), 1)
    assert "min_samples=10" in says(answer(grid, RecordDict({"arrays": model()}), MessageType.EVALUATE))


# Several answers together

NODE = {"partition-id": 0, "num-partitions": 1}


def real_node(samples=LABELS.size, secret=b"0" * 32, **floors):
    """A node that keeps a secret, as one does whose operator has not said otherwise; the same in every test."""
    app = flower.client("logistic", lambda who, of: partition(samples), **floors)
    node = flower.LocalGrid(app, 1, node_config=lambda i: NODE | {"secret-batches": True})
    if secret:
        state_of(node)["fedweave.secret"] = ConfigRecord({"secret": secret})
    return node


def state_of(grid):
    (context,) = grid._contexts.values()
    return context.state


def gradient(grid, steps, batch_size, **given):
    """What a server learns from an answer: the sum of the steps' gradients, at one model if the rate is small."""
    reply = answer(grid, work(steps, batch_size, **{"lr": 0.001, **given}))
    update = reply.content["update"]
    return np.column_stack([update["fc1.weight"].numpy(), update["fc1.bias"].numpy()]).astype(float) / -0.001


def found_in(g, samples=LABELS.size):
    """Whether a gradient is that of one sample of the client: then x = ∂W/∂b, for every class."""
    with np.errstate(divide="ignore", invalid="ignore"):
        read = g[:, :-1] / g[:, -1:]
    return np.abs(partition(samples).x[:, None] - read[None]).max(axis=(1, 2)).min() < 0.05


def test_answers_with_batches_of_10_and_11_give_no_sample_away():
    """Both begin with the same samples, if their order is that of the round, whoever knows it."""

    def difference(grid, **given):
        return 11 * gradient(grid, 1, 11, **given) - 10 * gradient(grid, 1, 10, **given)

    assert found_in(difference(fleet())), "the attack works on a node whose order the server decides"
    node = real_node(24, min_batch=2)
    assert not any(found_in(difference(node, round=r), 24) for r in range(1, 6))


@pytest.mark.parametrize(("steps", "batch"), [(1, 11), (2, 11)], ids=["all but one", "one more at last"])
def test_all_samples_and_all_but_one_give_no_sample_away(steps, batch):
    """That set needs no order: one sample is left out, or is the last batch of its pass."""

    def attack(grid, **given):
        rest = 12 * gradient(grid, 1, 12, **given) - 11 * gradient(grid, steps, batch, **given)
        return rest / (1 if steps == 1 else -10)

    assert found_in(attack(fleet()))
    node = real_node()
    assert not any(found_in(attack(node, round=r)) for r in range(1, 6))


@pytest.mark.parametrize("least", [1, 2, 4, 7])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_whatever_is_asked_no_batch_and_no_rest_of_a_pass_is_below_the_floor(least, steps):
    floors = Floors(min_samples=10, min_steps=1, min_batch=least, evaluate=False)
    for n in range(10, 60):
        for asked in range(max(least, -(-10 // steps)), n + 3):
            batch = floors.own_batch(n, steps, asked)
            rest, before = n % batch, n % min(asked, n)
            assert least <= batch <= n
            assert batch * steps >= 10
            assert rest == 0 or rest >= least
            assert batch == min(asked, n) or 0 < before < least, "a batch that is fine stays as it was asked for"


def test_the_same_question_gets_the_same_answer_and_any_other_another_order():
    node, other = real_node(24), real_node(24, b"1" * 32)
    first = gradient(node, 1, 12)
    np.testing.assert_array_equal(gradient(node, 1, 12), first)
    biased = model((1e-6, 0.0, 0.0))
    for given in ({"round": 2}, {"seed": 1}, {"lr": 0.00100001}, {"share": 0.9}, {"arrays": biased}):
        assert np.abs(gradient(node, 1, 12, **given) - first).max() > 0.01, given
    assert np.abs(gradient(other, 1, 12) - first).max() > 0.01, "every node has a secret of its own"


def test_a_run_of_its_own_has_a_secret_of_its_own_as_when_a_server_resumes():
    """Flower empties the state for every run: the same question then has other batches, but on an open node."""
    node, open_node = real_node(24, secret=None), fleet(24)
    answers, secrets = [], []
    for _ in range(2):
        answers.append(gradient(open_node, 1, 12))
        answer(node, work(1, 12))
        secrets.append(state_of(node)["fedweave.secret"]["secret"])
        node.forget()
        open_node.forget()
    assert secrets[0] != secrets[1]
    np.testing.assert_array_equal(answers[0], answers[1])


def vectors(value):
    weight, bias = np.full((CLASSES, FEATURES), value, np.float32), np.full(CLASSES, value, np.float32)
    return ArrayRecord({"fc1.weight": packed(weight), "fc1.bias": packed(bias)})


def controlled(node, extras, memory=""):
    """What a SCAFFOLD request gets: its gradient, once what the server sent beside the model is taken away."""
    request = TrainRequest(1, 0, 0, 1, 12, 0.001, 1.0, {"solver": describe(ControlVariate())}, memory=memory)
    return answer(node, ask(request, model(), extras))


def test_a_vector_that_comes_with_the_model_is_part_of_the_question():
    """Else two requests that differ in it alone have the same batch."""

    def gradient_with(value):
        update = controlled(real_node(24), {"sent": vectors(value)}).content["update"]
        return update["fc1.weight"].numpy() / -0.001 - value

    assert np.abs(gradient_with(0.5) - gradient_with(0.25)).max() > 0.01
    np.testing.assert_array_equal(gradient_with(0.5), gradient_with(0.5))


def test_a_memory_that_is_sent_must_be_the_one_that_the_request_names():
    zeros, sent = vectors(0.0), vectors(0.5)
    name = digest(np.full(CLASSES * (FEATURES + 1), 0.5, np.float32))
    fine = controlled(real_node(24), {"sent": zeros, "memory": sent}, name)
    assert not says(fine)
    wrong = controlled(real_node(24), {"sent": zeros, "memory": vectors(0.25)}, name)
    assert "another memory than its request names" in says(wrong)


def test_the_secret_is_not_sent_and_a_node_may_do_without():
    assert keeps_secret(Context(1, 1, dict(NODE), RecordDict(), {})), "unless its operator says otherwise"
    nodes = [real_node(secret=None) for _ in range(2)]
    sent = [recorddict_to_proto(answer(node, work(3, 4)).content).SerializeToString() for node in nodes]
    one, other = (state_of(node)["fedweave.secret"]["secret"] for node in nodes)
    assert one != other
    assert len(one) == 32
    assert not any(form in message for message in sent for form in (one, one.hex().encode()))
    answer(fleet(), work(3, 4))
    assert "fedweave.secret" not in state_of(fleet())
    wrong = flower.LocalGrid(
        flower.client("logistic", lambda who, of: partition()), 1,
        node_config=lambda i: NODE | {"secret-batches": "no"},
    )  # fmt: skip
    assert "secret-batches=true or false" in says(answer(wrong, work(3, 4)))


def test_a_client_says_for_one_number_of_classes_how_its_samples_cover_them():
    """Σ min(C · share of a class, 1) bends where C is 1 over a share: the bends are the shares of all labels."""

    def covered(node, classes):
        reply = answer(node, RecordDict({"fedweave": ConfigRecord({"classes": classes})}), MessageType.QUERY)
        return says(reply) or reply.content["hello"]["covered"]

    node = real_node()
    assert covered(node, 0) == covered(node, CLASSES) == pytest.approx(1 + 1 + CLASSES / 12)
    assert "has said how its samples cover 3 classes, and does not say it for 4" in covered(node, CLASSES + 1)
    assert covered(node, CLASSES) == pytest.approx(2.25), "who is asked the same again says the same"
    assert "covered" not in answer(node, RecordDict({}), MessageType.QUERY).content["hello"]
    node.forget()
    assert covered(node, 12) == 3, "a run of its own"


# Models that are made to single samples out


def singled_out(node, samples):
    """The attack: a class for samples beyond a threshold t, which is moved until one sample is between two answers.

    Every question is a step on all samples, so no floor refuses it and no order matters. Return the number of questions
    and the sample that was read, None where a question was refused.
    """
    asked = 0

    def beyond(t):
        nonlocal asked
        asked += 1
        weight = np.zeros((CLASSES, FEATURES), np.float32)
        weight[1, 0] = 1e6
        bias = np.array([0, -1e6 * t, -1e9], np.float32)
        arrays = ArrayRecord({"fc1.weight": packed(weight), "fc1.bias": packed(bias)})
        reply = answer(node, work(1, samples, arrays=arrays, lr=1e6, round=asked))
        if reply.has_error():
            raise PermissionError(says(reply))
        update = reply.content["update"]
        found = *update["fc1.weight"].numpy()[1], update["fc1.bias"].numpy()[1]
        return -samples * np.array(found, float) / 1e6

    try:
        low, high = (-5.0, beyond(-5.0)), (5.0, beyond(5.0))
        while (few := low[1][-1] - high[1][-1]) > 1.5:
            middle = (low[0] + high[0]) / 2
            between = middle, beyond(middle)
            low, high = (low, between) if low[1][-1] - between[1][-1] > 0.5 else (between, high)
    except PermissionError:
        return asked, None
    return asked, (low[1] - high[1])[:-1] / few


def is_one_of(read, samples):
    return read is not None and np.abs(partition(samples).x - read).max(axis=1).min() < 0.01


def test_made_up_models_read_a_sample_which_no_floor_prevents():
    """What the documentation says plainly: who does not trust the server needs a limit, or noise."""
    asked, read = singled_out(real_node(97), 97)
    assert is_one_of(read, 97)
    assert asked < 10


def test_a_client_may_say_how_often_it_answers_in_a_run():
    node = real_node(97, max_answers=3)
    asked, read = singled_out(node, 97)
    assert read is None
    assert asked == 4
    assert "has given the max_answers=3 answers of a run" in says(answer(node, work(3, 32)))
    with pytest.raises(fw.BadInput, match="'max_answers' parameter"):
        flower.client("logistic", lambda who, of: partition(), max_answers=0)


def test_evaluations_count_among_the_answers():
    node = real_node(evaluate=True, max_answers=2)
    assert not says(answer(node, RecordDict({"arrays": model()}), MessageType.EVALUATE))
    assert not says(answer(node, ask_loss(model(), 0), "query.loss"))
    for kind, content in {
        MessageType.TRAIN: work(3, 4),
        MessageType.EVALUATE: RecordDict({"arrays": model()}),
        "query.loss": ask_loss(model(), 0),
    }.items():
        assert "max_answers=2" in says(answer(node, content, kind))


def test_a_request_that_leaves_the_work_to_the_client_meets_the_same_floors():
    request = TrainRequest(1, -1, 0, 0, 2, 0.1, 1.0, {"solver": describe(SGD())}, epochs=1.0)
    assert "min_batch=4" in says(answer(fleet(), ask(request, model(), {})))
