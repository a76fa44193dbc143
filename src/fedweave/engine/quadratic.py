"""Clients with quadratic objectives, solved exactly: the oracle world of FedACS appendix C.

F_m(x) = ½ (x − x_m*)' H_m (x − x_m*). A solver that is linear in its gradients moves each eigenvector of H_m by itself:
u = Q k_T(h) Q' (x* − x), where k_T(h) is how far T steps get from 0 towards 1 on ½ h (y − 1)². The solver itself, run
once on these one-dimensional problems, fills the table of k; a round is then a lookup and a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedweave.core.records import Array, Assignment, Layout, Population, Replies
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput
from fedweave.engine.links import add_transfer_time, draw_arrivals
from fedweave.local.solvers import SGD, Adam
from fedweave.round.memories import relative_weights, with_memory_change
from fedweave.upload.everything import Everything
from fedweave.upload.send import Begin, Fleet, Kind, apply_upload, start_vectors


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


class QuadraticEngine:
    """Trains quadratic clients, in float64 and without any sampling of data."""

    def __init__(self, problem: Quadratics, solver: Solver, seed: int, weight: Array, upload: Upload | None = None):
        if isinstance(solver, Adam):
            raise BadInput("Adam is not linear in its gradients: quadratic clients need SGD or Prox around it.")
        self.problem, self.solver, self.seed, self.weight = problem, solver, seed, weight
        dim = problem.optimum.shape[1]
        self.layout = Layout(("x",), ((dim,),), dim)
        self._upload = upload or Everything()
        self.fleet = Fleet((Kind(self.layout),), np.zeros(weight.size, np.int64))
        self._tables: dict[float, Array] = {}
        self._plain = solver == SGD()
        self._no_loss = np.full(weight.size, np.nan)
        self._bytes = np.full(weight.size, 8 * dim * (2 if solver.uploads_memory else 1))

    def train(self, assignment: Assignment) -> Replies:
        """Return what the cohort sends, exactly."""
        ids, population, x = assignment.cohort.ids, assignment.population, assignment.x
        received = draw_arrivals(self.seed, assignment.round, ids, population)
        begin = start_vectors(assignment, ids)
        updates = self._updates(assignment, begin)
        gradient = self.gradients(x if begin is None else begin.start, ids)
        first = np.sqrt(np.einsum("ki,ki->k", gradient, gradient))
        updates[~received], first[~received] = 0.0, np.nan
        nothing, sent = self._no_loss[: ids.size], self._bytes[: ids.size]
        replies = Replies(received, updates, population.steps[ids], nothing, first, population.latency[ids], sent)
        measure = assignment.context.measure
        replies = replies._replace(variance=np.zeros(ids.size)) if measure else replies  # no data is drawn
        replies = with_memory_change(replies, self.solver, assignment)
        replies = apply_upload(replies, self._upload, self.fleet, assignment, begin)
        return add_transfer_time(replies, assignment)

    def rehearse(self, assignment: Assignment) -> Array:
        """Return the updates that the cohort would send."""
        return self._updates(assignment, start_vectors(assignment, assignment.cohort.ids))

    def _updates(self, assignment: Assignment, begin: Begin | None) -> Array:
        x, ids, population = assignment.x, assignment.cohort.ids, assignment.population
        lr, has = assignment.lr, assignment.context
        if begin is not None:  # each from a point of its own; the way there is a part of its update
            return self._moved(begin.start, ids, population, lr) + (begin.start - x)
        if has.memory is not None:
            return self._walked(x, ids, population, lr, has.broadcast, has.memory[ids])
        return self._moved(x, ids, population, lr)

    def _moved(self, x: Array, ids: Array, population: Population, lr: float) -> Array:
        """Return how far these clients get from one point (d,), or each from its own (k, d)."""
        steps, away, (h, vectors) = population.steps[ids], self.problem.optimum[ids] - x, self.problem.eigen
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

    def _walked(
        self, x: Array, ids: Array, population: Population, lr: float, sent: Array | None, memory: Array
    ) -> Array:
        """Return the updates of clients that remember, step by step: each one's problem is bent its own way."""
        steps = population.steps[ids]
        order = np.argsort(-steps, kind="stable")  # longest first: the active clients are a prefix
        who, y = ids[order], np.tile(x, (ids.size, 1))
        state = self.solver.begin_with_memory(y, memory[order], sent, relative_weights(who, population)[:, None])
        for t in range(int(steps.max(initial=0))):
            n = int(np.count_nonzero(steps > t))
            state = tuple(s[:n] for s in state)
            d, state = self.solver.direction(state, self.gradients(y[:n], who[:n]), y[:n], x, lr, t)
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

    def gradients(self, x: Array, ids: Array) -> Array:
        """Return these clients' gradients (k, d) H (x − x*), at one point or at a point of each."""
        away, H = x - self.problem.optimum[ids], self.problem.curvature
        return away if H is None else np.einsum("kij,kj->ki", H[ids], away)

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> Array:
        """Return zeros: no data is drawn, every gradient is the client's true one."""
        return np.zeros(ids.size)

    def losses(self, x: Array, ids: Array) -> Array:
        """Return each one's objective F_m(x) (k,)."""
        return np.einsum("ki,ki->k", x - self.problem.optimum[ids], self.gradients(x, ids)) / 2

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return the global objective as loss; there is nothing to classify."""
        return {"accuracy": np.nan, "loss": self.problem.value(self.weight, x), "class_accuracy": np.zeros(0)}
