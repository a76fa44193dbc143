"""Every method of the zoo on every kind of task: it runs, resumes, and gives the same bits anywhere.

Over Flower each method has one task, in turn; with FEDWEAVE_FAULTS=1 it has all of them.
"""

import os

import numpy as np
import pytest
from torch import nn
from torch.nn import functional as F

import fedweave as fw
from fedweave import flower
from fedweave.engine.pool.processes import Workers
from fedweave.fleet.server.terms import VirtualClock
from fedweave.runs.loop import run_with
from fedweave.runs.method_names import method_names
from flower.rehearsal import reasons

THOROUGH = os.environ.get("FEDWEAVE_FAULTS") == "1"
CLIENTS = 6
ORACLES = ("feddelta", "fedis")  # which only a simulator can run
RNG = np.random.default_rng(0)
X, TOKENS = RNG.standard_normal((90, 5)).astype(np.float32), RNG.integers(0, 6, (90, 5))


class Bigram(nn.Module):
    """The logits of the next token, from the one before alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 6)

    def forward(self, x):
        return self.table(x)


class Heads(nn.Module):
    """Two inputs and two answers."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.size = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(2, 1)

    def forward(self, left, right):
        return {"tags": self.left(left) + self.right(right), "size": self.size(right)[:, 0]}


def loss(output, batch):
    tags = F.binary_cross_entropy_with_logits(output["tags"], batch.y["tags"], reduction="none").mean(1)
    return tags + (output["size"] - batch.y["size"]) ** 2


def overlap(output, batch):
    chosen, true = output["tags"] > 0, batch.y["tags"] > 0
    return (chosen & true).sum(), (chosen | true).sum()


PADDED = np.where(RNG.random((90, 4)) < 0.2, -100, TOKENS[:, 1:])
BOTH, ANSWERS = {"left": X[:, :3], "right": X[:, 3:]}, {"tags": X[:, :4] > 0, "size": X[:, 4]}
TASKS = {
    "classification": {"data": fw.data.from_arrays(X, RNG.integers(0, 3, 90)), "model": "logistic"},
    "regression": {"data": fw.data.from_arrays(X, X[:, :2] - 1), "model": "linear_regression"},
    "next_token": {"data": fw.data.from_arrays(TOKENS[:, :4], PADDED), "model": Bigram},
    "own": {
        "data": fw.data.from_arrays(BOTH, ANSWERS),
        "model": Heads,
        "task": fw.Task(loss, {"iou": overlap}, primary="iou"),
    },
}
METRICS = {"classification": "accuracy", "regression": "mae", "next_token": "perplexity", "own": "iou"}
METHODS = method_names()


def experiment(task, method, **changes):
    settings = {"partition": fw.partition.Auto(CLIENTS), "rounds": 2, "batch_size": 6, "workers": 1}
    return fw.Experiment(getattr(fw.methods, method)(3), **TASKS[task] | settings | changes)


@pytest.fixture(scope="module")
def workers():
    with Workers(2) as pool:
        yield pool


def stopped(row):
    if row["round"] == 1:
        raise KeyboardInterrupt


def in_turn(methods):
    """Return every method with a task, in turn; with FEDWEAVE_FAULTS=1, which `make faults` sets, with every task."""
    pairs = ((m, t, i % len(TASKS) == j) for i, m in enumerate(methods) for j, t in enumerate(TASKS))
    return [(method, task) for method, task, mine in pairs if THOROUGH or mine]


@pytest.mark.parametrize(("method", "task"), in_turn(METHODS))
def test_it_runs_resumes_and_gives_the_same_bits_in_processes(task, method, workers, tmp_path):
    uneven = experiment(task, method, system=fw.system.Dynamic())
    whole = fw.run(uneven)
    assert np.isfinite(whole.rounds[METRICS[task]]).all()
    assert not whole.rounds["abandoned"].any()
    digest = whole.summary["digest"]
    assert run_with(uneven, None, (), None, workers).summary["digest"] == digest
    with pytest.raises(fw.Interrupted):
        fw.run(uneven, tmp_path / "run", callbacks=stopped)
    resumed = fw.resume(tmp_path / "run", uneven)
    assert resumed.summary["digest"] == digest
    assert np.array_equal(resumed.rounds[METRICS[task]], whole.rounds[METRICS[task]])


