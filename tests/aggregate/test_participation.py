"""MIFA and FedAWE, against their papers' algorithms written out, and where they are FedAvg."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import aggregate, methods, server
from fedweave.aggregate import AWE, MIFA, Mean, Robust, VarpRefreshed
from fedweave.local.quadratic import Quadratics
from fedweave.method import Method
from fedweave.round import absorb, first_state, plan, run_round
from fedweave.sample import Everyone, Uniform

N, D, LR = 7, 4, 0.03
STEPS = np.array([1, 9, 3, 6, 2, 5, 4])
WEIGHT = np.arange(1, N + 1) / np.arange(1, N + 1).sum()
START = np.random.default_rng(5).standard_normal(D)


def problem(seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((N, D, D))
    return Quadratics(rng.standard_normal((N, D)), roots @ roots.transpose(0, 2, 1) / D + 0.3 * np.eye(D))


def world(loss=0.0, **fields):
    return worlds.equal_clients(N, **({"weight": WEIGHT, "steps": STEPS, "loss_rate": loss} | fields))


def rounds(method, population, count, lr=lambda r: LR, seed=0, patterns=None):
    """Yield state and what happened, round after round, from a model that is not zero.

    ``patterns``: who is there in each round; then the population's links are perfect and everyone there is asked.
    """
    engine = worlds.quadratic_simulator(problem(), method.solver, seed, population.weight)
    state = first_state(method, START.copy(), population, D)
    for r in range(1, count + 1):
        there = population if patterns is None else replace(population, available=patterns(r))
        state, happened = run_round(method, state, there, engine, lr(r), seed)
        yield state, happened


def walked(q, m, x, lr):
    y = x.copy()
    for _ in range(STEPS[m]):
        y -= lr * q.curvature[m] @ (y - q.optimum[m])
    return y


def seen(run):
    return [h.cohort.ids[h.replies.received] for _, h in run]


def mifa_by_the_paper(q, heard, lr):
    """Algorithm 1: G_i = (w − w_i)/η of the active devices, then w ← w − η Σ ω_i G_i over all."""
    x, latest = START.copy(), np.zeros((N, D))
    for r, ids in enumerate(heard, 1):
        for m in ids:
            latest[m] = (x - walked(q, m, x, lr(r))) / lr(r)
        x = x - lr(r) * WEIGHT @ latest
        yield x


def fedawe_by_the_paper(q, heard, server_lr):
    """Algorithm 1: models x_i of all clients; active ones average x_i − η_g (t − τ_i) G_i and take the result."""
    models, active = np.tile(START, (N, 1)), np.full(N, -1)
    x = START.copy()
    for t, ids in enumerate(heard):
        daggers = []
        for m in ids:
            innovation = models[m] - walked(q, m, models[m], LR)
            daggers.append(models[m] - server_lr * (t - active[m]) * innovation)
        if len(ids):
            x = WEIGHT[ids] @ np.array(daggers) / WEIGHT[ids].sum()
            models[ids], active[ids] = x, t
        yield x, models.copy()


def test_mifa_is_the_papers_algorithm_when_the_rate_changes_and_replies_are_lost():
    rate = lambda r: LR / r**0.5  # noqa: E731
    run = list(rounds(replace(methods.mifa(3), aggregator=MIFA("float64")), world(loss=0.4), 30, rate))
    assert run[0][1].cohort.ids.size == N, "everyone is asked in the first round"
    for (state, _), x in zip(run, mifa_by_the_paper(problem(), seen(run), rate), strict=True):
        assert np.allclose(state.x, x, atol=1e-12)


def test_mifa_with_a_constant_rate_is_the_mean_of_the_last_updates():
    method = Method(Uniform(3), aggregator=MIFA("float64"))
    last = replace(method, aggregator=VarpRefreshed("float64"))
    for (one, _), (two, _) in zip(rounds(method, world(0.3), 25), rounds(last, world(0.3), 25), strict=True):
        assert np.allclose(one.x, two.x, atol=1e-13)


@pytest.mark.parametrize("aggregator", [MIFA("float64"), AWE(), Robust(AWE())], ids=str)
def test_with_everyone_always_there_it_is_fedavg(aggregator):
    method = Method(Everyone(), aggregator=aggregator)
    for (one, _), (two, _) in zip(rounds(method, world(), 20), rounds(Method(Everyone()), world(), 20), strict=True):
        assert np.allclose(one.x, two.x, atol=1e-13)


def test_fedawe_is_the_papers_algorithm_when_replies_are_lost():
    run = list(rounds(Method(Uniform(2), aggregator=AWE(0.7, "float64")), world(loss=0.4), 60))
    assert {len(ids) for ids in seen(run)} == {0, 1, 2}, "rounds in which nobody is heard too"
    for (state, _), (x, models) in zip(run, fedawe_by_the_paper(problem(), seen(run), 0.7), strict=True):
        assert np.allclose(state.x, x, atol=1e-11)
        held = AWE().models(state.aggregator, state.x, np.arange(N))
        assert np.allclose(state.x if held is None else held, models, atol=1e-11)


def test_fedawe_keeps_the_mean_of_all_models_when_nobody_moves():
    """Gossip: averaging those who take part, by their weights, does not change Σ ω_i x_i."""
    population, part, rng = world(), AWE(precision="float64"), np.random.default_rng(2)
    state = part.init(population, D)
    own = rng.standard_normal((N, D))
    spread = {"own": state["own"].replaced(np.arange(N), own), "last": np.arange(1, N + 1), "first": START}
    state, x = {**state, **spread}, rng.standard_normal(D)
    for r in range(N + 1, N + 9):
        ids = np.sort(rng.choice(N, 3, replace=False))
        view = worlds.view(population, D, round=r, x=x)
        direction, state = part.combine(state, view, worlds.cohort(ids), worlds.replies(np.zeros((3, D))))
        x = x + direction
        held = part.models(state, x, np.arange(N))
        assert np.allclose(WEIGHT @ held, WEIGHT @ own, atol=1e-14)
        assert np.allclose(held[ids], x)
        assert state["last"][ids].tolist() == [r] * 3


def test_fedawe_makes_up_for_absence_where_fedavg_is_biased():
    """Equal work, and half of the clients there in every third round only: FedAvg forgets them, FedAWE does not."""
    often = np.arange(N) < N // 2

    def there(r):
        return often | (r % 3 == 0)

    population, best = world(steps=np.full(N, 2)), problem().minimiser(WEIGHT)
    averaged = {}
    for name, aggregator in (("fedawe", AWE()), ("fedavg", Mean())):
        path = [s.x for s, _ in rounds(Method(Everyone(), aggregator=aggregator), population, 500, patterns=there)]
        averaged[name] = np.linalg.norm(np.mean(path[200:], axis=0) - best)
    assert averaged["fedawe"] < 0.15 * averaged["fedavg"]


def test_a_client_goes_on_from_the_model_after_its_last_round_whatever_the_server_does():
    """With server momentum the model is not x + direction; what each client is sent is the model that followed."""
    method = Method(Uniform(2), aggregator=AWE(precision="float64"), server=server.Momentum(0.5, 0.5))
    after = dict.fromkeys(range(N), START)
    engine, population = worlds.quadratic_simulator(problem(), method.solver, 0, WEIGHT), world(0.3)
    state = first_state(method, START.copy(), population, D)
    for _ in range(40):
        asked = plan(method, state, population, engine, LR, 0)
        sent = asked.own_models(asked.cohort.ids)
        sent = np.tile(state.x, (2, 1)) if sent is None else sent
        assert np.array_equal(sent, [after[m] for m in asked.cohort.ids.tolist()])
        replies = engine.train(asked)
        for row in np.flatnonzero(replies.received):
            m = asked.cohort.ids[row]
            assert np.allclose(replies.updates[row], walked(problem(), m, sent[row], LR) - sent[row], atol=1e-14)
        state, _ = absorb(method, state, asked, replies)
        after |= dict.fromkeys(asked.cohort.ids[replies.received].tolist(), state.x)


def test_buffers_are_not_multiplied_nor_remembered():
    population, ids, updates = world(), np.array([1, 4]), np.arange(1.0, 9).reshape(2, 4)
    view = worlds.view(population, D, round=5, layout=worlds.layout(D, 3))
    shares = WEIGHT[ids] / WEIGHT[ids].sum()
    for part, parameters in ((AWE(), 5 * shares @ updates), (MIFA("float64"), WEIGHT[ids] @ updates)):
        direction, _ = part.combine(part.init(population, D), view, worlds.cohort(ids), worlds.replies(updates))
        assert np.allclose(direction[:3], parameters[:3])
        assert np.allclose(direction[3:], (shares @ updates)[3:])


@fw.settings
class Wrong(aggregate.Mean):
    """Sends models of another shape."""

    def models(self, state, x, ids):
        return np.zeros((ids.size, x.size + 1))


def test_models_of_a_users_own_aggregator_are_checked():
    with pytest.raises(fw.BadInput, match=r"Wrong.models must return one model for each client, .* \(3, 4\)"):
        list(rounds(Method(Uniform(3), aggregator=Wrong()), world(), 1))
