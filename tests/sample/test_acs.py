"""FedACS's sampler: known, estimated and measured, and what happens at the edges."""

import numpy as np
import pytest

import worlds
from fedweave import theory
from fedweave.aggregate import AU, Consistent
from fedweave.engine.links import draw_arrivals
from fedweave.local.solvers import SGD
from fedweave.sample import ACS, Optimal, Weighted, estimates
from fedweave.sample.fixed import inclusion_probability

N = 5


def population(loss=None, steps=None, available=None, n=N):
    loss = np.zeros(n) if loss is None else np.asarray(loss, float)
    steps = np.full(n, 4) if steps is None else np.asarray(steps)
    there = np.ones(n, bool) if available is None else np.asarray(available)
    return worlds.equal_clients(n, steps=steps, loss_rate=loss, available=there)


def view(p, lr=0.1):
    return worlds.view(p, lr=lr, effort_of=lambda steps: SGD().effort(steps, lr))


def replies(received, length=1.0, first=1.0):
    ok = np.where(received, first, np.nan)
    return worlds.replies(np.tile([length, 0.0], (len(ok), 1)), received, steps=4, loss=ok, first_gradient=ok)


def everyone(n=N):
    return worlds.cohort(np.arange(n))


def test_known_law_is_equation_15():
    p = population([0.1, 0.2, 0.3, 0.4, 0.5], [1, 3, 5, 7, 9])
    assert np.allclose(ACS(7).law({}, view(p)), 7 * theory.acs_probability(p.weight, p.loss_rate, p.steps))


def test_who_cannot_be_represented_is_left_out_and_the_rest_keeps_its_proportions():
    p = population([0.0, 1.0, 0.5, 0.0, 0.0], [2, 2, 2, 2, 0], [True, True, True, False, True])
    law = ACS(3).law({}, view(p))
    assert law[[1, 3, 4]].tolist() == [0, 0, 0]
    assert law[2] / law[0] == pytest.approx(2)
    assert law.sum() == pytest.approx(3)
    nobody = population(np.ones(N))
    assert ACS(3).draw({}, view(nobody), np.random.default_rng(0)).ids.size == 0


def test_a_server_that_has_seen_nothing_samples_by_weight():
    sampler, p = ACS(4, links="estimated"), population([0, 0.9, 0, 0.5, 0], [1, 2, 3, 4, 5])
    assert np.allclose(sampler.law(sampler.init(p), view(p)), 4 / N)


def test_estimates_become_the_known_law():
    """1,000 rounds of Bernoulli links without forgetting: the learned law is the known one within a few per cent.

    Twenty clients of each kind, and the mean over them.
    """
    rng, q, steps = np.random.default_rng(0), np.tile([0.0, 0.2, 0.4, 0.6, 0.8], 20), np.tile([1, 3, 5, 7, 9], 20)
    sampler, p = ACS(4, links="estimated", memory=1.0), population(q, steps, n=100)
    state, now, all_of_them = sampler.init(p), view(p), everyone(100)
    for answered in rng.random((1000, 100)) >= q:
        state = sampler.learn(state, now, all_of_them, replies(answered))
    learned, known = (law.reshape(20, N).mean(0) for law in (sampler.law(state, now), ACS(4).law({}, now)))
    assert np.allclose(learned, known, rtol=0.06)  # four standard errors of the worst link


def test_forgetting_follows_a_link_that_changes():
    sampler, p = ACS(4, links="estimated", memory=0.9), population()
    state = sampler.init(p)
    for good in [True] * 200 + [False] * 60:
        state = sampler.learn(state, view(p), everyone(), replies([good, True, True, True, True]))
    rate = estimates.success_rate(state, sampler.prior, sampler.floor)
    assert rate[0] < 0.1 < 0.9 < rate[1]


def test_a_client_that_failed_a_few_times_is_neither_starved_nor_asked_all_the_time():
    sampler, p = ACS(4, links="estimated"), population()
    state = sampler.init(p)
    for _ in range(50):
        state = sampler.learn(state, view(p), everyone(), replies([False, True, True, True, True]))
    law = sampler.law(state, view(p))
    assert law[1] > 0.04
    assert law[0] / law[1] <= 1 / sampler.floor + 1e-9


