"""Clients with quadratic objectives, solved exactly: the oracle world of FedACS appendix C.

F_m(x) = ½ (x − x_m*)' H_m (x − x_m*). A solver that is linear in its gradients moves each eigenvector of H_m by itself:
u = Q k_T(h) Q' (x* − x), where k_T(h) is how far T steps get from 0 towards 1 on ½ h (y − 1)². The solver itself, run
once on these one-dimensional problems, fills the table of k; a round is then a lookup and a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput
from fedweave.local.solvers import SGD, Adam
from fedweave.local.trainer import ALL_ROWS, Jobs, Trained, of_each
from fedweave.tasks.regression import Regression
from fedweave.tasks.task import Sums
from fedweave.upload.codec import ClientModel, ModelFleet


@dataclass(frozen=True)
class Quadratics:
    """One quadratic per client."""

    optimum: Array  # (N, d), each client's own x_m*
    curvature: Array | None = None  # (N, d, d) symmetric positive definite; None: the identity

    @classmethod
    def random(cls, clients: int, dim: int, seed: int = 0) -> Quadratics:
        """FedACS's toy example: x_m* ~ N(0, I), H = I."""
        return cls(np.random.default_rng(seed).standard_normal((clients, dim)))

    @cached_property
    def eigen(self) -> tuple[Array, Array | None]:
        """Eigenvalues (N, d) and eigenvectors (N, d, d) of the curvatures; no vectors for the identity."""
        if self.curvature is None:
            return np.ones_like(self.optimum), None
        values, vectors = np.linalg.eigh(self.curvature)
        return values, vectors

    def minimiser(self, weight: Array) -> Array:
        """Return the optimum of Σ weight_m F_m."""
        if self.curvature is None:
            return weight @ self.optimum / weight.sum()
        H = np.einsum("n,nij->ij", weight, self.curvature)
        return np.linalg.solve(H, np.einsum("n,nij,nj->i", weight, self.curvature, self.optimum))

    def value(self, weight: Array, x: Array) -> float:
        """Return Σ weight_m F_m(x)."""
        away = self.optimum - x
        pull = away if self.curvature is None else np.einsum("nij,nj->ni", self.curvature, away)
        return float(weight @ np.einsum("ni,ni->n", away, pull) / 2)


