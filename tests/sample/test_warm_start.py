"""A beginning with everyone: asked once, without repetition, and then as the other sampler says."""

import numpy as np
import pytest

import fedweave as fw
from fedweave.aggregate import InverseProbability
from fedweave.core.records import Layout, Population, Replies, View
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, describe
from fedweave.method import Method
from fedweave.sample import ACS, FirstEveryone, Optimal, Uniform, Weighted

N = 10


def view(round, available=None):
    one = np.ones(N)
    there = one > 0 if available is None else np.array(available)
    population = Population(one / N, one, np.full(N, 3), one, 0 * one, one, there)
    return View(round, np.zeros(2), population, Layout(("w",), ((2,),), 2), 0.1, lambda s: s, lambda ids: ids)


def begin(sampler, rounds, available=None, seed=0):
    """Return the cohorts of the first rounds."""
    rng, state, cohorts = np.random.default_rng(seed), sampler.init(view(1).population), []
    for r in range(1, rounds + 1):
        at = view(r, available and available(r))
        cohort = sampler.draw(state, at, rng)
        law = sampler.law(state, at)
        assert np.allclose(cohort.expected, law[cohort.ids])
        assert law.sum() == pytest.approx(cohort.count.sum())
        k, nothing = cohort.ids.size, np.zeros(cohort.ids.size)
        replies = Replies(np.ones(k, bool), np.ones((k, 2)), nothing + 3, nothing, nothing + 1, nothing, nothing)
        state = sampler.learn(state, at, cohort, replies)
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
    nothing = np.zeros(N)
    replies = Replies(np.ones(N, bool), np.ones((N, 2)), nothing + 3, nothing, nothing + 1, nothing, nothing)
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
