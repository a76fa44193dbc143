"""Quadratic clients: exact against a plain loop, and every method of FedACS settles where its closed form says."""

from dataclasses import replace

import numpy as np
import pytest

import fedweave as fw
import worlds
from fedweave import methods, theory
from fedweave.aggregate import Consistent, Nova
from fedweave.core.settings import BadInput
from fedweave.local.quadratic import Quadratics
from fedweave.local.solvers import SGD, Adam, Prox
from fedweave.method import Method
from fedweave.models.flat import Quadratic
from fedweave.round import first_state, run_round
from fedweave.sample import Everyone, Fixed, Weighted
from worlds import equal_clients, quadratic_simulator

RNG = np.random.default_rng(3)
N, D = 6, 4


def bent(n=N, d=D, rng=RNG):
    roots = rng.standard_normal((n, d, d))
    return Quadratics(rng.standard_normal((n, d)), roots @ roots.transpose(0, 2, 1) / d + 0.3 * np.eye(d))


def world(n=N, loss=None, steps=None):
    loss = np.linspace(0.4, 0.02, n) if loss is None else loss
    return equal_clients(n, steps=np.arange(1, 2 * n, 2) if steps is None else steps, loss_rate=loss)


def walk(method, problem, population, lr, rounds, seed=0, calibrate=False):
    engine = quadratic_simulator(problem, method.solver, seed, population.weight)
    state = first_state(method, np.zeros(problem.optimum.shape[1]), population, problem.optimum.shape[1])
    path = np.empty((rounds, state.x.size))
    for r in range(rounds):
        state, _ = run_round(method, state, population, engine, lr, seed, calibrate)
        path[r] = state.x
    return path


@pytest.mark.parametrize("curved", [False, True])
def test_probes_are_the_objectives_and_no_noise(curved):
    problem, population = bent() if curved else Quadratics.random(N, D, seed=1), world()
    engine, x = quadratic_simulator(problem, SGD(), 0, population.weight), RNG.standard_normal(D)
    values = [problem.value(np.eye(N)[m], x) for m in (1, 4)]
    assert np.allclose(engine.losses(x, np.array([1, 4])), values)
    assert not engine.variances(1, x, np.arange(N), population).any()


@pytest.mark.parametrize("solver", [SGD(), SGD(momentum=0.6), SGD(decay=0.1), Prox(0.5), Prox(0.5, SGD(momentum=0.3))])
@pytest.mark.parametrize("curved", [False, True])
def test_updates_are_those_of_a_plain_loop(solver, curved):
    problem = bent() if curved else Quadratics.random(N, D, seed=1)
    H = np.broadcast_to(np.eye(D), (N, D, D)) if problem.curvature is None else problem.curvature
    x, population, lr = RNG.standard_normal(D), world(), 0.07
    engine = quadratic_simulator(problem, solver, 0, population.weight)
    got = engine.rehearse(worlds.assignment(engine, 1, x, worlds.cohort(np.arange(N)), population, lr))
    for m in range(N):
        y, state = x.copy(), solver.begin(x)
        for t in range(population.steps[m]):
            d, state = solver.direction(state, H[m] @ (y - problem.optimum[m]), y, x, lr, t)
            y = y - lr * d
        assert np.allclose(got[m], y - x, atol=1e-12)


def test_minimiser_has_no_gradient():
    problem, w = bent(), RNG.dirichlet(np.ones(N))
    best = problem.minimiser(w)
    for i in range(D):
        step = 1e-5 * np.eye(D)[i]
        assert problem.value(w, best + step) > problem.value(w, best)
        assert problem.value(w, best - step) > problem.value(w, best)


