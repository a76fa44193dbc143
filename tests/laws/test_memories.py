"""Clients that remember: SCAFFOLD, FedDyn and FOCUS as their papers write them; lost replies teach nothing."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
from fedweave import methods
from fedweave.aggregate import DynMean, Mean, Nova, PushPull, Scaffold
from fedweave.core.roles import ServerOptimizer
from fedweave.core.settings import settings
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import SGD, ControlVariate, Dyn, Prox, Tracking
from fedweave.method import Method
from fedweave.round import first_state, run_round
from fedweave.sample import Everyone, Uniform
from worlds import equal_clients, quadratic_simulator

N, D, LR = 8, 5, 0.02
STEPS = np.array([1, 20, 3, 7, 14, 2, 10, 5])


def problem(seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((N, D, D))
    return Quadratics(rng.standard_normal((N, D)), roots @ roots.transpose(0, 2, 1) / D + 0.5 * np.eye(D))


def world(loss=0.0, weight=None, steps=STEPS):
    weight = np.full(N, 1 / N) if weight is None else weight
    return equal_clients(N, weight=weight, steps=steps, loss_rate=loss)


def rounds(method, population, count, lr=LR, seed=0, quadratics=None):
    """Yield state and what happened, round after round."""
    engine = quadratic_simulator(quadratics or problem(), method.solver, seed, population.weight)
    state = first_state(method, np.zeros(D), population, D)
    for _ in range(count):
        state, happened = run_round(method, state, population, engine, lr, seed)
        yield state, happened


def gradient(m, y, q):
    return q.curvature[m] @ (y - q.optimum[m])


def scaffold_by_the_paper(q, seen, steps, lr, server_lr):
    """Algorithm 1 of SCAFFOLD with option II, on the cohorts and losses that were ``seen``."""
    x, c, own = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for ids, heard in seen:
        du, dc = np.zeros((2, D))
        for m in ids[heard]:
            y = x.copy()
            for _ in range(steps[m]):
                y -= lr * (gradient(m, y, q) - own[m] + c)
            new = own[m] - c + (x - y) / (steps[m] * lr)
            du, dc, own[m] = du + y - x, dc + new - own[m], new
        size = max(heard.sum(), 1)
        x, c = x + server_lr * du / size, c + size / N * dc / size
        yield x, own, c


def feddyn_by_the_paper(q, seen, steps, lr, alpha):
    """Algorithm 1 of FedDyn, with gradient steps for the local problem."""
    x, h, own = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for ids, heard in seen:
        ends = []
        for m in ids[heard]:
            y = x.copy()
            for _ in range(steps[m]):
                y -= lr * (gradient(m, y, q) - own[m] + alpha * (y - x))
            own[m] -= alpha * (y - x)
            ends.append(y)
        if ends:
            h = h - alpha / N * np.sum(np.array(ends) - x, axis=0)
            x = np.mean(ends, axis=0) - h / alpha
        yield x, own, h


def focus_by_the_paper(q, seen, steps, lr, weight):
    """Algorithm 1 of FOCUS, which sums over clients; here with N ω_i for each, 1 if they are equal.

    y_i starts at zero and gathers differences of gradients; x_i moves before the next gradient, not after the last.
    """
    x, y, last = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for ids, heard in seen:
        push = np.zeros(D)
        for m in ids[heard]:
            own, tracked = x.copy(), np.zeros(D)
            for _ in range(steps[m]):
                own -= lr * tracked
                new = gradient(m, own, q)
                tracked, last[m] = tracked + new - last[m], new
            push += N * weight[m] * tracked
        if heard.any():
            y = y + push
            x = x - lr * y
        yield x, last, y


def test_scaffold_is_the_papers_algorithm_when_replies_are_lost():
    run = list(rounds(methods.scaffold(3, lr=0.8), world(loss=0.3), 40))
    seen = [(h.cohort.ids, h.replies.received) for _, h in run]
    assert {int(r.sum()) for _, r in seen} >= {1, 2, 3}
    for (state, _), (x, own, c) in zip(run, scaffold_by_the_paper(problem(), seen, STEPS, LR, 0.8), strict=True):
        assert np.allclose(state.x, x, atol=1e-12)
        assert np.allclose(state.aggregator["c"], c, atol=1e-12)
        assert np.allclose(state.clients["memory"][np.arange(N)], own, atol=1e-12)


def test_feddyn_is_the_papers_algorithm_when_replies_are_lost():
    run = list(rounds(methods.feddyn(2, alpha=0.3), world(loss=0.5), 40))
    seen = [(h.cohort.ids, h.replies.received) for _, h in run]
    assert {int(r.sum()) for _, r in seen} >= {0, 1, 2}, "rounds in which nobody is heard too"
    for (state, _), (x, own, h) in zip(run, feddyn_by_the_paper(problem(), seen, STEPS, LR, 0.3), strict=True):
        assert np.allclose(state.x, x, atol=1e-11)
        assert np.allclose(state.aggregator["moved"], -h / 0.3, atol=1e-11)
        assert np.allclose(state.clients["memory"][np.arange(N)], own, atol=1e-11)


@pytest.mark.parametrize("weight", [np.full(N, 1 / N), np.arange(1, N + 1) / 36])
def test_focus_is_the_papers_algorithm_when_replies_are_lost(weight):
    method = replace(methods.focus(2), aggregator=PushPull("clients"))
    run = list(rounds(method, world(loss=0.5, weight=weight), 40, lr=LR / N))
    seen = [(h.cohort.ids, h.replies.received) for _, h in run]
    assert {int(r.sum()) for _, r in seen} >= {0, 1, 2}, "rounds in which nobody is heard too"
    by_hand = focus_by_the_paper(problem(), seen, STEPS, LR / N, weight)
    for (state, _), (x, last, y) in zip(run, by_hand, strict=True):
        assert np.allclose(state.x, x, atol=1e-12)
        assert np.allclose(state.clients["memory"][np.arange(N)], last, atol=1e-12)
        assert np.allclose(state.aggregator["tracked"], y / N, atol=1e-12)
        assert np.allclose(state.aggregator["tracked"], state.clients["memory"].combine(weight), atol=1e-12)


def test_focus_in_its_usual_unit_steps_as_far_as_fedavg():
    """With one gradient for all clients a round moves η times their mean number of steps, as FedAvg's does."""
    flat = Quadratics(np.ones((N, D)), np.tile(1e-9 * np.eye(D), (N, 1, 1)))  # the gradient hardly changes on the way
    everyone = Method(Everyone(), Tracking(), PushPull())
    (focus, _), *_ = rounds(everyone, world(), 1, quadratics=flat)
    (fedavg, _), *_ = rounds(Method(Everyone()), world(), 1, quadratics=flat)
    assert np.allclose(focus.x, fedavg.x, rtol=1e-6, atol=0)


