"""DELTA and its rivals: laws by exact enumeration, the toy example by hand, probabilities that stay probabilities."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import NamedTuple

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import methods, theory
from fedweave.aggregate import Anonymous, Consistent, InverseProbability, LinkAware, Nova
from fedweave.core.settings import BadInput
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import SGD
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.round.plan import view_of
from fedweave.sample import IS, ClusterIS, Delta, PowerOfChoice, PracticalDelta, PracticalIS, Uniform, Weighted
from fedweave.sample.cluster import group_by_value
from fedweave.sample.fixed import draw_without_replacement, inclusion_probability, proportional
from worlds import quadratic_simulator

RNG = np.random.default_rng(0)
N, D, LR = 5, 3, 0.1
WEIGHT = np.array([0.35, 0.3, 0.2, 0.1, 0.05])
STEPS = np.array([2, 4, 10, 1, 3])
UPDATES = RNG.standard_normal((N, D)) * np.array([[1], [0.2], [3], [1], [0.5]])
GRADIENTS = RNG.standard_normal((N, D))
VARIANCES = np.array([0.3, 2.0, 0.0, 1.0, 0.7])
LOSS = np.array([0.0, 0.5, 0.2, 0.35, 0.1])


class Probes(NamedTuple):
    """Clients that answer as they are told."""

    losses: Callable | None
    gradients: Callable
    variances: Callable
    updates: Callable


def view(weight=WEIGHT, round=1, available=None, loss=0 * LOSS, losses=None):
    n = weight.size
    there = np.ones(n, bool) if available is None else np.array(available)
    population = worlds.equal_clients(n, weight=weight, steps=STEPS[:n], loss_rate=loss[:n], available=there)
    probes = Probes(losses or (lambda ids: ids), GRADIENTS.__getitem__, VARIANCES.__getitem__, UPDATES.__getitem__)
    return worlds.view(population, D, round=round, lr=LR, probes=probes)


def replies(cohort, received=None, variance=None, updates=UPDATES):
    return worlds.replies(updates[cohort.ids], received, steps=STEPS[cohort.ids], variance=variance)


def of(*ids):
    return worlds.cohort(ids)


class Scripted:
    """Stands in for a Generator: hands out the numbers that the enumeration has come to."""

    def __init__(self, points, order=None):
        self.points, self.order = list(points), order

    def random(self, size=None):
        if size is None:
            return self.points.pop(0)
        taken, self.points = self.points[:size], self.points[size:]
        return np.array(taken)

    def permutation(self, n):
        assert n == len(self.order)
        return np.array(self.order)


def with_replacement(p, draws):
    """Yield (chance, generator) for every sequence of draws from p: the middles of the cells of [0, 1)."""
    middle = np.cumsum(p) - np.asarray(p) / 2
    for who in product(np.flatnonzero(p), repeat=draws):
        yield np.prod([p[i] for i in who]), [middle[i] for i in who]


def without_replacement(law):
    """Yield (chance, generator) for every order and every range of the comb in which it hits the same clients."""
    orders = list(permutations(range(law.size)))
    for order in orders:
        cuts = np.unique(np.append(np.cumsum(law[list(order)]) % 1, [0.0, 1.0]))
        for low, high in pairwise(cuts):
            if high - low > 1e-12:
                yield (high - low) / len(orders), Scripted([(low + high) / 2], order)


def outcomes(sampler, state, at):
    """Yield (chance, cohort) over everything the sampler can draw."""
    if isinstance(sampler, ClusterIS):
        groups = [list(with_replacement(law / law.sum(), k)) for law, k in sampler.groups(state, at)]
        for one in product(*groups):
            rng = Scripted([point for _, points in one for point in points])
            yield np.prod([chance for chance, _ in one]), sampler.draw(state, at, rng)
    elif sampler.replacement:
        law = sampler.law(state, at)
        for chance, points in with_replacement(law / law.sum(), sampler.per_round):
            yield chance, sampler.draw(state, at, Scripted(points))
    else:
        for chance, rng in without_replacement(sampler.law(state, at)):
            yield chance, sampler.draw(state, at, rng)


def mean_direction(sampler, state, aggregator, loss=0 * LOSS):
    total = np.zeros(D)
    for chance, cohort in outcomes(sampler, state, view(loss=loss)):
        for received in product([True, False], repeat=cohort.ids.size if loss.any() else 0):
            received = received or (True,) * cohort.ids.size
            q = loss[cohort.ids]
            direction, _ = aggregator.combine({}, view(loss=loss), cohort, replies(cohort, received))
            total += chance * np.prod(np.where(received, 1 - q, q)) * direction
    return total


def learned(sampler):
    """Return the state of a sampler that has learned from two rounds."""
    state = sampler.init(view().population)
    for ids in ((0, 2, 3), (1, 2)):
        state = sampler.learn(state, view(), of(*ids), replies(of(*ids), variance=VARIANCES[list(ids)]))
    return state


SAMPLERS = [
    cls(k, **settings)
    for cls in (IS, Delta, PracticalIS, PracticalDelta)
    for settings in ({}, {"replacement": False})
    for k in (1, 2, 3)
] + [ClusterIS(3), ClusterIS(3, 3), ClusterIS(2, norms="oracle"), ClusterIS(3, form="bins"), ClusterIS(1)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_expected_is_the_exact_mean_count_and_the_update_is_unbiased(sampler):
    """Every draw of five clients: E[count] is as declared, and Σ (ω c/E[c]) u has the mean Σ ω u."""
    state, mean, total = learned(sampler), np.zeros(N), 0.0
    law = sampler.law(state, view())
    for chance, cohort in outcomes(sampler, state, view()):
        mean[cohort.ids] += chance * cohort.count
        total += chance
        assert cohort.count.sum() == sampler.per_round
        assert np.array_equal(cohort.expected, law[cohort.ids])
    assert total == pytest.approx(1, abs=1e-12)
    assert np.allclose(mean, law, atol=1e-12)
    assert law.sum() == pytest.approx(sampler.per_round)
    assert np.allclose(mean_direction(sampler, state, InverseProbability()), WEIGHT @ UPDATES, atol=1e-12)


@pytest.mark.parametrize("aggregator", [Anonymous(), LinkAware(), Nova("sampled"), Consistent()], ids=str)
@pytest.mark.parametrize("sampler", [PracticalDelta(2), PracticalDelta(2, replacement=False), ClusterIS(2)], ids=str)
def test_with_links_and_uneven_work_the_mean_is_as_declared(sampler, aggregator):
    """FedACS's links, FedNova, and any law made consistent: each with DELTA's samplers, over all lost replies."""
    state = learned(sampler)
    declared = aggregator.coefficients(view(loss=LOSS), sampler.law(state, view()))
    assert np.allclose(mean_direction(sampler, state, aggregator, LOSS), declared @ UPDATES, atol=1e-12)
    if isinstance(aggregator, Consistent):
        tau = 1 / (WEIGHT / ((1 - LOSS) * STEPS)).sum()
        assert np.allclose(declared, tau * WEIGHT / STEPS)


def test_the_two_weights_of_the_paper():
    """Eq. 7 is unbiased for equal weights. Line 12 is so for data weights if its n is the number of all samples."""
    p, draws, samples = np.array([0.1, 0.3, 0.2, 0.15, 0.25]), 2, 100 * WEIGHT
    eq7, line12, all_samples = np.zeros((3, D))
    for who in product(range(N), repeat=draws):
        chance = np.prod(p[list(who)])
        for i in who:
            eq7 += chance * UPDATES[i] / (draws * N * p[i])
            line12 += chance * samples[i] / (draws * draws * p[i]) * UPDATES[i]
            all_samples += chance * samples[i] / (draws * samples.sum() * p[i]) * UPDATES[i]
    assert np.allclose(eq7, UPDATES.mean(0))
    assert np.allclose(all_samples, WEIGHT @ UPDATES)
    assert np.allclose(line12, samples.sum() / draws * WEIGHT @ UPDATES)  # fifty times too long


TOY = Quadratics(
    np.array([[0, 0], [0.5, 0], [0, 2]]), np.array([np.diag([2.0, 2.0]), np.diag([8.0, 1.0]), np.diag([6.0, 3.0])])
)


def toy(method):
    """Return the law and the gradients of the paper's three clients at (1, 1), one step each."""
    population = worlds.equal_clients(3, steps=1)
    engine = quadratic_simulator(TOY, method.solver, 0, population.weight)
    state = first_state(method, np.ones(2), population, 2)
    at = view_of(method, state, population, engine, 0.01)
    return method.sampler.law(state.sampler, at), engine.gradients(np.ones(2), np.arange(3))


