"""Server optimisers: one scalar step by hand, and what they reduce to."""

import numpy as np
import pytest

from fedweave.core.records import Layout
from fedweave.server import Adagrad, Adam, Descent, Momentum, Yogi, advance

ONE = np.ones(1, np.float32)


def walk(server, deltas):
    x, state, seen = np.zeros(1, np.float32), server.init(1), []
    for d in deltas:
        x, state = server.step(state, x, np.array([d], np.float32))
        seen.append(float(x[0]))
    return seen, state


def test_descent_adds_the_direction():
    assert walk(Descent(0.5), [1, -3])[0] == [0.5, -1.0]


def test_momentum_by_hand():
    """v = 1; 0.5·1 + 2 = 2.5; 0.5·2.5 − 1 = 0.25."""
    assert walk(Momentum(lr=0.1, beta=0.5), [1, 2, -1])[0] == pytest.approx([0.1, 0.35, 0.375])


def test_momentum_zero_is_descent():
    assert walk(Momentum(0.3, 0.0), [1, 2, 3])[0] == walk(Descent(0.3), [1, 2, 3])[0]


def test_adam_first_step_by_hand():
    """m = 0.1, v = 0.01, step = lr·0.1/(0.1 + 1e-4)."""
    seen, state = walk(Adam(lr=1.0, beta1=0.9, beta2=0.99, tau=1e-4), [1])
    assert state["m"][0] == pytest.approx(0.1)
    assert state["v"][0] == pytest.approx(0.01)
    assert seen == pytest.approx([0.1 / (0.1 + 1e-4)])


def test_yogi_starts_like_adam_and_then_forgets_slower():
    """From v = 0 both have v = 0.01. At d = 0: Adam forgets, 0.0099; Yogi keeps 0.01, for it moves by steps of d²."""
    assert walk(Yogi(1.0), [1])[1]["v"] == pytest.approx(walk(Adam(1.0), [1])[1]["v"])
    assert walk(Yogi(1.0), [1, 0])[1]["v"][0] == pytest.approx(0.01)
    assert walk(Adam(1.0), [1, 0])[1]["v"][0] == pytest.approx(0.0099)


def test_yogi_moves_towards_the_square_from_above_too():
    """v = 1, d = 0.5: v − 0.01·0.25·sign(1 − 0.25) = 0.9975."""
    assert walk(Yogi(1.0, v0=1.0), [0.5])[1]["v"][0] == pytest.approx(0.9975)


def test_adagrad_by_hand():
    """v = 1 then 5; steps 1/(1 + τ) and 2/(√5 + τ)."""
    tau = 1e-3
    first, second = walk(Adagrad(lr=1.0, tau=tau), [1, 2])[0]
    assert first == pytest.approx(1 / (1 + tau))
    assert second - first == pytest.approx(2 / (5**0.5 + tau), rel=1e-6)


@pytest.mark.parametrize("server", [Descent(), Momentum(), Adagrad(), Adam(), Yogi()], ids=lambda s: type(s).__name__)
def test_coordinates_do_not_mix_and_state_is_not_changed_in_place(server):
    state, x = server.init(3), np.array([1.0, 2.0, 3.0], np.float32)
    before = {k: v.copy() for k, v in state.items()}
    moved, after = server.step(state, x, np.array([0, 1, 0], np.float32))
    assert moved[[0, 2]].tolist() == [1.0, 3.0]
    assert moved[1] > 2.0
    assert all(np.array_equal(state[k], before[k]) for k in before)
    assert set(after) == set(state)
    assert moved.dtype == np.float32


def test_buffers_follow_the_direction_without_the_optimizer():
    layout = Layout(names=("w", "running_mean"), shapes=((2,), (1,)), parameters=2)
    x, d = np.zeros(3, np.float32), np.array([1, 1, 1], np.float32)
    moved, _ = advance(Descent(0.1).step, {}, x, d, layout)
    assert moved == pytest.approx([0.1, 0.1, 1.0])
