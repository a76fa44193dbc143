"""Latency-optimal selection: what it learns, what it then plans, and which estimator goes with it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import methods, theory
from fedweave.aggregate import InverseProbability, Models
from fedweave.core.randomness import Stream, rng_for
from fedweave.sample import LatencyOptimal, UniformDraws, Weighted
from fedweave.solve import latency_plan

N, D = 4, 3
WEIGHT = np.array([0.4, 0.3, 0.2, 0.1])
LATENCY = np.array([5.0, 1.0, 0.5, 2.0])
UPDATES = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
BOUND = np.array([1.0, 3.0, 0.5, 2.0])  # G


def view(round=1, latency=LATENCY, x=None, weight=WEIGHT, available=None):
    n = len(weight)
    there = np.ones(n, bool) if available is None else np.array(available)
    population = worlds.equal_clients(n, weight=weight, steps=5, latency=latency, available=there)
    x = np.zeros(D, np.float32) if x is None else x
    return worlds.view(population, x.size, round=round, x=x)


def replies(cohort, gradient=BOUND, loss=1.0, latency=LATENCY, received=None, updates=UPDATES):
    found = worlds.replies(updates[cohort.ids].astype(np.float32), received, loss=loss, seconds=latency[cohort.ids])
    return found._replace(first_gradient=np.where(found.received, gradient[cohort.ids], np.nan))


def everyone(count=1):
    return worlds.cohort(np.arange(N), count=count, expected=float(count))


def taught(sampler, rounds, told=lambda r: everyone(), **answers):
    """Return the state after so many rounds in which the cohorts ``told`` answered."""
    state = sampler.init(view().population)
    for r in range(1, rounds + 1):
        cohort = told(r)
        state = sampler.learn(state, view(r), cohort, replies(cohort, **answers))
    return state


def test_a_trial_by_data_share_then_the_plan():
    sampler = LatencyOptimal(3, trial=2)
    state = taught(sampler, 1)
    assert np.allclose(sampler.law(state, view(2)), 3 * WEIGHT)
    state = taught(sampler, 2)
    square, latency, alpha = sampler.estimates(state, WEIGHT)
    assert np.allclose(square, BOUND**2)
    assert np.allclose(latency, LATENCY)
    # eq. 27 for t = 1 and 2 with loss 1: √t − (1/3) Σ d G², averaged
    assert alpha == pytest.approx((1 + np.sqrt(2)) / 2 - (WEIGHT @ BOUND**2) / 3)
    plan = latency_plan(LATENCY, (WEIGHT * BOUND) ** 2, alpha, 1.0, [3])
    assert np.allclose(sampler.law(state, view(3)), 3 * plan.probability)
    assert np.allclose(taught(sampler, 7)["probability"], plan.probability), "without replan the first plan stays"


def test_alpha_by_hand_and_where_it_would_be_negative():
    sampler = LatencyOptimal(5, trial=4)
    losses = [2.0, 1.5, 1.2, 1.0]
    state = sampler.init(view().population)
    for r, loss in enumerate(losses, 1):
        state = sampler.learn(state, view(r), everyone(), replies(everyone(), gradient=0.1 * BOUND, loss=loss))
    data = WEIGHT @ (0.1 * BOUND) ** 2 / 5
    by_hand = np.mean([np.sqrt(t) * e - data for t, e in enumerate(losses, 1)])
    assert sampler.estimates(state, WEIGHT).alpha == pytest.approx(by_hand)
    small = sampler.estimates(taught(sampler, 4, loss=0.01), WEIGHT)
    assert small.alpha == pytest.approx(1e-3 * WEIGHT @ BOUND**2 / 5)
    given = LatencyOptimal(5, trial=4, alpha=7.0)
    assert given.estimates(taught(given, 4), WEIGHT).alpha == 7
    bold = LatencyOptimal(5, trial=4, boldness=3.0)
    assert bold.estimates(taught(bold, 4), WEIGHT).alpha == pytest.approx(3 * WEIGHT @ BOUND**2 / 5)
    with pytest.raises(fw.BadInput, match="either 'alpha' or 'boldness'"):
        LatencyOptimal(5, alpha=1.0, boldness=1.0)
    gradient = LatencyOptimal(5, trial=4, progress="gradient")
    level = WEIGHT @ BOUND**2
    expected = np.mean(np.sqrt([1, 2, 3, 4])) * level - level / 5
    assert gradient.estimates(taught(gradient, 4, loss=np.nan), WEIGHT).alpha == pytest.approx(expected)


def test_the_loss_counts_at_the_model_where_the_gradient_is_measured():
    """Local training reaches a loss of 0.01 from 2 on: eq. 27 holds at the global model, not on the way."""
    sampler, state = LatencyOptimal(5, trial=4), LatencyOptimal(5).init(view().population)
    for r in range(1, 5):
        told = replies(everyone(), loss=0.01)._replace(first_loss=np.array([2.0, 2.0, np.nan, 2.0]))
        told.loss[2] = 2.0  # reports its mean loss only
        state = sampler.learn(state, view(r), everyone(), told)
    by_hand = 2 * np.mean(np.sqrt([1, 2, 3, 4])) - WEIGHT @ BOUND**2 / 5
    assert sampler.estimates(state, WEIGHT).alpha == pytest.approx(by_hand)


def softmax_regression(x, y, theta, classes):
    """Return the mean cross-entropy of logits W x + b and its gradient's norm, by hand."""
    W, b = theta[: classes * x.shape[1]].reshape(classes, -1), theta[classes * x.shape[1] :]
    z = x @ W.T + b
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d = (p - np.eye(classes)[y]) / len(y)
    return -np.log(p[np.arange(len(y)), y]).mean(), np.sqrt(((d.T @ x) ** 2).sum() + (d.sum(0) ** 2).sum())