def test_the_toy_example_by_hand():
    _, g = toy(methods.fedis(2))
    assert np.allclose(g, [[2, 2], [4, 1], [6, -3]])
    law, _ = toy(methods.fedis(2))
    assert np.allclose(law / 2, [0.20706, 0.30184, 0.49109], atol=1e-5)
    assert set(np.argsort(law)[1:]) == {1, 2}  # the two longest
    law, _ = toy(methods.feddelta(2))
    assert np.allclose(law / 2, [0.38047, 0.13452, 0.48501], atol=1e-5)
    assert set(np.argsort(law)[1:]) == {0, 2}  # the two most diverse
    ideal = g.mean(0)
    distance = {pair: np.linalg.norm(g[list(pair)].mean(0) - ideal) for pair in ((0, 2), (1, 2), (0, 1))}
    assert distance[0, 2] == pytest.approx(0.5)
    assert distance[1, 2] == pytest.approx(2**0.5)
    assert distance[0, 1] == pytest.approx(13**0.5 / 2)


def sequential(p, draws):
    """Yield (chance, ids) of draws one after the other among those left, as numpy and torch do without replacement."""
    for who in permutations(range(len(p)), draws):
        chance, left = 1.0, 1.0
        for i in who:
            chance, left = chance * p[i] / left, left - p[i]
        yield chance, list(who)