def test_measured_effort_is_the_counted_one_where_gradients_do_not_change():
    """u = −η T g₀: κ = T exactly, so the measured law is FedACS's."""
    p, lr = population([0.1, 0.2, 0.3, 0.4, 0.5], [1, 3, 5, 7, 9]), 0.1
    sampler = ACS(4, effort="measured")
    state = sampler.init(p)
    updates = np.stack([lr * p.steps * 2.0, np.zeros(N)], axis=1)
    answer = replies([True] * N, first=2.0)._replace(updates=updates)
    state = sampler.learn(state, view(p, lr), everyone(), answer)
    assert np.allclose(sampler.law(state, view(p, lr)), ACS(4).law({}, view(p, lr)))


def test_measured_effort_sees_saturation():
    """All clients move as far whatever their steps: then they are sampled by weight, not by steps."""
    p = population(steps=[4, 8, 16, 32, 40])
    sampler = ACS(4, effort="measured")
    state = sampler.learn(sampler.init(p), view(p), everyone(), replies([True] * N, length=0.3, first=1.0))
    assert np.allclose(sampler.law(state, view(p)), 4 / N)


@pytest.mark.parametrize(("length", "first"), [(0.0, 1.0), (1e9, 1.0), (1.0, 0.0)])
def test_measured_effort_is_bounded(length, first):
    p, sampler = population(), ACS(4, effort="measured")
    state = sampler.learn(sampler.init(p), view(p), everyone(), replies([True] * N, length, first))
    reach = state["reach"] / state["heard"]
    assert (reach >= estimates.SMALLEST_SHARE * 4).all()
    assert (reach <= 4).all()
    assert np.isfinite(sampler.law(state, view(p))).all()


def test_a_client_never_heard_from_is_corrected_like_the_others():
    p, sampler = population(steps=[10, 10, 10, 10, 20]), ACS(4, effort="measured")
    state = sampler.learn(sampler.init(p), view(p), everyone(), replies([True] * 4 + [False], length=0.5, first=1.0))
    law = sampler.law(state, view(p))  # κ = 5 of 10 for those heard, so 10 of 20 for the other
    assert law[4] / law[0] == pytest.approx(0.5)


def test_au_learns_the_mean_interval():
    """Bernoulli(p) participation: the mean interval tends to (1 − (1 − p)^cutoff)/p."""
    rng, p, cutoff = np.random.default_rng(0), np.array([0.05, 0.2, 0.5, 0.9, 1.0]), 30
    aggregator, pop = AU(cutoff), population(n=40 * N)
    state, now, all_of_them = aggregator.init(pop, 2), view(pop), everyone(40 * N)
    for answered in rng.random((1000, 40 * N)) < np.tile(p, 40):
        _, state = aggregator.combine(state, now, all_of_them, replies(answered))
    mean = state["mean"].reshape(40, N).mean(0)  # of forty clients of each kind
    assert np.allclose(mean, (1 - (1 - p) ** cutoff) / p, rtol=0.05)


def test_au_is_the_mean_when_everybody_always_answers():
    aggregator, pop = AU(), population()
    direction, _ = aggregator.combine(aggregator.init(pop, 2), view(pop), everyone(), replies([True] * N))
    assert direction == pytest.approx([1.0, 0.0])


def test_optimal_sampling_goes_by_the_last_norms_and_the_mean_for_the_unseen():
    sampler, p = Optimal(4), population()
    state = sampler.init(p)
    assert np.allclose(sampler.law(state, view(p)), 4 / N)
    heard = worlds.cohort([1, 3])
    answer = replies([True, True])._replace(updates=np.array([[3.0, 0.0], [0.0, 5.0]]))
    law = sampler.law(sampler.learn(state, view(p), heard, answer), view(p))
    assert np.allclose(law, 4 * np.array([4, 3, 4, 5, 4]) / 20)


