"""The training loss over all clients, and the global model on each client's own test samples, against plain torch."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedweave as fw
from fedweave import report
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition
from fedweave.round.measures import of_clients
from fedweave.runs.loop import load_result
from fedweave.store.export import write_tables
from fedweave.tasks import Task
from interrupt import StopAfter
from runs.test_loop import assert_same
from store import toy_runs

COLUMNS = ("client_mean", "client_std", "client_worst", "client_worst_decile")
TRAIN = [range(11), range(11, 13), range(13, 40), range(40, 60)]
TEST = [range(7), range(3, 4), range(0), range(7, 30)]  # one has none, and two share a sample


@fw.settings
class Fixed(Partition):
    """The samples of TRAIN and TEST."""

    clients: int = 4
    tested: bool = True

    def split(self, data, rng):
        test = [part if self.tested else () for part in TEST]
        return Shares(*([np.array(part, np.int64) for part in parts] for parts in (TRAIN, test)))


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 3))


def hidden():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def noisy():
    """A network with dropout and running averages, which count only where it is trained."""
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.fixture(scope="module")
def flowers():
    """Sixty training and thirty test samples of three overlapping classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = (rng.standard_normal((90, 8)) + np.eye(3, 8)[y]).astype(np.float32)
    return fw.data.from_arrays(x[:60], y[:60], x[60:], y[60:])


@pytest.fixture
def small(flowers):
    """Return a maker of experiments of four clients on these samples."""

    def make(**changes):
        settings = {"data": flowers, "partition": Fixed(), "model": linear, "rounds": 5, "workers": 1, "lr": 0.3}
        return fw.Experiment(fw.methods.fedavg(2), **(settings | changes))

    return make


def logits(x, samples):
    """Return what the linear model with these parameters answers, in plain torch."""
    weight, bias = (torch.from_numpy(part) for part in (x[:24].reshape(3, 8), x[24:]))
    return F.linear(torch.from_numpy(samples), weight, bias)


def models(experiment):
    return [state.x for state, _ in fw.rounds(experiment)]


@pytest.mark.parametrize("weights", ["data", "equal"])
def test_the_objective_is_the_mean_training_loss_over_all_clients(small, flowers, weights):
    experiment = small(evaluate="train,test", weights=weights, evaluate_every=2)
    rounds, expected = fw.run(experiment).rounds, []
    for x in models(experiment):
        each = F.cross_entropy(logits(x, flowers.x), torch.from_numpy(flowers.y), reduction="none").numpy()
        by_client = [each[list(part)] for part in TRAIN]
        expected.append(
            np.mean([c.mean() for c in by_client]) if weights == "equal" else np.concatenate(by_client).mean()
        )
    due = [1, 3, 4]  # rounds 2, 4 and the last
    assert rounds["objective"][due] == pytest.approx(np.array(expected)[due], rel=1e-5)
    assert np.isnan(rounds["objective"][[0, 2]]).all()
    assert np.array_equal(rounds["accuracy"], fw.run(replace(experiment, evaluate=("test",))).rounds["accuracy"], True)


def test_train_alone_leaves_the_test_set_alone(small):
    both, alone = fw.run(small(evaluate="train,test")), fw.run(small(evaluate="train"))
    assert np.array_equal(both.rounds["objective"], alone.rounds["objective"])
    assert np.isnan([alone.rounds["accuracy"], alone.rounds["loss"]]).all()
    assert alone.summary["objective"] == both.summary["objective"] == both.rounds["objective"][-1]
    assert alone.summary["value"] is None
    assert alone.summary["digest"] == both.summary["digest"]
    assert "Training loss over all clients against rounds" in report.page([alone])
    plain = fw.run(small())
    assert "objective" not in {*plain.rounds, *plain.summary}