def test_naive_weights_without_replacement_are_biased_and_ours_are_not():
    """Lemma C.1 is wrong for draws without replacement; with the chance to be in known, there is no bias."""
    _, g = toy(methods.fedis(2))
    for method, biased, spread in (
        (methods.fedis(2), (3.97668, 0.32340), 2.36602),
        (methods.feddelta(2), (4.17257, 0.24028), 5.34365),
    ):
        law, _ = toy(method)
        p = law / 2
        naive = sum(chance * (g[ids] / (3 * p[ids])[:, None]).sum(0) / 2 for chance, ids in sequential(p, 2))
        assert np.allclose(naive, biased, atol=1e-5)
        assert theory.update_variance(p, np.full(3, 1 / 3), g, 2) == pytest.approx(spread, abs=1e-5)
        chances = inclusion_probability(p, 2)
        drawn = [(c, draw_without_replacement(chances, rng)) for c, rng in without_replacement(chances)]
        mean = sum(c * (g[d.ids] / (3 * d.expected)[:, None]).sum(0) for c, d in drawn)
        assert np.allclose(mean, [4, 0], atol=1e-12)


def test_variance_formula_and_its_minimum():
    """By enumeration, and importance sampling against 1,000 other laws."""
    best = theory.importance_probability(WEIGHT, np.linalg.norm(UPDATES, axis=1))
    for p in (best, WEIGHT):
        second, mean = 0.0, WEIGHT @ UPDATES
        for who in product(range(N), repeat=2):
            estimate = sum(WEIGHT[i] / p[i] * UPDATES[i] for i in who) / 2
            second += np.prod(p[list(who)]) * ((estimate - mean) ** 2).sum()
        assert theory.update_variance(p, WEIGHT, UPDATES, 2) == pytest.approx(second)
    smallest = theory.update_variance(best, WEIGHT, UPDATES, 2)
    closed = ((WEIGHT @ np.linalg.norm(UPDATES, axis=1)) ** 2 - ((WEIGHT @ UPDATES) ** 2).sum()) / 2
    assert smallest == pytest.approx(closed)
    for p in RNG.dirichlet(np.ones(N), 1000):
        assert theory.update_variance(p, WEIGHT, UPDATES, 2) > smallest
    assert np.allclose(IS(3, floor=0).law({}, view()), 3 * best)


def test_delta_minimises_the_bound():
    """Φ̃(DELTA) ≤ Φ̃(uniform) and ≤ Φ̃ of a random law on 1,000 instances; equal where all scores are equal."""
    for _ in range(1000):
        m = int(RNG.integers(2, 30))
        zeta, variance = RNG.exponential(1, m) ** 2, RNG.exponential(1, m) ** 2
        setting = (
            int(RNG.integers(1, 20)),
            10 ** RNG.uniform(-4, 0),
            10 ** RNG.uniform(-1, 2),
            int(RNG.integers(1, 9)),
        )
        even = np.full(m, 1 / m)
        p = theory.delta_probability(even, zeta, variance, *theory.delta_alphas(*setting))
        ours = theory.delta_bound(p, even, zeta, variance, *setting)
        assert ours <= theory.delta_bound(even, even, zeta, variance, *setting) * (1 + 1e-12)
        other = RNG.dirichlet(np.ones(m)) + 1e-9
        assert ours <= theory.delta_bound(other, even, zeta, variance, *setting) * (1 + 1e-7)
        K, lr, L, n = setting
        (a1, a2), one = theory.delta_alphas(*setting), np.ones(m)
        assert ours == pytest.approx(L * lr / 2 * np.mean(np.sqrt(a1 * zeta**2 + a2 * variance)) ** 2)  # eq. 82
        by_eq11 = 5 * L**2 * K * lr**2 / (2 * m**2) * ((variance + 4 * K * zeta**2) / other).sum()
        by_eq11 += L * lr / (2 * n) * (variance / (m**2 * other)).sum()
        assert theory.delta_bound(other, even, zeta, variance, *setting) == pytest.approx(by_eq11)
        same = theory.delta_bound(even, even, 2 * one, 3 * one, *setting)
        assert theory.delta_bound(
            theory.delta_probability(even, 2 * one, 3 * one, a1, a2), even, 2 * one, 3 * one, *setting
        ) == pytest.approx(same)


