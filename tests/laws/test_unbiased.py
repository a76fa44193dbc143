"""The laws of sampling, by exact enumeration: every draw and every pattern of lost links of a tiny population."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest

import worlds
from fedweave.aggregate import Anonymous, Consistent, InverseProbability, LinkAware, Mean, Models, Nova
from fedweave.sample import ACS, Clustered, Everyone, Fixed, Optimal, Tiers, Uniform, UniformDraws, Weighted
from fedweave.theory import acs_probability

N, D = 4, 3
WEIGHT = np.array([0.4, 0.3, 0.2, 0.1])
LOSS = np.array([0.0, 0.5, 0.2, 0.35])
EFFORT = np.array([2.0, 4.0, 10.0, 1.0])
UPDATES = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


class Scripted:
    """Stands in for a Generator: hands out the draw that the enumeration has come to."""

    def __init__(self, points=None, subset=None, tier=None):
        self.points, self.subset, self.tier = points, subset, tier

    def random(self, size):
        assert size == len(self.points)
        return np.array(self.points)

    def choice(self, there, size=1, replace=True, p=None):
        if p is not None:
            return self.tier
        assert not replace
        assert size == len(self.subset)
        return there[list(self.subset)]


def view(loss=LOSS, available=None):
    there = np.ones(N, bool) if available is None else np.array(available)
    population = worlds.equal_clients(N, weight=WEIGHT, loss_rate=loss, available=there)
    return worlds.view(population, D, effort_of=lambda steps: EFFORT, probes=worlds.Probes(updates=UPDATES))


def multinomial_draws(p, draws):
    """Yield (probability, scripted generator) for every sequence of draws: the middles of the cells of [0, 1)."""
    middle = np.cumsum(p) - np.asarray(p) / 2
    for who in product(range(len(p)), repeat=draws):
        yield np.prod([p[i] for i in who]), Scripted(points=[middle[i] for i in who])


def filled_one_by_one(draws):
    """Return r (K, N) of clustered sampling's Algorithm 1, as the paper says it: largest first, one after the other."""
    r, k, left = np.zeros((draws, N)), 0, draws * WEIGHT
    for i in np.argsort(-WEIGHT):
        while left[i] > 1e-12:
            piece = min(1 - r[k].sum(), left[i])
            r[k, i], left[i] = piece, left[i] - piece
            k += r[k].sum() > 1 - 1e-12
    return r


def clustered_draws(r):
    """Yield (probability, scripted generator) for one client of each row; pieces lie in the order of the weights."""
    middle = np.cumsum(r, axis=1) - r / 2  # WEIGHT is in descending order
    for who in product(*(np.flatnonzero(row) for row in r)):
        yield np.prod([r[k, i] for k, i in enumerate(who)]), Scripted(points=[middle[k, i] for k, i in enumerate(who)])


def tiered_draws(sampler, chances):
    """Yield (probability, scripted generator) for every tier and every choice in it; all clients are equally fast."""
    for tier, members in enumerate(np.array_split(np.arange(N), sampler.tiers)):
        k = min(sampler.per_round, members.size)
        for subset in combinations(range(members.size), k):
            yield chances[tier] / comb(members.size, k), Scripted(subset=subset, tier=tier)


def first_state(sampler):
    """Return the state before the first round."""
    return sampler.init(view().population)


def outcomes(sampler, p=None):
    """Yield (probability, cohort) over everything the sampler can draw."""
    if isinstance(sampler, Clustered | Tiers):
        clustered = isinstance(sampler, Clustered)
        for chance, rng in clustered_draws(p) if clustered else tiered_draws(sampler, p):
            yield chance, sampler.draw(first_state(sampler), view(), rng)
    elif isinstance(sampler, Everyone):
        yield 1.0, sampler.draw({}, view(), Scripted())
    elif isinstance(sampler, Uniform):
        for subset in combinations(range(N), sampler.per_round):
            yield 1 / comb(N, sampler.per_round), sampler.draw({}, view(), Scripted(subset=subset))
    else:
        for chance, rng in multinomial_draws(p, sampler.per_round):
            yield chance, sampler.draw({}, view(), rng)


