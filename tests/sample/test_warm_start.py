"""A beginning with everyone: asked once, without repetition, and then as the other sampler says."""

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.aggregate import InverseProbability
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, describe
from fedweave.method import Method
from fedweave.sample import ACS, FirstEveryone, Optimal, Uniform, Weighted

N = 10


def view(round, available=None):
    there = np.ones(N, bool) if available is None else np.array(available)
    return worlds.view(worlds.equal_clients(N, available=there), round=round)


def begin(sampler, rounds, available=None, seed=0):
    """Return the cohorts of the first rounds."""
    rng, state, cohorts = np.random.default_rng(seed), sampler.init(view(1).population), []
    for r in range(1, rounds + 1):
        at = view(r, available and available(r))
        cohort = sampler.draw(state, at, rng)
        law = sampler.law(state, at)
        assert np.allclose(cohort.expected, law[cohort.ids])
        assert law.sum() == pytest.approx(cohort.count.sum())
        state = sampler.learn(state, at, cohort, worlds.replies(np.ones((cohort.ids.size, 2)), steps=3))
        cohorts.append(cohort.ids)
    return cohorts


def test_everyone_in_one_round():
    cohorts = begin(FirstEveryone(Uniform(3)), 4)
    assert cohorts[0].tolist() == list(range(N))
    assert [c.size for c in cohorts[1:]] == [3, 3, 3]


@pytest.mark.parametrize(
    ("rounds", "sizes"), [(2, [5, 5]), (4, [3, 3, 2, 2]), (10, [1] * 10), (13, [1] * 10 + [0] * 3)]
)
def test_everyone_once_in_several_rounds(rounds, sizes):
    cohorts = begin(FirstEveryone(Uniform(3), rounds), rounds + 2)
    assert sorted(np.concatenate(cohorts[:rounds]).tolist()) == list(range(N))
    assert sorted((c.size for c in cohorts[:rounds]), reverse=True) == sizes
    assert [c.size for c in cohorts[rounds:]] == [3, 3]


@pytest.mark.parametrize(("per_round", "sizes"), [(3, [3, 3, 2, 2]), (5, [5, 5]), (10, [10])])
def test_everyone_once_in_rounds_no_larger_than_the_samplers(per_round, sizes):
    cohorts = begin(FirstEveryone(Uniform(per_round), None), len(sizes))
    assert sorted(np.concatenate(cohorts).tolist()) == list(range(N))
    assert sorted((c.size for c in cohorts), reverse=True) == sizes
    with pytest.raises(BadInput, match="rounds=None needs a sampler with a fixed cohort size"):
        FirstEveryone(fw.sample.Everyone(), None)


def test_the_groups_are_random():
    assert any(
        a.tolist() != b.tolist()
        for a, b in zip(*(begin(FirstEveryone(Uniform(3), 4), 4, seed=s) for s in (0, 1)), strict=True)
    )


def test_nobody_waits_for_who_is_unavailable():
    cohorts = begin(FirstEveryone(Uniform(2), 2), 4, lambda r: np.arange(N) >= (5 if r == 1 else 3))
    assert min(cohorts[0]) >= 5
    assert sorted([*cohorts[0], *cohorts[1]]) == list(range(3, N))
    assert begin(FirstEveryone(Uniform(2)), 1, lambda r: np.zeros(N, bool))[0].size == 0


@pytest.mark.parametrize("then", [Weighted(4), Optimal(4), ACS(4, links="estimated")], ids=str)
def test_samplers_that_learn_go_on_learning(then):
    """What the other sampler remembers is its own, and it hears of the first rounds too."""
    sampler, at = FirstEveryone(then), view(1)
    state = sampler.init(at.population)
    cohort = sampler.draw(state, at, np.random.default_rng(0))
    replies = worlds.replies(np.ones((N, 2)), steps=3)
    after = sampler.learn(state, at, cohort, replies)
    alone = then.learn(then.init(at.population), at, cohort, replies)
    assert all(np.array_equal(after[k], alone[k], equal_nan=True) for k in alone)
    assert np.allclose(sampler.law(after, view(2)), then.law(alone, view(2)))


def test_it_goes_with_what_the_other_sampler_goes_with():
    Method(FirstEveryone(Uniform(3)), aggregator=InverseProbability())

    class Greedy(fw.sample.Uniform):
        law_known = False

    with pytest.raises(BadInput, match="known law"):
        Method(FirstEveryone(fw.settings(Greedy)(3)), aggregator=InverseProbability())


def test_it_is_kept_as_plain_data_and_built_again():
    method = fw.methods.fedaware(4)
    assert build(Method, describe(method), "method") == method


def test_too_many_per_round_are_refused_as_ever():
    with pytest.raises(BadInput, match="more clients than there are"):
        FirstEveryone(Uniform(N + 1)).init(view(1).population)