def test_the_oracles_score_is_that_of_eq_13():
    zeta = np.linalg.norm(GRADIENTS - WEIGHT @ GRADIENTS, axis=1)
    law = Delta(2, alpha1=2, alpha2=0.3).law({}, view())
    assert np.allclose(law, 2 * theory.delta_probability(WEIGHT, zeta, VARIANCES, 2, 0.3))
    assert np.allclose(law, Delta(2, alpha1=20, alpha2=3).law({}, view()))  # only the ratio matters
    alphas = theory.delta_alphas(STEPS, LR, 7.0, 2, 0.5)
    by_theory = Delta(2, smoothness=7.0, server_lr=0.5).law({}, view())
    assert np.allclose(by_theory, 2 * theory.delta_probability(WEIGHT, zeta, VARIANCES, *alphas))


def test_equal_scores_are_uniform_sampling():
    even = np.full(3, 1 / 3)
    at = view(even)
    quiet = replace(at, probes=Probes(None, lambda ids: np.eye(3), lambda ids: np.ones(3), None))
    assert np.allclose(Delta(2).law({}, quiet), 2 / 3)
    dead = replace(at, probes=Probes(None, lambda ids: np.zeros((3, D)), lambda ids: np.zeros(3), None))
    assert np.allclose(Delta(2).law({}, dead), 2 / 3)
    assert np.allclose(Delta(2, alpha1=0).law({}, replace(quiet, probes=quiet.probes._replace(
        gradients=lambda ids: GRADIENTS[ids]))), 2 / 3)  # fmt: skip


def test_practical_updates_by_hand():
    """Eqs 15 and 16 on a cohort of three, with p = 1/5 before and no floor in sight."""
    cohort, at = of(0, 2, 3), view()
    state = PracticalIS(3).learn(PracticalIS(3).init(at.population), at, cohort, replies(cohort))
    score = [WEIGHT[i] * np.linalg.norm(UPDATES[i]) for i in (0, 2, 3)]
    assert np.allclose(state["probability"][[0, 2, 3]], 0.6 * np.array(score) / sum(score))
    assert (state["probability"][[1, 4]] == 0.2).all()
    sampler = PracticalDelta(3, alpha1=0.7, alpha2=0.2, gradients="mean")
    assert sampler.required_fields() == ("variance",)
    state = sampler.learn(sampler.init(at.population), at, cohort, replies(cohort, variance=np.array([1.0, 0.0, 4.0])))
    g = [-UPDATES[i] / (LR * STEPS[i]) for i in (0, 2, 3)]  # mean gradients on the way
    mean = (g[0] + g[1] + g[2]) / 3
    score = [
        WEIGHT[i] * (0.7 * ((a - mean) ** 2).sum() + 0.2 * s) ** 0.5
        for i, a, s in zip((0, 2, 3), g, (1.0, 0.0, 4.0), strict=True)
    ]
    assert np.allclose(state["probability"][[0, 2, 3]], 0.6 * np.array(score) / sum(score))
    code = PracticalDelta(3, variant="code")
    assert code.required_fields() == ()
    state = code.learn(code.init(at.population), at, cohort, replies(cohort))
    score = [WEIGHT[i] * (np.linalg.norm(a - mean) + np.linalg.norm(a)) / 2 for i, a in zip((0, 2, 3), g, strict=True)]
    assert np.allclose(state["probability"][[0, 2, 3]], 0.6 * np.array(score) / sum(score))


