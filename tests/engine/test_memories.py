"""Clients that remember in the simulator: what they recall bends the right entries, with the same bits everywhere."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedweave as fw
import worlds
from fedweave import methods
from fedweave.core.records import NO_CONTEXT, ClientContext
from fedweave.engine.pool.processes import Workers
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.solvers import SGD, ControlVariate, Dyn, Tracking
from fedweave.local.torch.flat_module import build_module, initial_vector
from fedweave.round import first_state, run_round
from fedweave.tables.rows import Rows
from worlds import N, data, dense, everyone, population

LR = 0.1


def normed():
    """Convolutions, whose weights are kept in another order inside, and running averages, which nobody trains."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(50, 10)
    )


def told(dim, parameters, seed=0):
    """A vector from the server and a memory of each client."""
    rng = np.random.default_rng(seed)
    sent, memory = rng.standard_normal(dim).astype(np.float32), rng.standard_normal((N, dim)).astype(np.float32)
    sent[parameters:], memory[:, parameters:] = 0, 0
    return ClientContext(broadcast=sent, memory=Rows.zeros(N, dim).replaced(np.arange(N), memory)), sent, memory


def train(model, solver, carried, workers=None, steps=None, loss_rate=0.0):
    engine = torch_simulator(model, data(), solver, 0, workers or Workers(1))
    world = population(loss_rate)
    world = world if steps is None else replace(world, steps=np.full(N, steps))
    return engine.train(
        worlds.assignment(engine, 1, initial_vector(build_module(model, 0)), everyone(), world, LR, carried)
    ), engine.layout


@pytest.mark.parametrize("model", [dense, normed])
def test_what_is_recalled_bends_the_first_step_entry_by_entry(model):
    plain, layout = train(model, SGD(), NO_CONTEXT, steps=1)
    has, sent, memory = told(layout.dim, layout.parameters)
    scaffold, _ = train(model, ControlVariate(), has, steps=1)
    assert np.allclose(scaffold.updates - plain.updates, -LR * (sent - memory), atol=1e-6)
    feddyn, _ = train(model, Dyn(0.3), has, steps=1)
    assert np.allclose(feddyn.updates - plain.updates, LR * memory, atol=1e-6)
    p = layout.parameters
    assert np.allclose(scaffold.memory_change[:, :p], -sent[:p] - scaffold.updates[:, :p] / LR, atol=1e-4)
    assert np.allclose(feddyn.memory_change[:, :p], -0.3 * feddyn.updates[:, :p], atol=1e-6)
    for replies in (scaffold, feddyn):
        assert not replies.memory_change[:, p:].any(), "nothing is remembered of running averages"
        assert np.array_equal(replies.updates[:, p:], plain.updates[:, p:])
    assert plain.memory_change is None


@pytest.mark.parametrize("model", [dense, normed])
def test_tracked_gradients_send_the_last_of_several_steps(model):
    """A control variate without c walks along the same g − m_i; what its last step adds is what FOCUS sends."""
    _, layout = train(model, SGD(), NO_CONTEXT, steps=1)
    has, *_ = told(layout.dim, layout.parameters)
    silent, p = has._replace(broadcast=np.zeros(layout.dim, np.float32)), layout.parameters
    two, three = (train(model, ControlVariate(), silent, steps=steps)[0].updates for steps in (2, 3))
    tracked, _ = train(model, Tracking(), has, steps=3)
    assert np.allclose(tracked.updates[:, :p], (three - two)[:, :p], atol=1e-6)
    assert np.abs(two[:, :p]).max(axis=1).min() > 0.01, "the steps before it are not sent"
    assert np.array_equal(tracked.updates[:, p:], three[:, p:]), "running averages of the whole walk"
    assert np.allclose(tracked.memory_change[:, :p], -tracked.updates[:, :p] / LR, rtol=1e-5)
    assert not tracked.memory_change[:, p:].any()


def test_one_and_two_workers_give_the_same_bits():
    solvers = ControlVariate(SGD(momentum=0.5)), Dyn(0.1, "data"), Tracking()
    cases = [(model, solver) for model in (dense, normed) for solver in solvers]
    found = []
    for count in (1, 2):
        with Workers(count) as workers:
            found.append([])
            for model, solver in cases:
                dim = initial_vector(build_module(model, 0)).size
                found[-1].append(train(model, solver, told(dim, dim - 6 * (model is normed))[0], workers)[0])
    for one, two in zip(*found, strict=True):
        assert np.array_equal(one.updates, two.updates)
        assert np.array_equal(one.memory_change, two.memory_change)
        assert one.memory_change.any(axis=1).all()


def test_a_lost_reply_changes_no_memory_and_no_other_reply():
    has, *_ = told(dense_dim := initial_vector(build_module(dense, 0)).size, dense_dim)
    lossy, _ = train(dense, ControlVariate(), has, loss_rate=0.5)
    clean, _ = train(dense, ControlVariate(), has)
    assert 0 < lossy.received.sum() < N
    assert not lossy.memory_change[~lossy.received].any()
    assert np.array_equal(lossy.memory_change[lossy.received], clean.memory_change[lossy.received])
    assert (lossy.bytes_up == 2 * 4 * dense_dim).all()


@pytest.mark.parametrize(
    ("method", "kept"),
    [(methods.feddyn(N, alpha=0.1), "moved"), (methods.focus(N), "tracked")],
    ids=["feddyn", "focus"],
)
def test_running_averages_follow_the_mean(method, kept):
    """x_b ← mean y_b: were they corrected like parameters, a variance could become negative."""
    engine = torch_simulator(normed, data(), method.solver, 0, Workers(1))
    state = first_state(method, initial_vector(build_module(normed, 0)), population(), engine.layout.parameters)
    p = engine.layout.parameters
    for _ in range(3):
        before = state
        state, happened = run_round(method, state, population(), engine, LR, 0)
        assert np.allclose(state.x[p:], before.x[p:] + happened.replies.updates[:, p:].mean(0), atol=1e-6)
        assert not state.aggregator[kept][p:].any()
        assert np.abs(state.x[:p] - before.x[:p] - happened.replies.updates[:, :p].mean(0)).max() > 1e-4


def test_oracles_rehearse_with_what_clients_remember():
    """The law is proportional to the lengths of the updates that clients then send, and memories bend those."""
    method = replace(methods.scaffold(4), sampler=fw.sample.Optimal(4, norms="oracle", form="multinomial"))
    engine = torch_simulator(dense, data(), method.solver, 0, Workers(1))
    state = first_state(method, initial_vector(build_module(dense, 0)), population(), engine.layout.parameters)
    for _ in range(4):
        state, happened = run_round(method, state, population(), engine, LR, 0)
        lengths = np.linalg.norm(happened.replies.updates, axis=1)
        assert happened.cohort.expected / lengths == pytest.approx(happened.cohort.expected[0] / lengths[0], rel=1e-4)
    assert state.clients["memory"].written.sum() > 1


def test_rows_count_what_scaffold_sends(tiny):
    once, twice = fw.run(tiny(methods.feddyn(3))), fw.run(tiny(methods.scaffold(3)))
    for column in ("bytes_up", "bytes_down"):
        assert np.array_equal(twice.rounds[column], 2 * once.rounds[column])
