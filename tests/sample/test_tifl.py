"""TiFL: tiers by speed, credits, and probabilities by hand."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

import worlds
from fedweave.aggregate import InverseProbability
from fedweave.core.settings import BadInput
from fedweave.sample import FirstEveryone, Tiers
from fedweave.sample.tifl import by_rank

N = 7
LATENCY = np.array([5.0, 1.0, 9.0, 2.0, 3.0, 8.0, 1.5])  # order: 1 6 3 | 4 0 | 5 2
TIER = np.array([1, 0, 2, 0, 1, 2, 0])
OTHER = (0.2, 0.5, 0.3)


def view(round=1, available=None, **fields):
    there = np.ones(N, bool) if available is None else np.isin(np.arange(N), available)
    plain = {"latency": LATENCY, "available": there, "samples": np.arange(1, N + 1)}
    return worlds.view(worlds.equal_clients(N, **(plain | fields)), round=round)


def first(sampler):
    return sampler.init(view().population)


def heard(sampler, state, ids, round=1, **fields):
    """Return the state after these clients were asked."""
    answers = worlds.replies(np.zeros((len(ids), 2)), **({"seconds": LATENCY[ids]} | fields))
    return sampler.learn(state, view(round), worlds.cohort(ids), answers)


def test_tiers_are_equal_groups_by_speed():
    sampler = Tiers(2, 3)
    assert np.array_equal(sampler.tier_of(first(sampler), view()), TIER)
    many = Tiers(2, 20)
    assert np.unique(many.tier_of(first(many), view())).size == N, "no tier has two, and some have nobody"
    assert np.isclose(many.law(first(many), view()).sum(), 1)


@pytest.mark.parametrize("per_round", [1, 2, 3, 9])
@pytest.mark.parametrize("available", [None, [0, 1, 3, 6], [2, 5, 6]])
def test_the_law_is_exact_for_tiers_of_any_size(per_round, available):
    """Every tier and every choice in it, by hand; tiers of which nobody is available are left out."""
    sampler = Tiers(per_round, 3, probability=OTHER)
    there = np.arange(N) if available is None else np.array(available)
    members = [there[TIER[there] == t] for t in range(3)]
    total = sum(p for p, m in zip(OTHER, members, strict=True) if m.size)
    mean = np.zeros(N)
    for p, m in zip(OTHER, members, strict=True):
        k = min(per_round, m.size)
        for chosen in combinations(m, k) if k else ():
            mean[list(chosen)] += p / total / comb(m.size, k)
    assert np.allclose(sampler.law(first(sampler), view(available=available)), mean)
    rng = np.random.default_rng(0)
    for _ in range(20):
        cohort = sampler.draw(first(sampler), view(available=available), rng)
        (tier,) = set(TIER[cohort.ids])
        assert cohort.ids.size == min(per_round, members[tier].size)
        assert np.allclose(cohort.expected, mean[cohort.ids])


def test_inverse_probability_is_unbiased_though_tiers_differ_in_size():
    sampler, updates = Tiers(2, 3, probability=OTHER), np.random.default_rng(0).standard_normal((N, 2))
    now, mean = view(), np.zeros(2)
    law = sampler.law(first(sampler), now)
    for t, p in enumerate(OTHER):
        m = np.flatnonzero(np.equal(TIER, t))
        for chosen in map(list, combinations(m, 2)):
            cohort = worlds.cohort(chosen, expected=law[chosen])
            direction, _ = InverseProbability().combine({}, now, cohort, worlds.replies(updates[chosen]))
            mean += p / comb(m.size, 2) * direction
    assert np.allclose(mean, updates.mean(0))


def test_measured_seconds_move_clients_between_tiers():
    """Client 1 promised 1 s and took 20 and 10: its mean, 15 s, makes it the slowest."""
    sampler = Tiers(2, 3)
    state = heard(sampler, first(sampler), [1], seconds=np.array([20.0]))
    state = heard(sampler, state, [1], seconds=np.array([10.0]))
    assert state["seconds"][1] == 15
    tier = sampler.tier_of(state, view())
    assert tier.tolist() == [1, 2, 2, 0, 0, 1, 0]
    ignored = heard(sampler, state, [1], seconds=np.array([np.nan]))
    assert ignored["seconds"][1] == 15


def test_a_warm_start_profiles_everybody():
    sampler = FirstEveryone(Tiers(2, 3), 1)
    state = sampler.init(view().population)
    cohort = sampler.draw(state, view(), np.random.default_rng(0))
    assert cohort.ids.size == N
    state = sampler.learn(state, view(), cohort, worlds.replies(np.zeros((N, 2)), seconds=10 - LATENCY))
    assert np.array_equal(sampler.sampler.tier_of(state, view(2)), [0, 2, 0, 1, 1, 0, 2])


def test_a_tier_without_credits_is_not_asked_until_all_are_spent():
    sampler = Tiers(2, 3, credits=(1, 2, 1))
    state, law = first(sampler), []
    for ids in ([1, 3], [0, 4], [2, 5], [0, 4]):
        law.append(np.unique(np.round(sampler.law(state, view()), 9)))
        state = heard(sampler, state, ids)
    assert np.allclose(law[0], [2 / 9, 1 / 3])
    assert np.allclose(law[1], [0, 1 / 2]), "two tiers are left, and both of a tier of two are asked"
    assert np.allclose(law[3], [0, 1])
    assert state["credits"].tolist() == [1, 2, 1], "all spent: they begin anew"
    spent = {**state, "credits": np.array([0, 0, 1])}
    assert np.allclose(sampler.law(spent, view(available=[1, 3, 6])), (TIER == 0) * 2 / 3), (
        "those with credits are away"
    )
    anew = {**state, "probability": np.array([1.0, 0, 0]), "credits": np.array([0, 2, 1])}
    assert np.allclose(sampler.chances(anew, np.array([3, 2, 2])), [0, 1 / 2, 1 / 2]), "whoever has credits comes first"
    fast = Tiers(2, 3, probability=(1, 0, 0))
    assert np.allclose(fast.law(first(fast), view(available=[2, 5])), TIER == 2), "the only ones there"
    assert sampler.learn(state, view(), worlds.cohort([]), worlds.replies(np.zeros((0, 2)))) is state


def test_probabilities_follow_losses_when_a_tier_gets_no_better():
    """Checks after rounds 2, 4 and 6: tier 0 improves on nothing, then on 4, then does not improve on 2."""
    sampler = Tiers(2, 3, interval=2)
    state = heard(sampler, first(sampler), [0, 4], 1, loss=np.array([1.0, 7.0]))
    state = heard(sampler, state, [1, 3], 2, loss=np.array([4.0, 4.0]))
    assert np.allclose(state["before"], [4, (1 * 1 + 5 * 7) / 6, np.inf]), "weighted by samples"
    assert np.allclose(state["probability"], 1 / 3)
    state = heard(sampler, state, [1, 3], 4, loss=np.array([2.0, 2.0]))
    assert np.allclose(state["probability"], 1 / 3)
    state = heard(sampler, state, [1, 3], 5, loss=np.array([3.0, 3.0]))
    assert np.allclose(state["probability"], 1 / 3), "no check in an odd round"
    lost = heard(sampler, state, [1, 3], 6, loss=np.array([0.1, 0.1]), received=[False, False])
    state = heard(sampler, state, [1, 3], 6, loss=np.array([2.0, 3.0]))
    assert np.allclose(state["probability"], [1 / 6, 2 / 6, 3 / 6]), "the tier that was never heard first"
    assert np.allclose(lost["probability"], [1 / 6, 2 / 6, 3 / 6]), "a lost answer has no loss"
    fixed = Tiers(2, 3, interval=1, probability=OTHER)
    assert np.allclose(heard(fixed, first(fixed), [1, 3])["probability"], OTHER)


def test_ranks_count_tiers_with_credits_alone():
    assert np.allclose(by_rank(np.array([1.0, 5, 3, 2]), np.array([True, False, True, True])), [1 / 6, 0, 3 / 6, 2 / 6])
    assert np.allclose(by_rank(np.zeros(3), np.ones(3, bool)), [3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"credits": (1, 2)}, "'credits' parameter of Tiers must have one number per tier, 3. Got 2"),
        ({"probability": (0.5, 0.5)}, "'probability' parameter of Tiers must have one number per tier"),
        ({"probability": (0.5, 0.5, 0.5)}, "must sum to 1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(BadInput, match=words):
        Tiers(2, 3, **settings)