def fleet(task):
    """Return six clients in this process, with the samples of the simulated ones."""
    given = TASKS[task]
    few = {"min_samples": 1, "min_batch": 1}  # some have a handful of samples
    app = flower.client(
        given["model"], flower.dealt(given["data"], "auto"), task=given.get("task"), evaluate=True, **few
    )
    return flower.LocalGrid(app, CLIENTS)


@pytest.mark.parametrize(("method", "task"), in_turn([m for m in METHODS if m not in ORACLES]))
def test_it_gives_the_same_bits_over_flower(task, method):
    same = experiment(task, method)
    over_flower = flower.run(same, fleet(task), flower.Terms(), clock=VirtualClock())
    simulated = fw.run(same)
    assert over_flower.summary["digest"] == simulated.summary["digest"]
    assert np.array_equal(over_flower.rounds[METRICS[task]], simulated.rounds[METRICS[task]])


@pytest.mark.parametrize("task", TASKS)
def test_an_oracle_is_refused_over_flower_whatever_the_task(task):
    for method in ORACLES:
        with pytest.raises(fw.BadInput, match="this sampler is for the simulator"):
            flower.run(experiment(task, method), fleet(task), flower.Terms(), clock=VirtualClock())


def test_partitions_by_class_are_refused_where_there_are_none():
    for task in ("regression", "next_token", "own"):
        with pytest.raises(fw.BadInput, match="has no classes"):
            fw.run(experiment(task, "fedavg", partition="dirichlet:0.1"))


@pytest.mark.parametrize("as_pair", [False, True])
def test_whole_numbers_are_features_for_named_models_over_flower_too(as_pair):
    data = fw.data.from_arrays(TOKENS, TOKENS[:, 0] % 3)
    mine = flower.dealt(data, "iid")

    def load(who, of):
        found = mine(who, of)
        return (found.x, found.y) if as_pair else found

    same = fw.Experiment("fedavg", data, fw.partition.IID(CLIENTS), "logistic", rounds=2, workers=1)
    grid = flower.LocalGrid(flower.client("logistic", load), CLIENTS)
    over_flower = flower.run(same, grid, flower.Terms(), clock=VirtualClock())
    assert over_flower.summary["digest"] == fw.run(same).summary["digest"]


@pytest.mark.parametrize("each", [True, False], ids=["each position", "the whole"])
def test_a_text_model_is_the_same_for_clients_that_do_not_know_all_tokens(each):
    tokens = np.sort(TOKENS, axis=0)  # so the first clients have the lowest ones
    data = fw.data.from_arrays(tokens[:, :4], tokens[:, 1:] if each else tokens[:, 4] % 2, group=np.arange(90) // 15)
    everyone = fw.methods.fedavg(CLIENTS)
    same = fw.Experiment(everyone, data, "natural", "lstm", rounds=1, steps=1, workers=1)
    grid = flower.LocalGrid(flower.client("lstm", flower.dealt(data, "natural")), CLIENTS)
    over_flower = flower.run(same, grid, flower.Terms(), clock=VirtualClock())
    assert over_flower.rounds["received"].tolist() == [CLIENTS]
    assert over_flower.summary["digest"] == fw.run(same).summary["digest"]


def test_clients_that_are_given_the_number_of_classes_need_not_know_all_tokens():
    mine = fw.data.from_arrays(np.zeros((4, 3), int), np.zeros((4, 3), int), classes=9)
    assert mine.tokens == 9


def fails(output, batch):
    if len(batch.y) > 3:  # not when it is tried
        raise LookupError("no such label")
    return F.cross_entropy(output, batch.y)


def test_a_client_whose_task_fails_says_why(tmp_path):
    data = TASKS["classification"]["data"]
    app = flower.client("logistic", flower.dealt(data, "iid"), task=fw.Task(fails))
    same = fw.Experiment("fedavg", data, fw.partition.IID(CLIENTS), "logistic", rounds=1)
    flower.run(same, flower.LocalGrid(app, CLIENTS), flower.Terms(), tmp_path / "run", clock=VirtualClock())
    assert {why.partition(": ")[2] for _, why in reasons(tmp_path / "run") if why.startswith("client")} == {
        "its app failed: LookupError: no such label"
    }
