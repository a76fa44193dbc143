"""Aggregators for stale answers, by hand."""

from fractions import Fraction

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave.aggregate import Anonymous, Cached, DynMean, Mean, Mixing, Models, PushPull, Robust, Scaffold, Stale, Varp
from fedweave.aggregate.stale import staleness_weight

N, D = 5, 3
WEIGHT = np.array([0.1, 0.3, 0.2, 0.15, 0.25])
VIEW = worlds.view(worlds.equal_clients(N, weight=WEIGHT), D, x=np.array([1.0, -2.0, 0.5]))
RNG = np.random.default_rng(0)


def updates(k):
    return RNG.standard_normal((k, D))


def test_the_forms_of_fedasync():
    """Xie et al.: polynomial (t − τ + 1)^−a; hinge 1 up to b, then 1/(a (t − τ − b) + 1)."""
    tau = np.array([0, 1, 3, 4, 5, 8])
    assert staleness_weight(tau, "constant", 0.5, 4).tolist() == [1] * 6
    assert np.allclose(staleness_weight(tau, "polynomial", 0.5, 4) ** -2, 1 + tau)
    hinge = [1, 1, 1, 1, Fraction(1, 11), Fraction(1, 41)]
    assert np.allclose(staleness_weight(tau, "hinge", 10, 4), np.array(hinge, float))


def test_rows_are_scaled_and_nothing_is_renormalised():
    u, cohort = updates(3), worlds.cohort([0, 2, 3], count=np.array([1, 2, 1]))
    replies = worlds.replies(u, received=[True, True, False], staleness=np.array([0, 3, 8]))
    direction, _ = Stale(Anonymous()).combine({}, VIEW, cohort, replies)
    assert np.allclose(direction, (u[0] + 2 * u[1] / 2) / 4)  # 1/√(1 + 3) = 1/2; four draws, one lost
    direction, _ = Stale(Mean(), exponent=1).combine({}, VIEW, cohort, replies)
    assert np.allclose(direction, (0.1 * u[0] + 0.4 * u[1] / 4) / 0.5)


def test_nothing_stale_is_the_inner_aggregator_bit_for_bit():
    u, cohort = updates(3), worlds.cohort([0, 2, 3])
    for staleness in (None, np.zeros(3, int)):
        replies = worlds.replies(u)._replace(staleness=staleness)
        one, _ = Stale(Mean()).combine({}, VIEW, cohort, replies)
        assert one.tobytes() == Mean().combine({}, VIEW, cohort, replies)[0].tobytes()


def test_it_goes_in_front_of_any_aggregator():
    assert Stale(Varp()).needs_law
    assert Stale(Mean()).masks is True
    assert Stale(Robust(Mean())).masks is False
    assert Stale(Mixing()).needs_drift
    assert Stale(Scaffold()).memory_kind == Scaffold.memory_kind
    for follows in (DynMean(), PushPull()):
        with pytest.raises(fw.BadInput, match="by their updates, which Stale would scale"):
            Stale(follows)
    fw.Method(fw.sample.Uniform(2), fw.methods.scaffold(2).solver, Stale(Scaffold()))
    with pytest.raises(fw.BadInput, match="needs clients that keep control variates"):
        fw.Method(fw.sample.Uniform(2), aggregator=Stale(Scaffold()))
    with pytest.raises(fw.BadInput, match=r"^DifferentialDropout .* Use Mean\(\) or (?!.*Stale)"):
        fw.Method(fw.sample.Uniform(2), aggregator=Stale(Varp()), upload=fw.methods.feddd(2).upload)
    assert Stale(Mean()).step_length(VIEW, np.full(N, 0.4)) == Mean().step_length(VIEW, np.full(N, 0.4))


def test_changes_of_memories_are_not_scaled():
    """The server's c stays the mean of the clients' c_i, however stale their answers are."""
    u, change, cohort = updates(2), updates(2), worlds.cohort([1, 4])
    replies = worlds.replies(u, staleness=np.array([3, 3]), memory_change=change)
    direction, state = Stale(Scaffold()).combine({"c": np.zeros(D)}, VIEW, cohort, replies)
    assert np.allclose(direction, u.mean(0) / 2)
    assert np.allclose(state["c"], change.sum(0) / N)


