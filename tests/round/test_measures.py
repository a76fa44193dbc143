"""What is measured of a round: by hand, against autograd, and in the tables of a run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedweave as fw
import worlds
from fedweave import theory
from fedweave.aggregate import Mean
from fedweave.core.records import Assignment, ServerState
from fedweave.engine.pool.processes import Workers
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.round import Round, measures
from worlds import quadratic_simulator


def seen(updates, received, direction, x, parameters=None):
    n, d = updates.shape
    at = worlds.view(worlds.equal_clients(n), d, layout=worlds.layout(d, parameters))
    replies = worlds.replies(updates, received)
    assignment = Assignment(at, worlds.cohort(np.arange(n)))
    happened = Round(assignment, replies, refused=[], direction=np.array(direction), bytes_down=0)
    state = ServerState(round=1, x=np.array(x), clock=0.0, sampler={}, aggregator={}, server={})
    return measures.of_round(Mean(), state, happened)


def test_diversity_and_lengths_by_hand():
    """u = (3, 0), (0, 4) and one lost: √((9 + 16)/2) / ‖(1.5, 2)‖ = √2."""
    updates = np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    got = seen(updates, [True, False, True], [3.0, 4.0], [0.0, 2.5])
    assert got == pytest.approx({"diversity": np.sqrt(2), "direction_length": 5.0, "step_length": 2.5})


def test_pulls_that_cancel_are_infinitely_diverse_and_silence_is_not_measured():
    assert seen(np.array([[1.0], [-1.0]]), [True, True], [0.0], [0.0])["diversity"] == np.inf
    assert "diversity" not in seen(np.zeros((2, 1)), [False, False], [0.0], [0.0])
    assert "diversity" not in seen(np.zeros((2, 1)), [True, True], [0.0], [0.0])


def test_buffers_are_no_gradients():
    updates = np.array([[3.0, 100.0], [1.0, -100.0]])
    got = seen(updates, [True, True], [3.0, 77.0], [2.0, 99.0], parameters=1)
    assert got == pytest.approx({"diversity": np.sqrt(5) / 2, "direction_length": 3.0, "step_length": 2.0})


class Small(nn.Module):
    """A convolution (kept channels-last inside), a batch norm with buffers, dropout and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5)
        self.head = nn.Linear(3 * 2 * 2, 4)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))


def clients(sizes):
    rng, n = np.random.default_rng(0), sum(sizes)
    x, y = rng.standard_normal((n, 2, 4, 4)).astype(np.float32), rng.integers(0, 4, n)
    return worlds.client_data(x, y, sizes, order=rng.permutation(n))


def test_true_gradients_are_those_of_autograd_in_the_order_of_the_model():
    data, sizes = clients([3, 700, 20]), [3, 700, 20]
    torch.manual_seed(0)
    module = Small()
    x = initial_vector(module)
    with Workers(1) as workers:
        found = torch_simulator(Small, data, SGD(), 0, workers).gradients(x, np.array([2, 0, 1]))
    module.eval()
    for row, client in zip(found, [2, 0, 1], strict=True):
        part = data.parts[client]
        assert part.size == sizes[client]
        loss = F.cross_entropy(module(torch.from_numpy(data.x[part])), torch.from_numpy(data.y[part]))
        exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
        assert row[: exact.size] == pytest.approx(exact, abs=1e-5)
        assert not row[exact.size :].any()  # running averages have none


def test_measures_of_true_gradients_are_the_formulas_on_all_of_them():
    n = 2 * measures.AT_A_TIME + 5  # in several pieces
    rng = np.random.default_rng(1)
    weight, surrogate = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n))
    problem, x = Quadratics.random(n, 7), rng.standard_normal(7)
    population = worlds.equal_clients(n, weight=weight)
    engine = quadratic_simulator(problem, SGD(), 0, weight)
    got = measures.of_gradients(engine, x, population, surrogate)
    gradients = x - problem.optimum
    assert got["true_diversity"] == pytest.approx(theory.gradient_diversity(gradients, weight))
    assert got["true_surrogate_diversity"] == pytest.approx(theory.surrogate_diversity(gradients, weight, surrogate))
    assert got["gradient_length"] == pytest.approx(np.linalg.norm(weight @ gradients))
    assert "true_surrogate_diversity" not in measures.of_gradients(engine, x, population, None)


def test_a_run_keeps_its_measures(tiny, tmp_path):
    experiment = tiny(fw.methods.fedaware(3), rounds=5, evaluate_every=2, true_gradients=True)
    rounds = fw.run(experiment, tmp_path / "run").rounds
    for name in ("diversity", "direction_length", "step_length", "surrogate_diversity", "chi_square", "shortening"):
        assert np.isfinite(rounds[name]).all(), name
    evaluated = np.isfinite(rounds["accuracy"])
    for name in ("true_diversity", "gradient_length", "true_surrogate_diversity"):
        assert np.array_equal(np.isfinite(rounds[name]), evaluated), name
    assert (rounds["surrogate_diversity"] >= rounds["memory_diversity"] * (1 - 1e-9)).all()
    assert (rounds["diversity"] >= 1 - 1e-6).all()
    again = fw.load_result(tmp_path / "run").rounds
    assert all(np.array_equal(again[name], rounds[name], equal_nan=True) for name in rounds)
    plain = fw.run(replace(experiment, true_gradients=False, method=fw.methods.fedavg(3))).rounds
    assert "surrogate_diversity" not in plain
    assert "true_diversity" not in plain


def test_true_gradients_change_nothing_and_do_not_depend_on_workers(tiny):
    measured = [fw.run(tiny(rounds=1, true_gradients=True, workers=w)) for w in (1, 2)]
    plain = fw.run(tiny(rounds=1))
    assert {r.summary["digest"] for r in measured} == {plain.summary["digest"]}
    assert np.array_equal(measured[0].rounds["true_diversity"], measured[1].rounds["true_diversity"])


def test_own_aggregators_may_measure(tiny):
    @fw.settings
    class Told(fw.aggregate.Mean):
        def measure(self, state, view):
            return {"twice_the_round": 2.0 * view.round}

    rounds = fw.run(tiny(fw.Method(fw.sample.Uniform(3), aggregator=Told(), name="told"), rounds=3)).rounds
    assert rounds["twice_the_round"].tolist() == [2, 4, 6]