METHODS = {
    "fedavg_is": methods.fedavg_is(4),
    "fedavg_us": methods.fedavg_us(3),
    "fedavg_full": methods.fedavg_full(),
    "fedavg_ca": methods.fedavg_ca(4),
    "fednova": Method(Weighted(4), aggregator=Nova("sampled")),
    "fedvarp": methods.fedvarp(3),
    "fedvarp_reuse": methods.fedvarp_reuse(4),
    "fedau": methods.fedau(4),
    "fedos": methods.fedos(4),
    "fedacs": methods.fedacs(4),
    "consistent": Method(Fixed((0.3, 0.1, 0.1, 0.2, 0.2, 0.1), 4), aggregator=Consistent()),
}
# FedACS 1.2: mean weights c of each method on static links and work, up to scale.
FORMS = {
    "w": lambda w, q, a: w,
    "w(1−q)": lambda w, q, a: w * (1 - q),
    "w/a": lambda w, q, a: w / a,
    "w(1−q)/a": lambda w, q, a: w * (1 - q) / a,
}
EXPECTED = {
    "fedavg_is": "w(1−q)",
    "fedavg_us": "w(1−q)",
    "fedavg_full": "w(1−q)",
    "fedavg_ca": "w",
    "fednova": "w(1−q)/a",
    "fedvarp": "w",
    "fedvarp_reuse": "w",
    "fedau": "w",
    "fedos": "w(1−q)",
    "fedacs": "w/a",
    "consistent": "w/a",
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_settles_on_its_closed_form(name):
    """The averaged iterate after burn-in is at the finite-η fixed point of its weights, and at that of no others.

    At: within 4.5 standard errors (by batch means) in all 16 coordinates.
    """
    problem, population, lr = bent(d=16, rng=np.random.default_rng(3)), world(), 0.02
    path = walk(METHODS[name], problem, population, lr, rounds=1500)[300:]
    batches = path.reshape(12, -1, 16).mean(1)
    error = batches.std(0, ddof=1) / np.sqrt(len(batches))
    slack = 0.02 if name in ("fedau", "fedvarp") else 0.0  # ratios: unbiased only to first order
    near = []
    for form, weights in FORMS.items():
        c = weights(population.weight, population.loss_rate, population.steps.astype(float))
        settled = theory.fixed_point(c, list(problem.curvature), problem.optimum, population.steps.tolist(), lr)
        if (np.abs(path.mean(0) - settled) < 4.5 * error + slack + 1e-9).all():
            near.append(form)
    assert near == [EXPECTED[name]]


def test_nova_undoes_work_ca_undoes_links_only_acs_undoes_both():
    """In the mean, by closed form: distance of the fixed point from the true optimum, as η → 0."""
    problem, q, T = bent(), np.linspace(0.5, 0.0, N), np.arange(1, 2 * N, 2)
    best, w, H = problem.minimiser(np.ones(N) / N), np.ones(N) / N, list(problem.curvature)

    def away(c, T):
        return np.linalg.norm(theory.fixed_point(c, H, problem.optimum, T.tolist(), 1e-6) - best)

    same = np.full(N, 5)
    assert away(w * 1.0 / T, T) < 1e-4  # Nova, perfect links
    assert away(w, same) < 1e-4  # c-a-FedAvg, equal work
    assert away(w * (1 - q) / T, T) > 0.01  # Nova with lossy links
    assert away(w, T) > 0.01  # c-a-FedAvg with uneven work
    assert away(w / T, T) < 1e-4  # FedACS, both


def test_equal_links_and_work_make_fedacs_importance_sampling_exactly():
    problem, population = bent(), world(loss=0.3, steps=5)
    assert np.array_equal(
        walk(methods.fedacs(4), problem, population, 0.05, 50),
        walk(methods.fedavg_is(4), problem, population, 0.05, 50),
    )


def test_equal_work_makes_nova_the_mean():
    """With equal effort Nova's normalised weights are Mean's: w = ω c/E[c], uniform law."""
    problem, population = bent(), world(steps=5)
    nova = walk(methods.fednova(3), problem, population, 0.05, 50)
    assert np.allclose(nova, walk(methods.fedavg(3), problem, population, 0.05, 50), atol=1e-12)


def test_full_participation_makes_varp_the_mean():
    problem, population = bent(), world(loss=0.0)
    varp = walk(replace(methods.fedvarp(3), sampler=Everyone()), problem, population, 0.05, 30)
    assert np.allclose(varp, walk(methods.fedavg_full(), problem, population, 0.05, 30), atol=1e-6)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("fedau", "fedvarp", "fedvarp_reuse")])
def test_calibrated_methods_take_equally_long_steps(name):
    """Where all clients agree the mean step of every method is FedAvg's, η Σ ω(1−q)‖a‖₁ times the gradient."""
    problem, population, lr = Quadratics(np.full((N, D), 1.0)), world(), 1e-9  # so short that nobody comes any nearer
    steps = np.diff(walk(METHODS[name], problem, population, lr, 1500, calibrate=True)[:, 0], prepend=0.0)
    fedavg = lr * population.weight @ ((1 - population.loss_rate) * population.steps)
    assert np.mean(steps) == pytest.approx(fedavg, abs=4.5 * np.std(steps) / np.sqrt(len(steps)))


def test_adam_is_refused():
    with pytest.raises(BadInput, match="linear"):
        quadratic_simulator(bent(), Adam(), 0, np.ones(N) / N)


def test_quadratics_run_like_any_data_and_torch_agrees(tmp_path):
    """The exact engine against a torch module that trains on the same points, two per client, full batches."""
    data = fw.data.synthetic.quadratics(clients=12, dim=4)
    shared = {"data": data, "partition": fw.partition.IID(6), "rounds": 5, "lr": 0.1, "steps": 3, "workers": 1}
    method = fw.methods.fedavg_is(3)
    exact = fw.run(fw.Experiment(method=method, **shared), tmp_path / "run")
    trained = fw.run(fw.Experiment(method=method, model=lambda: Quadratic(4), **shared))
    assert np.allclose(exact.x, trained.x, atol=1e-5)
    assert exact.x.dtype == np.float64
    assert exact.summary["loss"] < exact.rounds["loss"][0]
    again = fw.run(fw.Experiment(method=method, **shared))
    assert again.summary["digest"] == exact.summary["digest"]
    assert (
        fw.resume(tmp_path / "run", fw.Experiment(method=method, **shared)).summary["digest"] == again.summary["digest"]
    )


def test_quadratics_refuse_what_is_not_linear():
    with pytest.raises(BadInput, match="not linear"):
        fw.run(fw.Experiment(method=Method(Weighted(3), solver=Adam()), data="quadratics", partition="natural"))