def replies(cohort, received):
    return worlds.replies(UPDATES[cohort.ids], received)


def mean_direction(sampler, aggregator, p=None, loss=LOSS):
    """Return E[direction] over all draws and all patterns of lost links."""
    total = np.zeros(D)
    for chance, cohort in outcomes(sampler, p):
        for received in product([True, False], repeat=cohort.ids.size):
            q = loss[cohort.ids]
            link = np.prod(np.where(received, 1 - q, q))
            direction, _ = aggregator.combine({}, view(loss), cohort, replies(cohort, received))
            total += chance * link * direction
    return total


OTHER = (0.1, 0.2, 0.3, 0.4)
SAMPLERS = [
    (Everyone(), None),
    (Uniform(1), None),
    (Uniform(2), None),
    (Uniform(3), None),
    (UniformDraws(1), (0.25,) * 4),
    (UniformDraws(3), (0.25,) * 4),
    (Weighted(1), WEIGHT),
    (Weighted(3), WEIGHT),
    (Fixed(OTHER, 1), OTHER),
    (Fixed(OTHER, 3), OTHER),
    *((Clustered(k), filled_one_by_one(k)) for k in (1, 2, 3, 5)),
    (Tiers(1, 2), (0.5, 0.5)),
    (Tiers(2, 2, probability=(0.7, 0.3)), (0.7, 0.3)),
    (Tiers(3, 2, probability=(0.2, 0.8)), (0.2, 0.8)),  # tiers are smaller than that
]


@pytest.mark.parametrize(("sampler", "p"), SAMPLERS, ids=lambda v: str(v)[:30])
def test_expected_is_the_exact_mean_count(sampler, p):
    mean, promised = np.zeros(N), np.full(N, np.nan)
    for chance, cohort in outcomes(sampler, p):
        mean[cohort.ids] += chance * cohort.count
        promised[cohort.ids] = cohort.expected
    assert np.allclose(mean, promised, atol=1e-14)
    assert np.allclose(mean, sampler.law(first_state(sampler), view()), atol=1e-14)


@pytest.mark.parametrize("draws", [2, 3, 5])
def test_clustered_counts_vary_less_than_multinomial_ones(draws):
    """Both variances by enumeration; K draws in all, and of a client with K ω ≥ 1 at least ⌊K ω⌋ − 1."""
    variance = {}
    for sampler, p in ((Clustered(draws), filled_one_by_one(draws)), (Weighted(draws), WEIGHT)):
        seen = []
        for chance, cohort in outcomes(sampler, p):
            assert cohort.count.sum() == draws
            seen.append((chance, np.bincount(cohort.ids, cohort.count, N)))
        variance[type(sampler)] = sum(chance * (count - draws * WEIGHT) ** 2 for chance, count in seen)
        if isinstance(sampler, Clustered):
            assert min((count - draws * WEIGHT).min() for _, count in seen) > -2
    assert np.allclose(variance[Weighted], draws * WEIGHT * (1 - WEIGHT))
    assert (variance[Clustered] < variance[Weighted] - 0.01).all()


@pytest.mark.parametrize(("sampler", "p"), SAMPLERS, ids=lambda v: str(v)[:30])
def test_inverse_probability_is_unbiased_for_every_sampler(sampler, p):
    """FedACS eqs 19, 20, 21 in one rule: E = Σ ω (1 − q) u, and Σ ω u when no link fails."""
    assert np.allclose(mean_direction(sampler, InverseProbability(), p), (WEIGHT * (1 - LOSS)) @ UPDATES, atol=1e-6)
    assert np.allclose(mean_direction(sampler, InverseProbability(), p, 0 * LOSS), WEIGHT @ UPDATES, atol=1e-6)


LINEAR = [Anonymous(), InverseProbability(), LinkAware(), Nova("sampled"), Consistent()]


