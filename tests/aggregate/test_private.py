"""Differential privacy: sensitivity by trial, noise by its law, and epsilon against integrals written out here."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

import worlds
from fedweave import privacy
from fedweave.aggregate import Anonymous, Private
from fedweave.core.settings import BadInput


def happened(updates, count, received, round=1, seed=0):
    k, dim = updates.shape
    view = worlds.view(worlds.equal_clients(k), dim, round=round, seed=seed)
    return view, worlds.cohort(np.arange(k), count=count), worlds.replies(updates, received)


def test_without_noise_and_clipping_it_is_the_anonymous_sum():
    U, count = np.random.default_rng(0).standard_normal((4, 6)), np.array([1, 3, 1, 2])
    received = np.array([True, True, False, True])
    part, it = Private(clip=1e6, noise=1e-14), happened(U, count, received)
    d, state = part.combine(part.init(it[0].population, 6), *it)
    np.testing.assert_allclose(d, Anonymous().combine({}, *it)[0], atol=1e-7)
    assert state["spent"].tolist() == [1, 9, 0, 4]


def test_one_draw_moves_the_sum_by_no_more_than_the_clip():
    rng, part = np.random.default_rng(1), Private(clip=0.7, noise=1.0)
    for _ in range(50):
        U, count = 10 ** rng.uniform(-3, 3) * rng.standard_normal((5, 8)), rng.integers(1, 4, 5)
        with_it, heard = happened(U, count, np.ones(5, bool)), np.ones(5, bool)
        heard[2] = False
        without = happened(U, count, heard)
        start = part.init(with_it[0].population, 8)
        moved = part.combine(start, *with_it)[0] - part.combine(start, *without)[0]  # the same noise in both
        assert np.linalg.norm(moved) * count.sum() <= 0.7 * count[2] * (1 + 1e-9)


def test_the_noise_has_its_deviation_and_its_address():
    part, U = Private(clip=0.5, noise=3.0), np.zeros((2, 40_000))
    count, heard = np.array([2, 3]), np.ones(2, bool)

    def drawn(round, seed):
        it = happened(U, count, heard, round, seed)
        return part.combine(part.init(it[0].population, U.shape[1]), *it)[0]

    a = drawn(1, 0)
    assert abs(a.std() * 5 / 1.5 - 1) < 5 / math.sqrt(2 * a.size)  # five standard errors
    assert (a == drawn(1, 0)).all()
    assert abs(np.corrcoef(a, drawn(2, 0))[0, 1]) < 0.03
    assert abs(np.corrcoef(a, drawn(1, 1))[0, 1]) < 0.03


def gaussian_delta(epsilon: float, sensitivity: float, deviation: float) -> float:
    """Return δ of the Gaussian mechanism by its closed form (Balle and Wang)."""
    r = sensitivity / deviation
    return norm.cdf(r / 2 - epsilon / r) - math.exp(epsilon) * norm.cdf(-r / 2 - epsilon / r)


def test_known_participation_is_one_gaussian_mechanism():
    for noise, spent in ((1.0, 1), (2.0, 9), (4.0, 100)):
        want = brentq(lambda e, n=noise, s=spent: gaussian_delta(e, math.sqrt(s), n) - 1e-5, 0, 500)
        assert privacy.epsilon_participation_known(noise, spent, 1e-5) == pytest.approx(want, rel=1e-6)
    assert privacy.epsilon_participation_known(1.0, 0, 1e-5) == 0


def mixture_delta(epsilon: float, noise: float, draws: int, p: float) -> float:
    """Return the larger hockey-stick divergence of one round, by summing it up on a fine grid."""
    t = np.linspace(-12 * noise, draws + 12 * noise, 20_001)
    mix = sum(w * norm.pdf(t, c, noise) for c, w in enumerate(binom.pmf(np.arange(draws + 1), draws, p)))
    zero, grow = norm.pdf(t, 0, noise), math.exp(epsilon)
    return max(np.maximum(a - grow * b, 0).sum() * (t[1] - t[0]) for a, b in ((mix, zero), (zero, mix)))


@pytest.mark.parametrize(("noise", "draws", "p"), [(1.0, 1, 1.0), (1.0, 5, 0.1)])
def test_amplified_epsilon_of_one_round(noise, draws, p):
    want = brentq(lambda e: mixture_delta(e, noise, draws, p) - 1e-5, 1e-3, 20)
    found = privacy.epsilon(noise, 1, draws, p, 1e-5)
    assert want * (1 - 1e-6) <= found <= want + 0.01  # an upper bound, and a close one


def test_amplification_helps_and_rounds_cost():
    once, often = (privacy.epsilon(1.0, rounds, 2, 0.01, 1e-5) for rounds in (1, 50))
    assert once < often < privacy.epsilon_participation_known(1.0, 50 * 2 * 0.01, 1e-5)
    assert privacy.epsilon(1.0, 100, 10, 0.0, 1e-5) == 0
    with pytest.raises(BadInput, match="noise > 0"):
        privacy.epsilon(0.0, 100, 10, 0.01, 1e-5)