def test_models_are_mixed():
    """FedAsync: x ← (1 − α_t) x + α_t y with α_t = α/√(1 + τ) and y = x_τ + u."""
    u, drift, x = updates(1), updates(1), VIEW.x
    replies = worlds.replies(u, staleness=np.array([8]), drift=drift)
    direction, _ = Mixing(0.6).combine({}, VIEW, worlds.cohort([2]), replies)
    y = x + drift[0] + u[0]
    assert np.allclose(x + direction, 0.8 * x + 0.2 * y)
    two = worlds.replies(np.vstack([u, u]), staleness=np.array([8, 0]), drift=np.vstack([drift, 0 * drift]))
    direction, _ = Mixing(0.6).combine({}, VIEW, worlds.cohort([2, 3]), two)
    assert np.allclose(direction, (0.2 * (y - x) + 0.6 * u[0]) / 2)


def test_a_synchronous_round_mixes_with_the_mean_model():
    u = updates(4)
    direction, _ = Mixing(0.5).combine({}, VIEW, worlds.cohort([0, 1, 2, 4]), worlds.replies(u))
    assert np.allclose(direction, 0.5 * u.mean(0))


@pytest.mark.parametrize("precision", ["float64", "float16"])
def test_cached_updates_calibrate(precision):
    """CA²FL against a plain loop: v = h + mean over the landed of u − h_i; then h_i ← u_i, and h is the mean of all."""
    equal = worlds.view(worlds.equal_clients(N), D)
    rule, cached = Cached(precision), np.zeros((N, D))
    state = rule.init(equal.population, D)
    for _ in range(12):
        ids = np.sort(RNG.choice(N, 3, replace=False))
        received, u = RNG.random(3) < 0.7, updates(3)
        landed = [(i, row) for i, row, ok in zip(ids, u, received, strict=True) if ok]
        wanted = cached.mean(0) + (np.mean([row - cached[i] for i, row in landed], axis=0) if landed else 0)
        for i, row in landed:
            cached[i] = row
        direction, state = rule.combine(state, equal, worlds.cohort(ids), worlds.replies(u, received))
        assert np.allclose(direction, wanted, atol=1e-12 if precision == "float64" else 1e-2)
        assert np.allclose(state["mean"], state["last"][np.arange(N)].mean(0), atol=1e-12)


def test_with_everyone_the_caches_do_not_matter():
    """Full participation is the weighted mean of the new updates, as FedVARP's is."""
    rule, everyone = Cached("float64"), worlds.cohort(np.arange(N))
    state = rule.init(VIEW.population, D)
    for _ in range(3):
        u = updates(N)
        direction, state = rule.combine(state, VIEW, everyone, worlds.replies(u))
        assert np.allclose(direction, WEIGHT @ u, atol=1e-12)


def test_robust_asks_for_the_drift_that_its_aggregator_needs():
    """FedAsync behind Robust that neither clips nor trims is FedAsync."""
    assert Robust(Mixing()).needs_drift
    assert not Robust(Mean()).needs_drift
    replies, cohort = worlds.replies(updates(2), drift=updates(2), staleness=np.array([0, 3])), worlds.cohort([1, 4])
    plain, robust = (part.combine({}, VIEW, cohort, replies)[0] for part in (Mixing(), Robust(Mixing())))
    assert np.array_equal(plain, robust)


def test_the_latency_papers_models_are_those_that_clients_arrive_at():
    """Σ w_i y_i with y_i = x_τ + u_i = x + drift_i + u_i."""
    u, drift, x = updates(2), updates(2), VIEW.x
    replies, cohort = worlds.replies(u, drift=drift), worlds.cohort([1, 4], expected=np.array([0.5, 0.25]))
    weight = VIEW.population.weight[[1, 4]] / [0.5, 0.25]
    direction, _ = Models().combine({}, VIEW, cohort, replies)
    assert np.allclose(x + direction, weight @ (x + drift + u))