def test_alpha_is_that_of_an_independent_estimate(digits):
    """Ten clients of one class each: α̃ from loss and gradient of a softmax regression in NumPy, at every global model.

    With all samples in a batch G is the norm of the true gradient, and the draws of a round are the only chance.
    """
    trial, per_round = 4, 40
    e = fw.Experiment(
        method=replace(methods.latency_optimal(per_round), sampler=LatencyOptimal(per_round, trial=trial)),
        data=digits, partition=fw.partition.OneClass(10), model="logistic", system=fw.system.Latency(),
        rounds=trial, steps=20, batch_size=10_000, lr=0.1, workers=1,
    )  # fmt: skip
    parts = e.partition.split(digits, rng_for(e.seed, 0, Stream.PARTITION)).train
    images = (digits.x.reshape(len(digits), -1) / 255 - digits.mean[0]) / digits.std[0]
    losses, squares, on_the_way = [], [], []
    trained = list(fw.rounds(e))
    for t, (_, happened) in enumerate(trained, 1):
        ids, count, weight = happened.cohort.ids, happened.cohort.count, happened.view.population.weight
        found = np.array([softmax_regression(images[i], digits.labels[i], happened.view.x, 10) for i in parts])
        losses.append(np.sqrt(t) * count @ found[ids, 0] / per_round)  # p = ω: the draws are a fair sample
        squares.append(weight @ found[:, 1] ** 2)
        on_the_way.append(np.sqrt(t) * count @ happened.replies.loss / per_round)
    data = np.mean(squares) / per_round
    alpha = e.method.sampler.estimates(trained[-1][0].sampler, weight).alpha
    assert alpha == pytest.approx(np.mean(losses) - data, rel=0.1)
    assert alpha > data
    assert np.mean(on_the_way) - data < alpha / 3  # what the mean loss of the local training says


def test_gradients_are_compared_within_their_round():
    """Gradients that grow tenfold from round to round, each client heard in some of them only."""
    sampler = LatencyOptimal(2, trial=3)
    state, together = sampler.init(view().population), [[0, 1], [1, 2], [2, 3]]
    levels = []
    for r, ids in enumerate(together, 1):
        cohort = worlds.cohort(ids, expected=2 * WEIGHT[ids])
        state = sampler.learn(state, view(r), cohort, replies(cohort, gradient=10.0**r * np.ones(N)))
        levels.append(100.0**r)
    square = sampler.estimates(state, WEIGHT).square
    assert np.allclose(square, square[0]), "they differ in when they were heard, not in themselves"
    assert WEIGHT @ square == pytest.approx(np.mean(levels))


