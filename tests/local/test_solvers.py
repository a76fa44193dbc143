"""Solvers against closed forms and against torch's own optimisers."""

import numpy as np
import pytest
import torch

from fedweave.core.roles import Solver
from fedweave.local.solvers import SGD, Adam, Prox

STEPS = np.array([0, 1, 2, 7, 40])


def momentum_effort(T, rho):
    return (T - rho * (1 - rho**T) / (1 - rho)) / (1 - rho)


@pytest.mark.parametrize(
    ("solver", "closed_form"),
    [
        (SGD(), lambda T: T),
        (SGD(momentum=0.9), lambda T: momentum_effort(T, 0.9)),
        (SGD(momentum=0.3), lambda T: momentum_effort(T, 0.3)),
        (SGD(decay=0.005), lambda T: (1 - 0.995**T) / 0.005),
        (Prox(0.0), lambda T: T),
        (Prox(1.0), lambda T: (1 - (1 - 0.1 * 1.0) ** T) / (0.1 * 1.0)),
        (Prox(0.01), lambda T: (1 - (1 - 0.1 * 0.01) ** T) / (0.1 * 0.01)),
        (SGD(weight_decay=0.5), lambda T: (1 - (1 - 0.1 * 0.5) ** T) / (0.1 * 0.5)),
    ],
    ids=lambda v: str(v) if isinstance(v, Solver) else "",
)
def test_effort_is_the_closed_form(solver, closed_form):
    assert np.allclose(solver.effort(STEPS, 0.1), closed_form(STEPS.astype(float)), rtol=1e-12)


FAR = np.array([70_000, 10**6, 2**31 - 1])


@pytest.mark.parametrize(
    ("solver", "closed_form"),
    [
        (SGD(), lambda T: T),
        (SGD(momentum=0.9), lambda T: momentum_effort(T, 0.9)),
        (SGD(decay=1e-5), lambda T: (1 - (1 - 1e-5) ** T) / 1e-5),
        (Prox(1e-5), lambda T: -np.expm1(T * np.log1p(-1e-6)) / 1e-6),
        (Prox(1.0), lambda T: -np.expm1(T * np.log1p(-0.1)) / 0.1),
        (SGD(weight_decay=1e-4), lambda T: -np.expm1(T * np.log1p(-1e-5)) / 1e-5),
    ],
    ids=lambda v: str(v) if isinstance(v, Solver) else "",
)
def test_effort_of_billions_of_steps_is_the_closed_form_too(solver, closed_form):
    assert np.allclose(solver.effort(FAR, 0.1), closed_form(FAR.astype(float)), rtol=1e-6)


def test_effort_far_out_of_a_pull_with_momentum_by_matrix_powers():
    """One step maps (y, v, 1) linearly: v ← ρ v + 1 + μ y, y ← y − η v."""
    rho, mu, lr = 0.5, 1e-4, 0.1
    step = np.array([[1 - lr * mu, -lr * rho, -lr], [mu, rho, 1], [0, 0, 1.0]])
    wanted = [-np.linalg.matrix_power(step, int(T))[0, 2] / lr for T in FAR]
    assert np.allclose(Prox(mu, SGD(momentum=rho)).effort(FAR, lr), wanted, rtol=1e-6)


def test_nesterov_effort_by_its_accumulation_vector():
    """d_t = g_t + ρ v_t: gradient s moves y once by itself and by ρ^(t−s+1) at each step t ≥ s."""
    rho, T = 0.6, 5
    weights = [1 + sum(rho ** (t - s + 1) for t in range(s, T)) for s in range(T)]
    assert SGD(momentum=rho, nesterov=True).effort(np.array([T]), 0.1)[0] == pytest.approx(sum(weights))


def test_prox_around_momentum_by_its_own_recursion():
    """v ← ρ v + (g + μ(y − x)), y ← y − η v on a constant gradient 1, written out."""
    rho, mu, lr, y, v = 0.5, 2.0, 0.1, 0.0, 0.0
    for _ in range(6):
        v = rho * v + (1 + mu * y)
        y -= lr * v
    assert Prox(mu, SGD(momentum=rho)).effort(np.array([6]), lr)[0] == pytest.approx(-y / lr)


@pytest.mark.parametrize(
    ("solver", "optimizer"),
    [
        (SGD(), lambda p: torch.optim.SGD(p, 0.1)),
        (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (SGD(momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
        (SGD(weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
        (SGD(momentum=0.5, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, weight_decay=0.1)),
        (Adam(), lambda p: torch.optim.Adam(p, 0.1)),
        (Adam(0.8, 0.9, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.1, betas=(0.8, 0.9), weight_decay=0.1)),
    ],
    ids=lambda v: str(v) if isinstance(v, Solver) else "",
)
def test_walks_like_torch(solver, optimizer):
    """On f(y) = Σ cos(y) + y²/2, gradient y − sin(y): twelve steps land where torch's optimiser lands."""
    torch.manual_seed(0)
    start = torch.randn(8, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    torch_optimizer = optimizer([theirs])
    ours, state = start.clone(), solver.begin(start)
    for t in range(12):
        torch_optimizer.zero_grad()
        (theirs.cos() + theirs**2 / 2).sum().backward()
        torch_optimizer.step()
        d, state = solver.direction(state, ours - ours.sin(), ours, start, 0.1, t)
        ours = ours - 0.1 * d
    assert torch.allclose(ours, theirs.detach(), rtol=1e-10)


def test_decay_restarts_each_participation():
    d0, _ = SGD(decay=0.5).direction((), 1.0, 0.0, 0.0, 0.1, 0)
    d3, _ = SGD(decay=0.5).direction((), 1.0, 0.0, 0.0, 0.1, 3)
    assert (d0, d3) == (1.0, 0.125)


def test_prox_pulls_towards_the_start():
    d, _ = Prox(2.0).direction((), 1.0, 5.0, 3.0, 0.1, 0)
    assert d == 1.0 + 2.0 * (5.0 - 3.0)