@pytest.mark.parametrize("slice_size", [500, 5])  # a client's samples are measured in slices
def test_scores_of_clients_are_those_of_plain_torch_on_their_own_test_samples(small, flowers, slice_size, monkeypatch):
    monkeypatch.setattr("fedweave.local.torch.trainer.EVALUATION_BATCH", slice_size)
    experiment = small(client_eval=2)
    result, trained = fw.run(experiment), models(experiment)
    found = result.client_scores
    assert found["round"].tolist() == [2, 2, 2, 4, 4, 4, 5, 5, 5]  # and in the last round
    assert found["client"].tolist() == [0, 1, 3] * 3  # client 2 has no test samples
    hits = [(logits(x, flowers.test_x).argmax(1).numpy() == flowers.test_y) for x in trained]
    expected = [np.mean(hits[round - 1][list(TEST[client])]) for round in (2, 4, 5) for client in (0, 1, 3)]
    assert found["value"] == pytest.approx(np.array(expected))
    for i, round in enumerate((2, 4, 5)):
        own = expected[3 * i : 3 * i + 3]
        row = [result.rounds[name][round - 1] for name in COLUMNS]
        assert row == pytest.approx([np.mean(own), np.std(own), min(own), min(own)])
    assert np.isnan(result.rounds["client_mean"][[0, 2]]).all()
    assert result.manifest["test_samples"] == [7, 1, 0, 23]
    worst = {"client": [0, 1, 3][int(np.argmin(expected[-3:]))], "others": expected[-3:].count(min(expected[-3:])) - 1}
    assert result.summary["worst_client"] == {"test_samples": [7, 1, 0, 23][worst["client"]], **worst}
    assert {name: result.summary[name] for name in COLUMNS} == {n: result.rounds[n][-1] for n in COLUMNS}
    assert result.summary["digest"] == fw.run(small()).summary["digest"]