def test_after_the_plan_a_round_is_weighed_by_its_law():
    """Client 0 drawn twice where ½ is expected, client 3 once where 2 are: the level is that of everybody."""
    sampler = LatencyOptimal(3, trial=1)
    state, cohort = taught(sampler, 1), worlds.cohort([0, 3], count=np.array([2, 1]), expected=np.array([0.5, 2.0]))
    after = sampler.learn(state, view(2), cohort, replies(cohort))
    w = np.array([0.4 * 2 / 0.5, 0.1 * 1 / 2.0])
    level = w @ BOUND[[0, 3]] ** 2 / w.sum()
    assert np.allclose(after["square"][[0, 3]], 0.9 * state["square"][[0, 3]] + BOUND[[0, 3]] ** 2 / level)
    assert after["rounds"] == state["rounds"], "the trial is over: eq. 26 holds for p = d only"


def test_clients_never_heard_from_are_taken_for_average():
    sampler = LatencyOptimal(2, trial=1, latency="observed")
    cohort = worlds.cohort([0, 2], expected=2 * WEIGHT[[0, 2]])
    state = sampler.init(view().population)
    state = sampler.learn(state, view(1), cohort, replies(cohort))
    square, latency, _ = sampler.estimates(state, WEIGHT)
    assert square[0] / square[2] == pytest.approx((BOUND[0] / BOUND[2]) ** 2)
    assert square[1] == square[3] == pytest.approx((square[0] + square[2]) / 2)
    assert latency.tolist() == [5.0, 2.75, 0.5, 2.75]


def test_a_round_in_which_nobody_is_heard_teaches_latencies_only():
    sampler = LatencyOptimal(2, trial=1)
    silent = replies(everyone(), received=[False] * N)
    state = sampler.learn(sampler.init(view().population), view(1), everyone(), silent)
    assert np.array_equal(state["probability"], WEIGHT)
    assert not state["heard"].any()
    assert np.array_equal(state["seconds"], LATENCY)


def test_a_trial_that_taught_nothing_goes_on():
    sampler = LatencyOptimal(2, trial=1)
    state = sampler.init(view().population)
    state = sampler.learn(state, view(1), everyone(), replies(everyone(), received=[False] * N))
    state = sampler.learn(state, view(2), everyone(), replies(everyone()))
    assert state["planned"].tolist() == [2]
    assert not np.allclose(state["probability"], WEIGHT)


@pytest.mark.parametrize("gradient", [0.0, 1e200, np.inf])
def test_gradients_that_teach_nothing_change_nothing(gradient):
    sampler = LatencyOptimal(2, trial=1)
    with np.errstate(over="ignore", invalid="ignore"):
        state = taught(sampler, 1, gradient=np.full(N, gradient))
    assert np.allclose(state["probability"], WEIGHT)


def test_norm_selection_follows_the_participants_after_every_round():
    """Client 0's gradient grows tenfold in round 3: its probability follows at once, in closed form."""
    sampler, state = methods.latency_norm(3).sampler, LatencyOptimal(3).init(view().population)
    g, visits, total = BOUND.copy(), np.zeros(N), np.zeros(N)
    for r in range(1, 6):
        g[0] = 10.0 if r >= 3 else 1.0
        cohort = worlds.cohort(np.arange(N), expected=sampler.law(state, view(r)))
        state = sampler.learn(state, view(r), cohort, replies(cohort, gradient=g))
        w = WEIGHT / cohort.expected
        visits, total = 0.9 * visits + 1, 0.9 * total + g**2 / (w @ g**2 / w.sum())
        law = WEIGHT * np.sqrt(total / visits)
        assert np.allclose(state["probability"], law / law.sum(), rtol=1e-6)
    assert state["planned"] == [5]


def test_equal_latencies_are_norm_selection():
    state = taught(LatencyOptimal(3, trial=1, latency="equal"), 1)
    assert np.allclose(state["probability"], WEIGHT * BOUND / (WEIGHT @ BOUND))
    assert methods.latency_norm(3).sampler == LatencyOptimal(3, trial=1, replan=1, latency="equal")


