"""FedCS and Oort: who is taken, by hand and by brute force, and that budgets hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedweave as fw
import worlds
from fedweave.core.settings import BadInput
from fedweave.sample import Deadline, Oort
from fedweave.sample.fedcs import choose_within
from fedweave.sample.oort import largest

N = 8
SIZE = np.array([1, 1, 2, 2, 1, 1, 4, 4]) * 100
UP = np.array([8, 4, 8, 2, 1, 16, 8, 4.0])


def population(available=None):
    there = np.ones(N, bool) if available is None else np.isin(np.arange(N), available)
    return worlds.equal_clients(
        N,
        samples=10 * (1 + np.arange(N)),
        latency=3 + 8 * SIZE / UP + 8 * SIZE / 80,
        available=there,
        model_bytes=SIZE,
        up_rate=UP,
        down_rate=80.0,
    )


def view(round=1, p=None):
    return worlds.view(p or population(), round=round)


def draw(sampler, state=None, round=1, p=None, seed=0):
    p = p or population()
    state = sampler.init(p) if state is None else state
    return sampler.draw(state, view(round, p), np.random.default_rng(seed))


def test_fedcs_takes_the_fastest_links():
    link = SIZE / UP + SIZE / 80
    for k in range(1, N + 1):
        cohort = draw(Deadline(k))
        assert set(cohort.ids) == set(np.argsort(link, kind="stable")[:k])
        assert np.isnan(cohort.expected).all()
    some = draw(Deadline(3), p=population([1, 3, 4, 6]))
    assert some.ids.tolist() == [1, 4, 6]


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 0.6, 0.99, 1.0])
def test_fedcs_stays_within_its_budget_and_could_take_no_more(keep):
    order = np.argsort(SIZE / UP + SIZE / 80, kind="stable")
    ids = draw(Deadline(keep=keep)).ids
    assert set(ids) == set(order[: ids.size])
    assert SIZE[ids].sum() <= keep * SIZE.sum() or ids.size == 1
    if ids.size < N:
        assert SIZE[order[: ids.size + 1]].sum() > keep * SIZE.sum()


def elapsed(order, compute, up, down):
    """Sequential uploads in this order, after a download as long as the slowest."""
    t = 0.0
    for i in order:
        t = max(t, compute[i]) + up[i]
    return max(down[list(order)], default=0) + t


def test_a_deadline_is_kept_and_the_greedy_choice_is_near_the_best():
    rng = np.random.default_rng(0)
    short = 0
    for _ in range(30):
        compute, up, down = rng.uniform(0, 4, 6), rng.uniform(0.2, 3, 6), rng.uniform(0, 1, 6)
        chosen = choose_within(6.0, compute, up, down)
        assert len(set(chosen)) == chosen.size
        assert elapsed(chosen, compute, up, down) <= 6.0 + 1e-12 or chosen.size == 1
        best = max(
            (
                k
                for k in range(7)
                for some in itertools.permutations(range(6), k)
                if elapsed(some, compute, up, down) <= 6
            ),
            default=0,
        )
        short += best - chosen.size
    assert short <= 15, "half a client per instance at most"
    assert choose_within(0.1, compute, up, down).tolist() == [int(np.argmin(compute + up + down))], (
        "nobody fits: the fastest"
    )


def replies(ids, loss, seconds):
    return worlds.replies(np.zeros((len(ids), 2)), loss=loss, seconds=seconds)


def told(sampler, rounds):
    """Return the state after every client was heard in each of these rounds, with losses 1 … N."""
    p, ids = population(), np.arange(N)
    state = sampler.init(p)
    for r in range(1, rounds + 1):
        heard = replies(ids, 1.0 + ids, p.latency)
        state = sampler.learn(state, view(r, p), worlds.cohort(ids, expected=np.nan), heard)
    return state


def test_oorts_scores_by_hand():
    sampler = Oort(4, fastest=0.5)
    state = told(sampler, 1)
    p = population()
    gain = p.samples * (1.0 + np.arange(N))
    least, top = 0.999 * gain.min(), np.quantile(gain, 0.98)
    expected = (np.minimum(gain, top) - least) / (gain.max() - least) + np.sqrt(0.1 * np.log(5) / 1)
    preferred = np.quantile(p.latency, 0.5)
    expected *= np.where(p.latency > preferred, (preferred / p.latency) ** 2, 1)
    assert np.allclose(sampler._scores(state, view(5, p)), expected)
    free = Oort(4, fastest=0.5, straggler=0)._scores(state, view(5, p))
    assert np.argmax(free) == N - 1, "without the penalty the highest loss and most data lead"


def test_oorts_utility_is_the_root_mean_square_of_the_samples_losses():
    """Losses (1, 1) and (0, 2) have the same mean; (0, 2) has the larger root mean square, √2."""
    sampler, p = Oort(4), population()
    losses = np.array([[1.0, 1.0], [0.0, 2.0], [3.0, 4.0]])
    told = {"loss": losses.mean(1), "squared_loss": np.append((losses[:2] ** 2).mean(1), np.nan)}
    after = sampler.learn(
        sampler.init(p), view(1, p), worlds.cohort([0, 1, 2]), worlds.replies(np.zeros((3, 2)), **told)
    )
    assert after["utility"][:3] == pytest.approx([10 * 1, 20 * 2**0.5, 30 * 3.5])  # the last reports only its mean
    silent = worlds.replies(np.zeros((3, 2)), loss=losses.mean(1))
    after = sampler.learn(sampler.init(p), view(1, p), worlds.cohort([0, 1, 2]), silent)
    assert after["utility"][:3] == pytest.approx([10, 20, 105])


def test_clients_report_their_squared_losses_to_oort(tiny):
    """A round of one step over all of a client's samples: its first loss is the mean, and the squares exceed it."""
    e = tiny(fw.methods.oort(5), system=fw.system.Uniform(), rounds=1, steps=1, batch_size=10_000)
    ((state, happened),) = fw.rounds(e)
    ids, heard = happened.cohort.ids, happened.replies
    assert heard.first_loss == pytest.approx(heard.loss)
    assert (heard.squared_loss > heard.loss**2).all()
    expected = happened.view.population.samples[ids] * np.sqrt(heard.squared_loss)
    assert state.sampler["utility"][ids] == pytest.approx(expected)


