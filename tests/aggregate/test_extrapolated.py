"""FedExP: the server's step by its formula, for the mean and for other weighted sums."""

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.aggregate import Anonymous, Extrapolated, InverseProbability, LinkAware, Mean, Scaffold, Varp

RNG = np.random.default_rng(0)
N, D = 6, 9
WEIGHT = RNG.dirichlet(np.ones(N))
EPSILON = 0.02


def combined(aggregator, updates, received=None, parameters=D, **cohort):
    population = worlds.equal_clients(N, weight=WEIGHT, loss_rate=0.3)
    view = worlds.view(population, D, layout=worlds.layout(D, parameters))
    everyone = worlds.cohort(np.arange(N), **cohort)
    return aggregator.combine(aggregator.init(population, D), view, everyone, worlds.replies(updates, received))


def test_the_step_is_the_papers_for_equal_clients():
    """η_g = max(1, Σ ‖Δ_i‖² / (2 M (‖Δ̄‖² + ε))), Δ̄ = Σ Δ_i / M, over those that were received."""
    population, received = worlds.equal_clients(N), np.array([True, False, True, True, True, False])
    view, updates = worlds.view(population, D), RNG.standard_normal((N, D))
    part, replies = Extrapolated(Mean(), EPSILON), worlds.replies(updates, received)
    direction, state = part.combine(part.init(population, D), view, worlds.cohort(np.arange(N)), replies)
    delta = -updates[received]
    mean = delta.sum(0) / 4
    step = max(1.0, (delta**2).sum() / (2 * 4 * (mean @ mean + EPSILON)))
    assert step > 1.2
    assert np.allclose(direction, -step * mean, atol=1e-14)
    assert part.measure(state, view) == {"extrapolation": pytest.approx(step)}


def test_updates_that_agree_are_not_extrapolated_and_orthogonal_ones_half_as_far_as_there_are():
    same = np.tile(RNG.standard_normal(D), (N, 1))
    direction, state = combined(Extrapolated(Mean(), EPSILON), same)
    assert state["extrapolation"] == 1
    assert np.allclose(direction, same[0])
    population, axes = worlds.equal_clients(N), np.eye(N, D)
    part = Extrapolated(Mean(), 1e-12)
    _, state = part.combine({}, worlds.view(population, D), worlds.cohort(np.arange(N)), worlds.replies(axes))
    assert state["extrapolation"] == pytest.approx(N / 2)  # mean square 1, square of the mean 1/N


@pytest.mark.parametrize("seed", range(20))
def test_the_step_is_never_shorter_than_the_inner_one(seed):
    updates = np.random.default_rng(seed).standard_normal((N, D)) + seed % 3
    plain, _ = combined(Mean(), updates)
    longer, state = combined(Extrapolated(Mean(), EPSILON), updates)
    assert state["extrapolation"] >= 1
    assert np.allclose(longer, state["extrapolation"] * plain)


@pytest.mark.parametrize("inner", [Mean(), Anonymous(), InverseProbability(), LinkAware()], ids=str)
def test_other_weights_are_normalised(inner):
    """With weights w of total W the step is that of the mean with w/W, whichever scale the inner rule has."""
    updates, received = RNG.standard_normal((N, D)), RNG.random(N) < 0.7
    count, expected = np.array([1, 2, 1, 1, 3, 1]), RNG.uniform(0.5, 2, N)
    w = np.zeros(N)
    for i in range(N):  # the weights, one client at a time
        w[i] = combined(inner, np.eye(N)[:, [i]] * np.ones(D), received, count=count, expected=expected)[0][0]
    shares = w / w.sum()
    mean = shares @ updates
    step = max(1.0, shares @ (updates**2).sum(1) / (2 * (mean @ mean + EPSILON / w.sum() ** 2)))
    got, _ = combined(Extrapolated(inner, EPSILON), updates, received, count=count, expected=expected)
    assert step > 1
    assert np.allclose(got, step * (w @ updates), atol=1e-12)


def test_buffers_neither_count_nor_move_further():
    updates = RNG.standard_normal((N, D))
    noisy = updates.copy()
    noisy[:, 6:] *= 100
    plain, _ = combined(Mean(), noisy, parameters=6)
    (got, state), (_, other) = (combined(Extrapolated(Mean(), EPSILON), u, parameters=6) for u in (noisy, updates))
    assert np.array_equal(state["extrapolation"], other["extrapolation"])
    assert np.allclose(got[:6], state["extrapolation"] * plain[:6])
    assert np.array_equal(got[6:], plain[6:])


def test_a_round_without_answers_makes_no_step():
    direction, state = combined(Extrapolated(Mean()), np.ones((N, D)), np.zeros(N, bool))
    assert not direction.any()
    assert state["extrapolation"] == 1


@pytest.mark.parametrize("inner", [Varp(), Scaffold(), Extrapolated(Mean())], ids=str)
def test_what_is_no_weighted_sum_is_refused(inner):
    with pytest.raises(fw.BadInput, match=r"needs a weighted sum of the updates, .* Use .*Mean\(\)"):
        Extrapolated(inner)