def test_the_plan_follows_latencies_that_drift():
    """After the trial fast and slow change places; only the sampler that plans again notices."""
    swapped = LATENCY[::-1]
    laws = {}
    for replan in (None, 5):
        sampler = LatencyOptimal(3, trial=2, replan=replan, alpha=50.0)
        state = taught(sampler, 2)
        first = state["probability"]
        for r in range(3, 60):
            state = sampler.learn(state, view(r, swapped), everyone(), replies(everyone(), latency=swapped))
        laws[replan] = state["probability"]
        assert (r, np.array_equal(state["probability"], first)) == (59, replan is None)
    seconds = {k: theory.expected_round_seconds(p, swapped, 3) for k, p in laws.items()}
    assert seconds[5] < seconds[None]
    best = latency_plan(swapped, (WEIGHT * BOUND) ** 2, 50.0, 1.0, [3]).probability
    assert np.allclose(laws[5], best, atol=0.01)


def test_the_cohort_can_be_planned_too():
    sampler = LatencyOptimal(3, trial=1, cohort="planned", epsilon=0.1, alpha=1.0)
    state = taught(sampler, 1)
    plan = latency_plan(LATENCY, (WEIGHT * BOUND) ** 2, 1.0, 0.1)
    assert plan.cohort_size != 3
    assert state["draws"].tolist() == [plan.cohort_size]
    cohort = sampler.draw(state, view(2), np.random.default_rng(0))
    assert cohort.count.sum() == plan.cohort_size
    assert np.allclose(sampler.law(state, view(2)), plan.cohort_size * plan.probability)


def test_a_floor_caps_the_weights():
    slow = np.array([1.0, 1.0, 1.0, 1e6])
    free, held = (LatencyOptimal(3, trial=1, alpha=1e4, floor=f) for f in (0.0, 0.25))
    weights = []
    for sampler in (free, held):
        state = sampler.init(view().population)
        state = sampler.learn(state, view(1, slow), everyone(), replies(everyone(), latency=slow))
        weights.append((WEIGHT / state["probability"]).max())
    assert weights[0] > 100
    assert weights[1] == pytest.approx(4)


def test_only_available_clients_are_asked():
    sampler = LatencyOptimal(6, trial=1)
    state, there = taught(sampler, 1), [False, True, False, True]
    law = sampler.law(state, view(2, available=there))
    assert law.sum() == pytest.approx(6)
    assert law[[0, 2]].tolist() == [0, 0]
    assert sampler.draw(state, view(2, available=[False] * N), np.random.default_rng(0)).ids.size == 0


class Scripted:
    """Stands in for a Generator: hands out the draw that the enumeration has come to."""

    def __init__(self, points):
        self.points = points

    def random(self, size):
        assert size == len(self.points)
        return np.array(self.points)


def draws(sampler, state):
    """Yield (probability, cohort) over everything the sampler can draw."""
    p = sampler.law(state, view())
    k, p = round(p.sum()), p / p.sum()
    middle = np.cumsum(p) - p / 2
    for who in product(range(len(p)), repeat=k):
        yield np.prod(p[list(who)]), sampler.draw(state, view(), Scripted(middle[list(who)]))