def test_oort_without_exploration_drops_the_lowest_utilities():
    sampler, rng = Oort(3, explore=0, straggler=0), np.random.default_rng(0)
    state = sampler.init(population())
    first = draw(sampler, state).ids  # nobody is known: the largest
    assert set(first) == {5, 6, 7}
    for seed in range(20):
        heard = rng.random(N) < 0.8
        state = {**state, "utility": rng.random(N), "heard": heard.astype(float)}
        score = sampler._scores(state, view(5))
        order = sorted(range(N), key=lambda i: (heard[i], -score[i]))  # who never answered comes first
        assert set(draw(sampler, state, 5, seed=seed).ids) == set(order[:3])


def test_oort_explores_first_and_exploits_later():
    sampler = Oort(4)
    first = draw(sampler)
    assert first.ids.size == 4, "nobody is known: all new"
    state = told(sampler, 3)
    rows = np.array([np.isin(np.arange(N), draw(sampler, state, 4, seed=s).ids) for s in range(300)])
    assert (rows.sum(1) == 4).all()
    score = sampler._scores(state, view(4))
    worthy = score >= 0.7 * np.sort(score)[-4]
    assert rows[:, worthy].any(0).all()
    assert not rows[:, ~worthy].any()
    state["heard"][2] = 0  # a new one
    share = np.mean([2 in draw(sampler, state, 40, seed=s).ids for s in range(200)])
    assert share > 0.95, "new ones are asked while there are any"


def test_oort_relaxes_when_utility_is_flat_and_tightens_when_it_jumps():
    sampler = Oort(4, pace=3, fastest=0.3)
    assert told(sampler, 5)["fastest"][0] == pytest.approx(0.3)
    state = told(sampler, 6)
    assert state["fastest"][0] == pytest.approx(0.3), "the first round gained nothing yet"
    flat = told(sampler, 9)
    assert flat["fastest"][0] == pytest.approx(0.35)
    state = {**told(sampler, 8), "gained": np.array([1.0, 1, 1, 1, 1, 1])}
    ids, p = np.arange(N), population()
    heard = replies(ids, np.full(N, 100.0), p.latency)
    after = sampler.learn(state, view(9, p), worlds.cohort(ids, expected=np.nan), heard)
    assert after["fastest"][0] == pytest.approx(max(state["fastest"][0] - 0.05, 0.05))


def test_oort_stays_within_a_budget_of_bytes():
    for round in (1, 9):
        for seed in range(30):
            state = told(Oort(keep=0.4), round - 1) if round > 1 else None
            ids = draw(Oort(keep=0.4), state, round, seed=seed).ids
            assert SIZE[ids].sum() <= 0.4 * SIZE.sum() or ids.size == 1


@pytest.mark.parametrize("sampler", [Deadline, Oort])
def test_one_limit_is_needed(sampler):
    for limits in ({}, {"per_round": 3, "keep": 0.5}):
        with pytest.raises(BadInput, match=f"to {sampler.__name__}"):
            sampler(**limits)


def test_greedy_choices_go_with_rules_that_need_no_law():
    with pytest.raises(BadInput, match="known law"):
        fw.Method(Deadline(3), aggregator=fw.aggregate.InverseProbability())
    assert not draw(Deadline(3), p=population([])).ids.size
    assert not draw(Oort(3), p=population([])).ids.size


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 40))
def test_the_largest_are_those_of_a_whole_sort(scores, count):
    score = np.array(scores, float)
    assert largest(score, count).tolist() == np.argsort(-score, kind="stable")[:count].tolist()