@pytest.mark.parametrize("sampler", [Weighted(6), ACS(6)])
def test_the_surrogate_of_theory_is_what_a_hundred_thousand_draws_weigh(sampler):
    """Ω (eq. 6) against what the anonymous sum really gave each client: draws, links, counts and efforts together."""
    n, rounds, rng = 8, 17_000, np.random.default_rng(1)  # of six draws each
    p = population(np.linspace(0.6, 0.0, n), np.arange(1, n + 1) ** 2, n=n)
    now = view(p)
    times = np.zeros(n)
    for r in range(rounds):
        cohort = sampler.draw({}, now, rng)
        times[cohort.ids] += cohort.count * draw_arrivals(0, r, cohort.ids, p)
    given = times * now.effort
    law = sampler.law({}, now)
    omega = theory.surrogate_weight(law / law.sum(), p.loss_rate, now.effort)
    assert (np.abs(given / given.sum() - omega) < 5 * omega / np.sqrt(times)).all()  # five standard errors: 3 to 23 %
    if isinstance(sampler, ACS):
        assert np.allclose(omega, p.weight)


def test_measured_consistency_is_counted_consistency_where_training_does_not_saturate():
    """Constant gradients: κ = ‖a‖₁, so after one visit each, both weigh alike; before it they do so too."""
    p = population([0.1, 0.2, 0.3, 0.4, 0.5], [1, 3, 5, 7, 9])
    now, counted, measured = view(p), Consistent(), Consistent(effort="measured")
    updates = -now.lr * now.effort[:, None] * np.array([[3.0, 4.0]])  # the gradient is (3, 4) all the way
    answers = worlds.replies(updates, steps=p.steps, first_gradient=5.0)
    state = measured.init(p, 2)
    wanted, _ = counted.combine({}, now, everyone(), answers)
    for _ in range(3):
        direction, state = measured.combine(state, now, everyone(), answers)
        assert np.allclose(direction, wanted)


def test_measured_consistency_follows_displacement_where_training_saturates():
    """Twice the steps, the same displacement: measured, both halves count alike; counted, the busy one half as much."""
    p = population(steps=[4, 4, 8, 8, 8])
    now, measured = view(p), Consistent(effort="measured")
    answers = replies([True] * N, length=now.lr * 2.0)
    _, state = measured.combine(measured.init(p, 2), now, everyone(), answers)
    alone = [np.eye(N)[i] > 0 for i in range(N)]
    weights = [measured.combine(state, now, everyone(), replies(one, length=1.0))[0][0] for one in alone]
    counted = [Consistent().combine({}, now, everyone(), replies(one, length=1.0))[0][0] for one in alone]
    assert np.allclose(weights, weights[0])
    assert counted[2] / counted[0] == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(20))
def test_independent_chances_are_the_best_of_all_that_sum_to_the_cohort(seed):
    """π minimises Σ n²/π under Σ π = K, π ≤ 1: the KKT conditions, and no random feasible π does better."""
    rng = np.random.default_rng(seed)
    n, k = rng.lognormal(0, 1.5, 12), int(rng.integers(1, 12))
    chance = inclusion_probability(n, k)
    assert chance.sum() == pytest.approx(k)
    assert (chance > 0).all()
    assert (chance <= 1).all()
    free = chance < 1
    level = n[free] / chance[free]
    assert np.allclose(level, level[:1])
    assert (n[~free] >= level[:1] * (1 - 1e-9)).all()
    for _ in range(50):
        other = rng.dirichlet(np.ones(12)) * k
        if (other <= 1).all():
            assert (n**2 / chance).sum() <= (n**2 / other).sum() + 1e-9


def test_independent_draws_are_unbiased():
    p, rng = population([0.0] * N, n=N), np.random.default_rng(0)
    sampler = Optimal(2, form="poisson")
    state = {"norm": np.array([1.0, 2.0, 3.0, 4.0, 20.0])}
    law = sampler.law(state, view(p))
    assert law.sum() == pytest.approx(2)
    assert law[4] == 1
    counts, rounds, now = np.zeros(N), 8000, view(p)
    for _ in range(rounds):
        cohort = sampler.draw(state, now, rng)
        counts[cohort.ids] += 1
        assert np.array_equal(cohort.expected, law[cohort.ids])
    assert (np.abs(counts / rounds - law) <= 5 * np.sqrt(law * (1 - law) / rounds)).all()
    assert np.array_equal(
        inclusion_probability(np.array([0.0, 3.0, 1.0]), 5), [0, 1, 1]
    )  # fewer than wanted: all who can