@pytest.mark.parametrize(("sampler", "p"), SAMPLERS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("aggregator", LINEAR, ids=str)
def test_coefficients_are_the_exact_mean_weights(sampler, p, aggregator):
    """What an aggregator declares as its mean weights, and a sampler as its law, is what enumeration finds."""
    declared = aggregator.coefficients(view(), sampler.law(first_state(sampler), view()))
    assert np.allclose(mean_direction(sampler, aggregator, p), declared @ UPDATES, atol=1e-5)


@pytest.mark.parametrize(("sampler", "p"), SAMPLERS, ids=lambda v: str(v)[:30])
def test_consistent_makes_every_law_consistent(sampler, p):
    """E = τ Σ ω u/‖a‖₁ for every sampler: links and uneven work are both undone."""
    tau = 1 / (WEIGHT / ((1 - LOSS) * EFFORT)).sum()
    mean = mean_direction(sampler, Consistent(), p)
    assert np.allclose(mean, tau * (WEIGHT / EFFORT) @ UPDATES, atol=1e-6)


def test_link_aware_undoes_links_and_nova_undoes_work():
    assert np.allclose(mean_direction(Uniform(2), LinkAware()), WEIGHT @ UPDATES, atol=1e-6)
    mean = mean_direction(Uniform(2), Nova("sampled"), loss=0 * LOSS)
    assert np.allclose(mean, (WEIGHT @ EFFORT) * (WEIGHT / EFFORT) @ UPDATES, atol=1e-5)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_acs_with_the_anonymous_sum_is_consistent(draws):
    """FedACS eq. 16: the law alone undoes both; no weight and no identity is needed."""
    p = acs_probability(WEIGHT, LOSS, EFFORT)
    assert np.allclose(ACS(draws).law({}, view()), draws * p)
    tau = 1 / (WEIGHT / ((1 - LOSS) * EFFORT)).sum()
    assert np.allclose(mean_direction(ACS(draws), Anonymous(), p), tau * (WEIGHT / EFFORT) @ UPDATES, atol=1e-6)


def test_fedacs_is_the_law_that_makes_the_consistent_weight_constant():
    p = acs_probability(WEIGHT, LOSS, EFFORT)
    for chance, rng in multinomial_draws(p, 2):
        cohort = ACS(2).draw({}, view(), rng)
        answer = replies(cohort, [True] * cohort.ids.size)
        anonymous, _ = Anonymous().combine({}, view(), cohort, answer)
        consistent, _ = Consistent().combine({}, view(), cohort, answer)
        assert chance > 0
        assert np.allclose(anonymous, consistent, atol=1e-6)


def test_optimal_sampling_oracle_goes_by_the_true_norms():
    norms = WEIGHT * np.linalg.norm(UPDATES, axis=1)
    assert np.allclose(Optimal(3, norms="oracle").law({}, view()), 3 * norms / norms.sum())
    mean = mean_direction(Optimal(2, norms="oracle"), InverseProbability(), norms / norms.sum())
    assert np.allclose(mean, (WEIGHT * (1 - LOSS)) @ UPDATES, atol=1e-6)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_anonymous_sum_under_p_equal_weight_has_the_same_mean(draws):
    """FedACS eqs 5 and 18: importance sampling needs no weights at all."""
    mean = mean_direction(Weighted(draws), Anonymous(), WEIGHT)
    assert np.allclose(mean, (WEIGHT * (1 - LOSS)) @ UPDATES, atol=1e-6)


def test_us_rule_is_n_over_k_times_the_weighted_sum():
    """FedACS eq. 19 / 24: (M/K) Σ w u over the received of K sampled."""
    cohort = Uniform(2).draw({}, view(), Scripted(subset=(0, 2)))
    direction, _ = InverseProbability().combine({}, view(), cohort, replies(cohort, [True, False]))
    assert np.allclose(direction, N / 2 * WEIGHT[0] * UPDATES[0])


def test_received_normalisation_undoes_equal_losses():
    """With equal q the mean given that anything arrived is Σ ω u: no shrinkage is left."""
    q, k = np.full(N, 0.4), 2
    mean = mean_direction(Uniform(k), InverseProbability(normalise="received"), loss=q)
    assert np.allclose(mean / (1 - 0.4**k), WEIGHT @ UPDATES, atol=1e-6)


def test_os_rule_by_hand():
    """FedACS eq. 20: (1/K) Σ (w/p) u per received draw; client 3 drawn twice counts twice."""
    cohort = Fixed(OTHER, 3).draw({}, view(), Scripted(points=[0.05, 0.8, 0.9]))
    assert cohort.ids.tolist() == [0, 3]
    assert cohort.count.tolist() == [1, 2]
    direction, _ = InverseProbability().combine({}, view(), cohort, replies(cohort, [True, True]))
    by_hand = (0.4 / 0.1 * UPDATES[0] + 2 * 0.1 / 0.4 * UPDATES[3]) / 3
    assert np.allclose(direction, by_hand, atol=1e-6)


NORMALISED = ("sampled", "received", "weights")


def test_mean_is_the_weighted_mean_of_the_heard():
    cohort = Everyone().draw({}, view(), Scripted())
    direction, _ = Mean().combine({}, view(), cohort, replies(cohort, [True, False, True, False]))
    assert np.allclose(direction, (0.4 * UPDATES[0] + 0.2 * UPDATES[2]) / 0.6, atol=1e-6)


@pytest.mark.parametrize("aggregator", [Mean(), Anonymous(), *(InverseProbability(n) for n in NORMALISED), Models()])
def test_silence_gives_a_zero_direction(aggregator):
    cohort = Everyone().draw({}, view(), Scripted())
    direction, _ = aggregator.combine({}, view(), cohort, replies(cohort, [False] * N))
    assert direction.shape == (D,)
    assert not direction.any()


@pytest.mark.parametrize("aggregator", [Mean(), Anonymous(), *(InverseProbability(n) for n in NORMALISED), Models()])
def test_equal_updates_and_full_participation_give_that_update(aggregator):
    cohort = Everyone().draw({}, view(), Scripted())
    same = replies(cohort, [True] * N)._replace(updates=np.ones((N, D), np.float32))
    assert np.allclose(aggregator.combine({}, view(), cohort, same)[0], 1, atol=1e-6)


AVAILABLE = [Everyone(), Uniform(2), UniformDraws(5), Weighted(5), Fixed(OTHER, 5), Clustered(5), Tiers(2, 2)]


@pytest.mark.parametrize("sampler", [*AVAILABLE, Clustered(5, "similarity")], ids=str)
def test_only_available_clients_are_asked(sampler):
    rng, there, state = np.random.default_rng(0), [False, True, False, True], first_state(sampler)
    for _ in range(50):
        cohort = sampler.draw(state, view(available=there), rng)
        assert set(cohort.ids) <= {1, 3}
        assert cohort.ids.size
        assert np.array_equal(cohort.expected, sampler.law(state, view(available=there))[cohort.ids])
    nobody = sampler.draw(state, view(available=[False] * N), rng)
    assert nobody.ids.size == nobody.count.size == nobody.expected.size == 0


def test_frequencies_match_the_law():
    """The real generator: counts over 10,000 rounds lie within 5 standard errors of what the cohort promises."""
    rng, rounds, now = np.random.default_rng(1), 10_000, view()
    for sampler, expected in ((Uniform(2), np.full(N, 0.5)), (Weighted(3), 3 * WEIGHT)):
        seen = np.zeros(N)
        for _ in range(rounds):
            cohort = sampler.draw({}, now, rng)
            seen[cohort.ids] += cohort.count
        sigma = np.sqrt(expected / rounds)  # of a Poisson count, at least that of either law
        assert (np.abs(seen / rounds - expected) < 5 * sigma).all()