def test_clients_with_sub_models_are_tested_with_the_whole_one(small, flowers):
    experiment = small(model=hidden, submodels="1,0.5", client_eval=5)
    result, x = fw.run(experiment), models(experiment)[-1]
    module = hidden()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(x), module.parameters())
    with torch.no_grad():
        hits = (module(torch.from_numpy(flowers.test_x)).argmax(1).numpy() == flowers.test_y).astype(float)
    assert result.client_scores["value"] == pytest.approx([hits[list(part)].mean() for part in TEST if part])


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("clients", [1, 9, 10, 19, 25, 100])
def test_the_worst_tenth_is_the_mean_of_those_that_are_left_when_the_others_are_taken_away(clients, higher):
    values = np.random.default_rng(clients).random(clients)
    left = values.tolist()
    while len(left) > max(1, clients // 10):
        left.remove(max(left) if higher else min(left))
    found = of_clients(values, higher)
    assert found["client_worst_decile"] == pytest.approx(sum(left) / len(left))
    assert found["client_worst"] == (min(values) if higher else max(values))


def test_the_worst_client_of_a_regression_has_the_largest_loss():
    result = fw.run(
        fw.Experiment(fw.methods.fedavg(3), "quadratics", "natural", rounds=2, client_eval=1, evaluate="train,test")
    )
    last = result.client_scores["value"][result.client_scores["round"] == 2]
    assert result.rounds["client_worst"][-1] == last.max()
    assert result.rounds["objective"] == pytest.approx(result.rounds["loss"])  # a quadratic has no other data


def test_a_metric_of_ones_own_is_taken_on_each_client(small, flowers):
    def distance(output, batch):
        return (output.softmax(1) - F.one_hot(batch.y, 3)).abs().sum(1)

    def loss(output, batch):
        return F.cross_entropy(output, batch.y, reduction="none")

    task = Task(loss, {"distance": distance}, primary="distance", higher_is_better=False)
    experiment = small(task=task, client_eval=5)
    result, x = fw.run(experiment), models(experiment)[-1]
    off = (logits(x, flowers.test_x).softmax(1) - F.one_hot(torch.from_numpy(flowers.test_y), 3)).abs().sum(1).numpy()
    own = [off[list(part)].mean() for part in TEST if part]
    assert result.client_scores["value"] == pytest.approx(np.array(own), rel=1e-5)
    assert result.rounds["client_worst"][-1] == pytest.approx(max(own), rel=1e-5)


@pytest.mark.parametrize("model", [linear, noisy])
def test_two_workers_give_the_same_rows(small, model):
    experiment = small(model=model, evaluate="train,test", client_eval=2, rounds=2)
    one, two = (fw.run(replace(experiment, workers=n)) for n in (1, 2))
    assert_same(one, two)
    assert_same_scores(one, two)


def assert_same_scores(a, b):
    assert a.client_scores["value"].size
    for name in ("round", "client", "value"):
        assert np.array_equal(a.client_scores[name], b.client_scores[name]), name


def test_interrupted_and_resumed_has_the_same_rows(small, tmp_path):
    experiment = small(evaluate=("test", "train"), client_eval=2)
    whole = fw.run(experiment)
    with pytest.raises(KeyboardInterrupt):
        fw.run(experiment, tmp_path / "run", callbacks=StopAfter(3))
    assert load_result(tmp_path / "run").client_scores["round"].max() == 2
    again = fw.resume(tmp_path / "run", experiment)
    assert_same(whole, again)
    assert_same_scores(whole, again)
    assert_same_scores(whole, load_result(tmp_path / "run"))


def test_scores_of_a_round_whose_state_was_not_saved_go_with_its_rows(tmp_path):
    store = toy_runs.new(tmp_path / "run")
    for r in (1, 2):
        store.add(toy_runs.row(r), toy_runs.clients(r), [], {"round": [r], "client": [7], "value": [r / 3]})
    store.save(toy_runs.state(1), always=True)
    found = store.columns("client_scores")
    assert [found[name].tolist() for name in ("round", "client", "value")] == [[1], [7], [1 / 3]]
    store.rewind(0)
    assert store.columns("client_scores")["round"].size == 0
    store.close()


def test_scores_are_exported(small, tmp_path):
    result = fw.run(small(client_eval=5), tmp_path / "run")
    files = write_tables(tmp_path, result.rounds, result.clients, "csv", result.client_scores)
    assert [file.name for file in files] == ["rounds.csv", "clients.csv", "client_scores.csv"]
    lines = files[2].read_text().split()
    assert lines[0] == "round,client,value,test_samples"
    assert [float(line.split(",")[2]) for line in lines[1:]] == result.client_scores["value"].tolist()
    plain = fw.run(small())
    assert len(write_tables(tmp_path, plain.rounds, plain.clients, "csv", plain.client_scores)) == 2


def test_a_run_folder_without_the_table_is_read_and_continued(small, tmp_path):
    experiment = small()
    with pytest.raises(KeyboardInterrupt):
        fw.run(experiment, tmp_path / "run", callbacks=StopAfter(2))
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as db, db:
        db.execute("DROP TABLE client_scores")
    old = load_result(tmp_path / "run")
    assert old.client_scores["value"].size == 0
    assert "own test data" not in report.page([old])
    assert_same(fw.run(experiment), fw.resume(tmp_path / "run", experiment))


def test_what_cannot_be_evaluated_is_refused(small, tmp_path):
    with pytest.raises(fw.BadInput, match="no client has test samples of its own"):
        fw.run(small(partition=Fixed(tested=False), client_eval=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(fw.BadInput, match="'target' is measured on the test set"):
        small(evaluate="train", target=0.5)
    with pytest.raises(fw.BadInput, match=r"There is no set 'tset'\. Did you mean 'test'\?"):
        small(evaluate="tset")
    for nothing in ("", ()):
        with pytest.raises(fw.BadInput, match="train, test or both"):
            small(evaluate=nothing)
    assert small(evaluate=["test", "train", "test"]).evaluate == small(evaluate="train,test").evaluate