def plain_walk(samples, batch, passes, lr, rng):
    """Return the gradients of plain SGD on ½‖y − s‖² over the samples s, and where it ends; it begins at zero."""
    y, gradients = np.zeros(samples.shape[1]), []
    for _ in range(passes):
        for some in np.array_split(rng.permutation(len(samples)), len(samples) // batch):
            gradients.append(y - samples[some].mean(0))
            y = y - lr * gradients[-1]
    return np.array(gradients), y


@pytest.mark.parametrize(("variance", "times"), [("batch", 1), ("epochs", 3)])
def test_eq_16_on_clients_that_walk(variance, times):
    """ζ from the sum of the gradients of a walk, σ² from single batches or from batches summed over the passes."""
    rng, ids, batch, passes = np.random.default_rng(3), (0, 1, 2), np.array([2, 4, 5]), 3
    sets = [center + rng.standard_normal((20, D)) for center in 3 * rng.standard_normal((3, D))]
    walks = [plain_walk(s, b, passes, LR, rng) for s, b in zip(sets, batch, strict=True)]
    sums = np.array([g.sum(0) for g, _ in walks])
    noise = np.array([((g - g.mean(0)) ** 2).sum(1).mean() for g, _ in walks])
    steps = np.array([len(g) for g, _ in walks])
    population = worlds.equal_clients(
        3, weight=WEIGHT[:3] / WEIGHT[:3].sum(), steps=steps, batch_size=batch, samples=20
    )
    at, told = worlds.view(population, D, lr=LR), np.array([y for _, y in walks])
    sampler = PracticalDelta(3, variance=variance)
    answers = worlds.replies(told, steps=steps, variance=noise)
    p = sampler.learn(sampler.init(population), at, of(*ids), answers)["probability"]
    zeta = np.linalg.norm(sums - sums.mean(0), axis=1)
    score = population.weight * np.sqrt(zeta**2 + (times**2) * noise)
    assert np.allclose(p, score / score.sum())
    assert (zeta**2 > 10 * noise).all()  # sums over K steps: diversity rules, with means it would not
    assert (zeta[0] / steps[0]) ** 2 < noise[0]


def test_the_sum_of_gradients_under_momentum_is_their_number_times_their_weighted_mean():
    """A constant gradient g over K steps: any linear solver moves by −η ‖a‖₁ g, and the sum is K g."""
    g, steps = RNG.standard_normal((3, D)), np.array([1, 3, 7])
    solver = SGD(momentum=0.5)
    effort = solver.effort(steps, LR)
    population = worlds.equal_clients(3, steps=steps)
    at = worlds.view(population, D, lr=LR, effort_of=lambda steps: solver.effort(steps, LR))
    sampler = PracticalDelta(3, alpha2=0)
    told = worlds.replies(-LR * effort[:, None] * g, steps=steps)
    p = sampler.learn(sampler.init(population), at, of(0, 1, 2), told)["probability"]
    sums = steps[:, None] * g
    zeta = np.linalg.norm(sums - sums.mean(0), axis=1)
    assert np.allclose(p, zeta / zeta.sum())


def test_who_did_fewer_steps_than_asked_counts_with_those():
    g, done = RNG.standard_normal((3, D)), np.array([1, 2, 3])
    at = worlds.view(worlds.equal_clients(3, steps=np.full(3, 3)), D, lr=LR)
    sampler = PracticalDelta(3, alpha2=0, gradients="mean")
    told = worlds.replies(-LR * done[:, None] * g, steps=done)
    p = sampler.learn(sampler.init(at.population), at, of(0, 1, 2), told)["probability"]
    zeta = np.linalg.norm(g - g.mean(0), axis=1)
    assert np.allclose(p, zeta / zeta.sum())


@pytest.mark.parametrize(
    ("cls", "floor", "start", "rounds"),
    [
        (PracticalIS, 1e-3, "equal", 10_000),
        (PracticalDelta, 1e-3, "equal", 3000),
        (PracticalDelta, 0.1, "weights", 3000),
    ],
)
def test_thousands_of_rounds_keep_the_sum_the_floor_and_the_shares_of_the_unseen(cls, floor, start, rounds):
    rng, n = np.random.default_rng(1), 30
    weight = rng.dirichlet(np.ones(n))
    population = worlds.equal_clients(n, weight=weight)
    at = worlds.view(population, lr=LR)
    sampler = cls(5, floor=floor, start=start)
    state = first = sampler.init(population)
    most = 7
    asked = rng.permuted(np.tile(np.arange(n - 2), (rounds, 1)), axis=1)[:, :most]  # the last two are never asked
    answers = rng.random((rounds, most)) < 0.8
    updates = rng.standard_normal((rounds, most, 2)) * 10.0 ** rng.uniform(-8, 8, (rounds, most, 1))
    updates[rng.random((rounds, most)) < 0.1] = 0  # somebody has nothing to say
    updates *= answers[..., None]
    variances = np.where(rng.random((rounds, most)) < 0.1, np.nan, rng.exponential(1, (rounds, most)) ** 4)
    for r, k in enumerate(rng.integers(1, most + 1, rounds)):
        cohort, heard = of(*np.sort(asked[r, :k])), answers[r, :k]
        told = worlds.replies(updates[r, :k], heard, variance=variances[r, :k])
        before, state = state, sampler.learn(state, at, cohort, told)
        kept = before["probability"] == state["probability"]
        kept[cohort.ids[heard]] = True
        assert kept.all()
    p = state["probability"]
    assert abs(p.sum() - 1) < 1e-12
    assert p.min() >= floor / n * (1 - 1e-9)
    assert np.array_equal(p[-2:], first["probability"][-2:])
    assert np.ptp(p[:-2]) > 0.01


@pytest.mark.parametrize("sampler", [IS(3), Delta(3), ClusterIS(3, norms="oracle"), ClusterIS(3, form="bins")], ids=str)
def test_a_model_that_diverges_is_no_reason_to_fail(sampler):
    wild = np.where(np.arange(N)[:, None] == 2, np.inf, UPDATES)
    probes = Probes(None, wild.__getitem__, lambda ids: np.full(ids.size, np.nan), wild.__getitem__)
    at = replace(view(), probes=probes)
    with np.errstate(invalid="ignore"):
        law = sampler.law(sampler.init(at.population), at)
    assert np.isfinite(law).all()
    assert law.sum() == pytest.approx(3)
    assert (law > 0).all()


def test_what_teaches_nothing_changes_nothing():
    sampler, at = PracticalDelta(3), view()
    state = sampler.init(at.population)
    silence = replies(of(0, 2), [False, False], np.full(2, np.nan))
    assert sampler.learn(state, at, of(0, 2), silence) is state
    alone = replies(of(0, 2), [True, False], np.array([1.0, np.nan]))
    assert sampler.learn(state, at, of(0, 2), alone) is state
    still = replies(of(0, 2), variance=np.zeros(2), updates=0 * UPDATES)
    assert sampler.learn(state, at, of(0, 2), still) is state
    same = replies(of(0, 2, 3), variance=np.array([1.0, np.nan, 1.0]))  # a variance that overflowed is ignored
    after = sampler.learn(state, at, of(0, 2, 3), same)["probability"]
    assert after[2] == 0.2
    assert after[0] + after[3] == pytest.approx(0.4)


def test_proportional_shares_with_a_floor():
    """Against a search for the constant c of max(least, c·score)."""
    for _ in range(300):
        n = int(RNG.integers(1, 20))
        score, mass = RNG.exponential(1, n) ** 6, RNG.uniform(0.1, 2)
        least = RNG.uniform(0, 1) * mass / n
        low, high = 0.0, mass / score.min()
        for _ in range(200):
            c = (low + high) / 2
            low, high = (c, high) if np.maximum(least, c * score).sum() < mass else (low, c)
        assert np.allclose(proportional(score, mass, least), np.maximum(least, low * score), rtol=1e-6)
    assert np.allclose(proportional(np.array([0.0, 0.0]), 0.4, 0.1), 0.2)
    assert np.allclose(proportional(np.array([1.0, 0.0]), 0.4, 0.0), [0.4, 0.0])
    assert proportional(np.array([1e300, 1e-300, 1e300]), 1.0, 0.1).sum() == pytest.approx(1)


@pytest.mark.parametrize("sampler", [*SAMPLERS[:1], *SAMPLERS[3:], PowerOfChoice(2)], ids=str)
def test_only_available_clients_are_asked(sampler):
    state, rng, there = sampler.init(view().population), np.random.default_rng(0), [False, True, False, True, False]
    for _ in range(20):
        cohort = sampler.draw(state, view(available=there), rng)
        assert set(cohort.ids) <= {1, 3}
        assert cohort.ids.size
    assert sampler.draw(state, view(available=[False] * N), rng).ids.size == 0


def test_clusters_are_the_best_cut_of_the_line():
    """Two groups against all cuts, and everyone nearest to its own; well separated values; equal values are one."""
    for _ in range(200):
        values = np.sort(RNG.exponential(1, 12))
        cost = [sum(((part - part.mean()) ** 2).sum() for part in np.split(values, [c])) for c in range(1, 12)]
        groups = group_by_value(values, np.ones(12, bool), 2)
        assert [int(g.sum()) for g in groups] == [int(groups[0].sum()), 12 - int(groups[0].sum())]
        assert groups[0][: int(groups[0].sum())].all()  # smallest first
        ours = sum(((values[g] - values[g].mean()) ** 2).sum() for g in groups)
        assert ours <= 2 * min(cost)
        means = np.array([values[g].mean() for g in groups])
        assert np.array_equal(np.abs(values[:, None] - means).argmin(1), groups[1])
    three = group_by_value(np.array([5.0, 1.0, 9.1, 1.1, 5.2, 9.0]), np.ones(6, bool), 3)
    assert [np.flatnonzero(g).tolist() for g in three] == [[1, 3], [0, 4], [2, 5]]
    assert len(group_by_value(np.ones(4), np.ones(4, bool), 3)) == 1


def test_every_cluster_is_asked_and_the_smallest_can_be_dropped():
    norms = {"norm": np.array([1.0, 1.1, 9.0, 8.0, 0.9])}
    law = ClusterIS(6).law(norms, view())
    assert law[[0, 1, 4]].sum() == pytest.approx(4)  # one each, and the other four by weights 0.7 and 0.3
    assert law[[2, 3]].sum() == pytest.approx(2)
    share = WEIGHT[[2, 3]] * [9, 8]
    assert np.allclose(law[[2, 3]], 2 * share / share.sum())
    late = ClusterIS(6, drop_after=10)
    assert np.array_equal(late.law(norms, view(round=10)), law)
    assert np.allclose(late.law(norms, view(round=11))[[0, 1, 4]], 0)
    assert late.law(norms, view(round=11)).sum() == pytest.approx(6)


def test_bins_hold_one_each_and_every_client_its_share():
    sampler, norms = ClusterIS(3, form="bins", floor=0), {"norm": np.array([1.0, 1.1, 9.0, 8.0, 0.9])}
    laws = np.array([law for law, _ in sampler.groups(norms, view())])
    score = WEIGHT * norms["norm"]
    assert np.allclose(laws.sum(1), 1)
    assert np.allclose(laws.sum(0), 3 * score / score.sum())
    assert ((laws > 0).sum(0) <= 2).all()  # nobody is longer than a bin, so nobody is cut more than once


def test_power_of_choice_takes_the_largest_losses_of_its_candidates():
    losses = np.array([3.0, 1.0, 5.0, 4.0, np.nan])
    asked = []

    def told(ids):
        asked.append(ids)
        return losses[ids]

    sampler, rng, seen = PowerOfChoice(2, candidates=4), np.random.default_rng(0), set()
    for _ in range(50):
        cohort = sampler.draw({}, view(losses=told), rng)
        rank = {i: (np.inf if np.isnan(losses[i]) else losses[i]) for i in asked[-1].tolist()}
        assert len(rank) == 4
        assert set(cohort.ids) == set(sorted(rank, key=lambda i: -rank[i])[:2])
        assert cohort.probed == 2
        assert np.isnan(cohort.expected).all()
        seen |= set(asked[-1].tolist())
    assert seen == set(range(N))
    ties = [PowerOfChoice(1, 5).draw({}, view(losses=lambda ids: 0.0 * ids), rng).ids[0] for _ in range(100)]
    assert len(set(ties)) == N
    sampler = PowerOfChoice(1, 1, among="weights")
    often = np.bincount([sampler.draw({}, view(losses=told), rng).ids[0] for _ in range(4000)], minlength=N) / 4000
    assert np.allclose(often, WEIGHT, atol=5 * np.sqrt(0.25 / 4000))
    with pytest.raises(BadInput, match="at least per_round = 5"):
        PowerOfChoice(5, candidates=4)
    with pytest.raises(BadInput, match="known law"):
        Method(PowerOfChoice(2), aggregator=InverseProbability())


def walked(method, rounds, seed=0, n=6):
    rng = np.random.default_rng(5)
    problem = Quadratics(rng.standard_normal((n, D)))
    weight = np.arange(1, n + 1) / 21
    population = worlds.equal_clients(n, weight=weight)
    engine = quadratic_simulator(problem, method.solver, seed, weight)
    state, path = first_state(method, np.zeros(D), population, D), np.empty((rounds, D))
    for r in range(rounds):
        state, happened = run_round(method, state, population, engine, 0.05, seed)
        path[r] = state.x
        assert happened.bytes_down == state.x.nbytes * (happened.cohort.ids.size + happened.cohort.probed)
    return path, problem.minimiser(weight)


UNBIASED = [
    methods.fedis,
    methods.feddelta,
    methods.fedpracis,
    methods.fedpracdelta,
    methods.cluster_is,
    methods.fedavg_md,
]


@pytest.mark.parametrize("make", UNBIASED, ids=lambda f: f.__name__)
def test_unbiased_methods_settle_at_the_minimum_of_the_weighted_objective(make):
    """Exact clients of equal work: the averaged iterate is the minimiser, whatever the law.

    Within five standard errors, by batch means. A plain sum by the laws of fedis, feddelta, fedpracis or cluster_is
    ends farther away; fedavg_md is the plain sum. Three a round: of two, each is as far from their mean as the other,
    and practical DELTA would learn nothing.
    """
    path, best = walked(make(3), 1500)
    batches = path[100:].reshape(10, -1, D).mean(1)
    error = batches.std(0, ddof=1) / np.sqrt(len(batches))
    assert (np.abs(batches.mean(0) - best) < 5 * error).all()


def test_power_of_choice_settles_elsewhere():
    path, best = walked(methods.power_of_choice(2), 1000)
    assert np.linalg.norm(path[500:].mean(0) - best) > 0.15


COMBINED = {
    "momentum": {"solver": SGD(momentum=0.9)},
    "proximal": {"solver": fw.solvers.Prox(0.01)},
    "varp": {"aggregator": fw.aggregate.Varp()},
    "varp, refreshed": {"aggregator": fw.aggregate.VarpRefreshed()},
    "adagrad": {"server": fw.server.Adagrad(0.01)},
    "adam": {"server": fw.server.Adam(0.01)},
    "aware": {"aggregator": fw.aggregate.Aware(0.5)},
    "links": {"aggregator": LinkAware()},
    "nova": {"aggregator": Nova()},
    "consistent": {"aggregator": Consistent()},
}


@pytest.mark.parametrize("name", COMBINED)
def test_every_combination_trains(name, tiny):
    """Momentum, proximal, FedVARP in both readings, adaptive servers, FedAWARE, links, FedNova: just other parts."""
    method = replace(methods.fedpracdelta(3), name="combined", **COMBINED[name])
    if name == "aware":
        method = replace(method, sampler=fw.sample.FirstEveryone(method.sampler))
    result = fw.run(tiny(method, system=fw.system.Uniform(), rounds=12))
    assert np.isfinite(result.x).all()
    assert result.rounds["loss"][-1] < 0.9 * np.log(10)


def test_refreshed_varp_is_the_mean_of_what_everyone_sent_last():
    aggregator = fw.aggregate.VarpRefreshed(precision="float64")
    state, last = aggregator.init(view().population, D), np.zeros((N, D))
    for ids, heard in (((0, 2), [True, True]), ((1, 2, 3), [True, False, True]), ((0,), [True])):
        fresh = RNG.standard_normal((N, D))
        told = replies(of(*ids), heard, updates=fresh)
        direction, state = aggregator.combine(state, view(), of(*ids), told)
        for i, ok in zip(ids, heard, strict=True):
            last[i] = fresh[i] if ok else last[i]
        assert np.allclose(direction, WEIGHT @ last)


def test_sequences_that_never_fail():
    """A million teeth: as many distinct clients as wanted, certain ones always in."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        law = inclusion_probability(rng.exponential(1, 50) ** 3, 12)
        cohort = draw_without_replacement(law, rng)
        assert cohort.ids.size == 12
        assert set(np.flatnonzero(law == 1)) <= set(cohort.ids)
    assert draw_without_replacement(np.zeros(4), rng).ids.size == 0
    assert draw_without_replacement(inclusion_probability(np.array([0.0, 2.0, 1.0]), 5), rng).ids.tolist() == [1, 2]


def test_settings_that_make_no_sense():
    with pytest.raises(BadInput, match="alpha1 or alpha2 > 0"):
        PracticalDelta(3, alpha1=0, alpha2=0)
    with pytest.raises(BadInput, match="floor"):
        PracticalIS(3, floor=1.5)
    assert Uniform(3).required_fields() == ()
    assert Weighted(3).required_fields() == ()
    assert fw.sample.FirstEveryone(PracticalDelta(3)).required_fields() == ("variance",)