class QuadraticTrainer:
    """Trains quadratic clients, in float64 and without any sampling of data."""

    name = "QuadraticTrainer"

    def __init__(self, problem: Quadratics, solver: Solver, seed: int, weight: Array):
        if isinstance(solver, Adam):
            raise BadInput("Adam is not linear in its gradients: quadratic clients need SGD or Prox around it.")
        self.problem, self.solver, self.seed, self.weight = problem, solver, seed, weight
        dim = problem.optimum.shape[1]
        self.layout = Layout(names=("x",), shapes=((dim,),), parameters=dim)
        self.models = ModelFleet((ClientModel(self.layout, dtype=np.dtype(np.float64)),))
        self.task, self.test_size = Regression(), 1
        self._tables: dict[float, Array] = {}
        self._plain = solver == SGD()

    def pieces(self, jobs: Jobs) -> Sequence[Array | slice]:
        """Return one piece with all rows for each learning rate: clients do not affect each other."""
        if not np.count_nonzero(jobs.lr != jobs.lr[0]):
            return [ALL_ROWS]
        return [np.flatnonzero(jobs.lr == lr) for lr in np.unique(jobs.lr)]

    def train(self, x: Array, jobs: Jobs) -> Trained:
        """Return what the clients arrive at, exactly."""
        ids, lr, x = jobs.client, float(jobs.lr[0]), of_each(x, jobs)
        start = x if jobs.starts is None else jobs.starts
        away = self.problem.optimum[ids] - start
        if jobs.memory is not None:
            updates = self._walk(x, start, jobs, lr)
        else:
            updates = self._moved(away, ids, jobs.steps, lr)
            updates = updates if jobs.starts is None else updates + (start - x)  # the way there is a part of it
        pull = self._curved(away, ids)  # minus the gradient
        first = np.sqrt(np.einsum("ki,ki->k", pull, pull))
        nothing = np.full(ids.size, np.nan)
        variance = np.zeros(ids.size) if jobs.measure else nothing  # no data is drawn
        begin = np.einsum("ki,ki->k", away, pull) / 2  # F_m where they begin
        return Trained(
            updates=updates, loss=nothing, first_gradient=first, variance=variance, first_loss=begin,
            squared_loss=nothing,
        )  # fmt: skip

    def _moved(self, away: Array, ids: Array, steps: Array, lr: float) -> Array:
        """Return how far these clients get that are so far away from their optima (k, d)."""
        h, vectors = self.problem.eigen
        if self._plain and vectors is None:  # nothing but one power per client
            return (1 - (1 - lr) ** steps)[:, None] * away
        if self._plain:  # no table needed, and a calibrated world asks for another lr every round
            reach = 1 - (1 - lr * h[ids]) ** steps[:, None]
        else:
            reach = self._reach(lr, int(steps.max(initial=1)))[steps, ids]
        if vectors is None:
            return reach * away
        along = np.einsum("kji,kj->ki", vectors[ids], away)
        return np.einsum("kij,kj->ki", vectors[ids], reach * along)

    def reach(self, clients: Array, steps: Array, lr: float) -> Array:
        """Return k_T (k,), how far these clients get of the way to their optimum, along the first axis."""
        optimum = self.problem.optimum[clients]
        return self._moved(optimum - (optimum - 1.0), clients, steps, lr)[:, 0]

    def _walk(self, x: Array, start: Array, jobs: Jobs, lr: float) -> Array:
        """Return the updates of clients that remember, step by step: each one's problem is bent its own way."""
        steps, share = jobs.steps, np.ones(jobs.client.size) if jobs.share is None else jobs.share
        order = np.argsort(-steps, kind="stable")  # longest first: the active clients are a prefix
        who, y = jobs.client[order], np.broadcast_to(start, (steps.size, x.shape[-1]))[order]
        memory = None if jobs.memory is None else jobs.memory[order]
        sent = None if jobs.broadcast is None else of_each(jobs.broadcast, jobs)
        sent = sent if sent is None or sent.ndim == 1 else sent[order]
        x = x if x.ndim == 1 else x[order]
        state = self.solver.begin_with_memory(y, memory, sent, share[order][:, None])
        for t in range(int(steps.max(initial=0))):
            n = int(np.count_nonzero(steps > t))
            state = tuple(s[:n] for s in state)
            origin = x if x.ndim == 1 else x[:n]
            d, state = self.solver.direction(state, self.gradients(y[:n], who[:n]), y[:n], origin, lr, t)
            if self.solver.sends_last_step:  # of those that end now
                end = np.count_nonzero(steps > t + 1)
                y[end:n] = x if x.ndim == 1 else x[end:n]
            y[:n] -= lr * d
        updates = np.empty_like(y)
        updates[order] = y - x
        return updates

    def _reach(self, lr: float, top: int) -> Array:
        """Return k_T(h) for T = 0 … top: (top + 1, N, d)."""
        table = self._tables.get(lr)
        if table is None or len(table) <= top:
            h = self.problem.eigen[0]
            y = np.zeros_like(h)
            state, rows, start = self.solver.begin(y), [y], y
            for t in range(1 << (top - 1).bit_length()):
                d, state = self.solver.direction(state, h * (y - 1), y, start, lr, t)
                y = y - lr * d
                rows.append(y)
            table = np.stack(rows)
            self._tables = {lr: table}  # the last one: lr changes every round, or never
        return table

    def gradients(self, x: Array, clients: Array) -> Array:
        """Return these clients' gradients (k, d) H (x − x*), at one point or at a point of each."""
        return self._curved(x - self.problem.optimum[clients], clients)

    def _curved(self, away: Array, clients: Array) -> Array:
        """Return H times a vector of each of these clients (k, d)."""
        H = self.problem.curvature
        return away if H is None else np.einsum("kij,kj->ki", H[clients], away)

    def variances(self, x: Array, dispatch: int, clients: Array, batch_size: Array) -> Array:
        """Return zeros: no data is drawn, every gradient is the client's true one."""
        return np.zeros(clients.size)

    def losses(self, x: Array, clients: Array) -> Array:
        """Return each one's objective F_m(x) (k,)."""
        return np.einsum("ki,ki->k", x - self.problem.optimum[clients], self.gradients(x, clients)) / 2

    def evaluate(self, x: Array, begin: int, end: int) -> Sums:
        """Return the global objective as loss; there is nothing to classify."""
        return {"loss": (self.problem.value(self.weight, x), 1.0)}

    def evaluate_clients(self, x: Array, clients: Array) -> list[Sums]:
        """Return each one's objective F_m(x) as loss: there is no other data to test on."""
        return [{"loss": (loss, 1.0)} for loss in self.losses(x, clients).tolist()]