PATTERNS = {  # who is there in round r
    "one after another": lambda r: np.arange(N) == r % N,
    "half of them seldom": lambda r: (np.arange(N) < N // 2) | (r % 7 == 0),
    "more and more seldom": lambda r: (r % (np.arange(N) + 1) == 0) | (np.arange(N) == 0),
    "by day and night": lambda r: (np.arange(N) < N // 2) == (r // 5 % 2 == 0),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_focus_settles_at_the_optimum_whoever_takes_part(pattern):
    """Uneven work, unequal weights, arbitrary fixed patterns of participation; FedAvg stays away from it."""
    q, population, best = problem(), world(weight=UNEQUAL), problem().minimiser(UNEQUAL)
    away = {}
    for name, method in (("focus", replace(methods.focus(N), sampler=Everyone())), ("fedavg", Method(Everyone()))):
        engine = quadratic_simulator(q, method.solver, 0, population.weight)
        state = first_state(method, np.zeros(D), population, D)
        for r in range(1, 801 if name == "focus" else 201):
            there = replace(population, available=PATTERNS[pattern](r))
            state, _ = run_round(method, state, there, engine, 0.012, 0)
        away[name] = np.linalg.norm(state.x - best)
    assert away["focus"] < 1e-7
    assert away["fedavg"] > 0.03


def test_focus_settles_at_the_optimum_over_lossy_links():
    *_, (state, _) = rounds(methods.focus(3), world(0.3, UNEQUAL), 900, lr=0.02)
    assert np.linalg.norm(state.x - problem().minimiser(UNEQUAL)) < 1e-7


def test_what_focus_tracks_comes_closer_to_the_gradient_by_less_the_longer_clients_walk():
    """m ← m + (I − ηH)^(T−1) (∇f(x) − m) on quadratics: a long walk ends where the gradient is m already."""
    q, x = problem(), np.zeros(D)
    for state, happened in rounds(methods.focus(4), world(0.2), 12):
        before = happened.assignment.context.memory
        for m in happened.cohort.ids[happened.replies.received].tolist():
            reach = np.linalg.matrix_power(np.eye(D) - LR * q.curvature[m], STEPS[m] - 1)
            old = before[np.array([m])][0]
            new = old + reach @ (gradient(m, x, q) - old)
            assert np.allclose(state.clients["memory"][np.array([m])][0], new, atol=1e-12)
        x = state.x


@pytest.mark.parametrize("weights", ["equal", "data"])
def test_the_servers_control_is_the_mean_of_the_clients(weights):
    weight = np.random.default_rng(1).dirichlet(np.ones(N))
    method = replace(methods.scaffold(3), aggregator=Scaffold(weights))
    for state, happened in rounds(method, world(loss=0.4, weight=weight), 60):
        mean = state.clients["memory"].combine(weight if weights == "data" else np.full(N, 1 / N))
        assert np.allclose(state.aggregator["c"], mean, atol=1e-13)
        assert happened.replies.memory_change is not None
        assert not happened.replies.memory_change[~happened.replies.received].any()
    assert np.abs(mean).max() > 1e-6


UNEQUAL = np.arange(1, N + 1) / np.arange(1, N + 1).sum()


@pytest.mark.parametrize(
    ("sampler", "loss", "count"), [(Everyone(), 0.0, 160), (Uniform(3), 0.3, 500)], ids=["everyone", "3 of 8, lossy"]
)
@pytest.mark.parametrize(
    ("solver", "aggregator", "weighted"),
    [
        (ControlVariate(), Scaffold(), False),
        (ControlVariate(), Scaffold("data"), True),
        (ControlVariate(SGD(momentum=0.5)), Scaffold(), False),
        (Dyn(1.0), DynMean(), False),
        (Dyn(1.0, weights="data"), DynMean(), True),
    ],
    ids=str,
)
def test_scaffold_and_feddyn_reach_the_true_optimum_with_uneven_work(
    solver, aggregator, weighted, sampler, loss, count
):
    """Where FedAvg stays away: the fixed point of clients that remember does not depend on their work."""
    q, population = problem(), world(loss, UNEQUAL)
    best = q.minimiser(UNEQUAL if weighted else np.ones(N))
    *_, (state, _) = rounds(Method(sampler, solver, aggregator), population, count, lr=0.1)
    assert np.linalg.norm(state.x - best) < 1e-7
    *_, (plain, _) = rounds(Method(sampler, aggregator=Mean()), population, 200, lr=0.1)
    assert np.linalg.norm(plain.x - best) > 0.1


@pytest.mark.parametrize("weights", ["equal", "data"])
def test_feddyns_memory_is_the_gradient_where_the_client_ended(weights):
    """∇f_i(y_i) = L_i after exact local minimisation, because ∇f_i(y) − L_i + α_i (y − x) = 0 there."""
    q, lr = problem(), 0.1
    method = Method(Uniform(3), Dyn(0.4, weights), DynMean())
    x = np.zeros(D)
    for state, happened in rounds(method, world(0.3, UNEQUAL, np.full(N, 600)), 12, lr):
        heard = happened.cohort.ids[happened.replies.received]
        ends = x + happened.replies.updates[happened.replies.received]
        wanted = np.array([gradient(m, y, q) for m, y in zip(heard, ends, strict=True)]).reshape(-1, D)
        assert np.allclose(state.clients["memory"][heard], wanted, atol=1e-10)
        x = state.x


def test_the_first_round_is_fedavgs():
    """Nobody remembers anything yet: SCAFFOLD moves by the plain mean, FedDyn by (1 + |S|/N) times the proximal one."""
    (scaffold, _), *_ = rounds(methods.scaffold(3), world(), 1)
    (fedavg, _), *_ = rounds(methods.fedavg(3), world(), 1)
    assert np.allclose(scaffold.x, fedavg.x, atol=1e-15)
    (feddyn, _), *_ = rounds(methods.feddyn(3, alpha=0.7), world(), 1)
    (fedprox, _), *_ = rounds(methods.fedprox(3, mu=0.7), world(), 1)
    assert np.allclose(feddyn.x, (1 + 3 / N) * fedprox.x, atol=1e-15)


def test_effort_is_that_of_what_is_bent():
    steps = np.arange(1, 30)
    assert np.allclose(ControlVariate().effort(steps, LR), steps)
    assert np.allclose(ControlVariate(SGD(momentum=0.9)).effort(steps, LR), SGD(momentum=0.9).effort(steps, LR))
    assert np.allclose(Dyn(0.3).effort(steps, LR), Prox(0.3).effort(steps, LR))
    assert np.array_equal(Tracking().effort(steps, LR), np.ones(29)), "one gradient is sent, however many were met"


@settings
class Breaks(ServerOptimizer):
    """Makes every third model infinite."""

    def init(self, dim):
        return {"round": np.zeros(1)}

    def step(self, state, x, direction):
        r = state["round"] + 1
        return x + direction / (0.0 if r == 3 else 1.0), {"round": r}


def test_an_abandoned_round_leaves_every_memory():
    method = replace(methods.scaffold(3), server=Breaks())
    before = None
    with np.errstate(divide="ignore", invalid="ignore"):
        for state, happened in rounds(method, world(), 5):
            if happened.abandoned:
                assert state.clients["memory"] is before.clients["memory"]
                assert state.aggregator["c"] is before.aggregator["c"]
                return
            before = state
    pytest.fail("no round was abandoned")


@pytest.mark.parametrize(
    ("solver", "aggregator", "words"),
    [
        (ControlVariate(), Mean(), r"ControlVariate keeps control variates .* Mean .* Use Scaffold\(\) as aggregator"),
        (Dyn(), Scaffold(), r"Dyn keeps local gradients .* Scaffold .* Use DynMean\(\) as aggregator"),
        (SGD(), Scaffold(), r"Scaffold needs clients that keep control variates, .* Use ControlVariate\(\) as solver"),
        (Prox(), DynMean(), r"DynMean needs clients that keep local gradients, .* Use Dyn\(\) as solver"),
    ],
)
def test_clients_and_server_must_expect_the_same(solver, aggregator, words):
    with pytest.raises(fw.BadInput, match=words):
        Method(Uniform(3), solver, aggregator)


@pytest.mark.parametrize("outer", [Prox, ControlVariate, Dyn])
def test_who_remembers_must_be_outermost(outer):
    with pytest.raises(fw.BadInput, match=rf"Dyn remembers, so it must be outermost: Dyn\(inner={outer.__name__}"):
        outer(inner=Dyn())


def test_bytes_count_what_is_sent():
    """SCAFFOLD's clients get and send a control variate beside the model; others send one vector each way."""
    once = methods.fedavg(3), methods.feddyn(3), methods.focus(3), methods.fedawe(3)
    for method, times in ((methods.scaffold(3), 2), *((method, 1) for method in once)):
        (_, happened), *_ = rounds(method, world(loss=0.5), 1)
        assert happened.replies.bytes_up.tolist() == [times * 8 * D] * 3, "lost or not"
        assert happened.bytes_down == 3 * times * 8 * D


def test_fednova_as_fedawares_code_has_it():
    """Weights p_i/τ_i that sum to one; with equal work that is the mean."""
    ((after, happened),) = rounds(Method(Everyone(), aggregator=Nova("quotients")), world(weight=UNEQUAL), 1)
    u, w = happened.replies.updates, UNEQUAL / STEPS
    assert np.allclose(after.x, w @ u / w.sum(), atol=1e-14)
    same = world(weight=UNEQUAL, steps=np.full(N, 4))
    (renorm, _), *_ = rounds(methods.fednova_renorm(3), same, 1)
    (fedavg, _), *_ = rounds(methods.fedavg(3), same, 1)
    assert np.allclose(renorm.x, fedavg.x, atol=1e-14)


def test_focus_sends_whole_updates():
    @settings
    class Both(PushPull):
        masks = True

    with pytest.raises(fw.BadInput, match=r"Tracking remember what they sent, .* Give no other upload"):
        replace(methods.focus(3), upload=fw.upload.DifferentialDropout(), aggregator=Both())