LAWS = {
    "trial": (LatencyOptimal(2), 0),
    "planned": (LatencyOptimal(2, trial=1, alpha=10.0), 1),
    "norm": (LatencyOptimal(3, trial=1, latency="equal"), 1),
    "size": (LatencyOptimal(1, trial=1, cohort="planned", epsilon=3.0, alpha=1.0), 1),
    "uniform": (UniformDraws(2), 0),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("aggregator", [InverseProbability(), Models()], ids=str)
def test_every_law_is_unbiased_with_either_estimator(name, aggregator):
    """E[x_new] = Σ d y by exact enumeration of the draws, for updates and for models (eqs 16 to 19)."""
    sampler, rounds = LAWS[name]
    state, x, mean, chance = taught(sampler, rounds), np.float32([3.0, -2.0, 1.0]), np.zeros(D), 0.0
    for probability, cohort in draws(sampler, state):
        direction, _ = aggregator.combine({}, view(x=x), cohort, replies(cohort))
        mean += probability * (x + direction)
        chance += probability
    assert chance == pytest.approx(1)
    assert np.allclose(mean, WEIGHT @ (x + UPDATES), atol=1e-5)


def test_models_vary_more_than_the_lemma_allows_and_updates_do_not():
    """N = 2, d = ½, p = (0.2, 0.8), M = 1, x = 10, y = (9, 11), so that |u| = 1 = I γ G.

    Both means are 10. The variance is 39.0625 for models (eq. 4) and 1.5625 for updates, exactly the bound of Lemma 3.
    """
    d, p, x, y = np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.float32([10.0]), np.array([[9.0], [11.0]])
    found = {}
    for aggregator in (Models(), InverseProbability()):
        after = []
        for i in (0, 1):
            cohort = worlds.cohort([i], expected=p[[i]])
            here = view(x=x, weight=d, latency=np.ones(2))
            step, _ = aggregator.combine({}, here, cohort, replies(cohort, updates=y - x))
            after.append((x + step)[0])
        mean = p @ after
        found[type(aggregator)] = (mean, p @ (np.array(after) - mean) ** 2)
    assert found[Models] == pytest.approx((10.0, 39.0625))
    assert found[InverseProbability] == pytest.approx((10.0, 1.5625))
    assert (d**2 / p).sum() == pytest.approx(1.5625)


def test_self_normalised_weights_sum_to_one_in_every_draw():
    """With equal updates any cohort gives that update; plain inverse-probability weights do so on average only."""
    sampler, rounds = LAWS["planned"]
    state, same = taught(sampler, rounds), np.ones((N, D), np.float32)
    plain, normalised, bias = [], [], np.zeros(D)
    for chance, cohort in draws(sampler, state):
        answer = replies(cohort, updates=same)
        plain.append(InverseProbability().combine({}, view(), cohort, answer)[0][0])
        normalised.append(InverseProbability("weights").combine({}, view(), cohort, answer)[0][0])
        bias += chance * InverseProbability("weights").combine({}, view(), cohort, replies(cohort))[0]
    assert np.allclose(normalised, 1, atol=1e-6)
    assert max(plain) > 1.2 > 0.8 > min(plain)
    assert np.abs(bias - WEIGHT @ UPDATES).max() > 0.01, "the price is a bias"


def test_under_ratio_selection_all_estimators_are_the_mean_of_the_drawn():
    x = np.float32([3.0, -2.0, 1.0])
    for _, cohort in draws(Weighted(2), {}):
        mean = cohort.count / 2 @ UPDATES[cohort.ids]
        for aggregator in (InverseProbability(), InverseProbability("weights"), Models()):
            assert np.allclose(aggregator.combine({}, view(x=x), cohort, replies(cohort))[0], mean, atol=1e-5)


def test_self_normalised_weights_know_their_step_but_not_their_mean():
    aggregator = InverseProbability("weights")
    assert np.isnan(aggregator.coefficients(view(), WEIGHT)).all()
    assert aggregator.step_length(view(), WEIGHT) == pytest.approx(5.0)


def test_in_a_world_with_stragglers_rounds_become_shorter(tiny):
    """A whole run: after the trial the law is the planned one, whose rounds are shorter than those by data share."""
    sampler = LatencyOptimal(3, trial=3, alpha=1e4)
    method = replace(methods.latency_optimal(3), sampler=sampler)
    result = fw.run(tiny(method, system=fw.system.Latency.heavy_tailed(), rounds=30, seed=1))
    nominal = view(weight=np.ones(6) / 6, latency=np.ones(6)).population
    world = fw.system.Latency.heavy_tailed().population(nominal, 1, 1)
    c = result.clients
    p = np.zeros(6)
    p[c["client"][c["round"] > 3]] = c["expected"][c["round"] > 3] / 3
    shares = np.array(result.manifest["labels"]).sum(1) / np.sum(result.manifest["labels"])
    assert np.allclose(c["expected"][c["round"] <= 3], 3 * shares[c["client"][c["round"] <= 3]])
    slowest = world.latency.argmax()
    assert p[slowest] < shares[slowest] / 2
    assert result.rounds["seconds"][3:].mean() < theory.expected_round_seconds(shares, world.latency, 3)
