"""Directions of minimum norm: FedAWARE over the momenta of all clients, and FedMGDA+ over this round's updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedweave.aggregate.linear import Mean, weigh
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import BadInput, settings
from fedweave.solve import min_norm_weights
from fedweave.tables.rows import Precision, Rows
from fedweave.theory import chi_square, diversity_ratio

Share = Annotated[float, Field(ge=0, lt=1)]
Deviation = Annotated[float, Field(ge=0, le=1)]
FEDAVG = Mean()
LOST = np.float32(np.nan)  # where products overflow float32 there is no shortest combination: the round is abandoned
MOST_CLIENTS = 100_000  # whose products are 80 GB
STALLED = 0.02  # a direction this much shorter than the mean of the same vectors: the model no longer moves


@settings
class Aware(Aggregator):
    """Σ λ̃_i m_i, the shortest convex combination of the clients' momenta m_i ← α m_i + (1 − α) u_i (FedAWARE, Alg. 1).

    Only clients that answered change their momentum; the first answer of a client sets m_i = u_i. A client without
    answers is left out of eq. 8: its zero would be the shortest vector, and the direction zero until it answers.
    ``start`` chooses the direction before every client has answered: "seen" solves eq. 8 over those that have, "mean"
    uses FedAvg's direction until then. With ``FirstEveryone`` as sampler the first round asks all clients, as in the
    paper's proof, or the first ⌈N/K⌉ rounds do. A round without answers makes no step.
    ``alpha``: one for all clients, as in the paper, or one for each, which the paper's appendix leaves to future work:
    larger for clients that are asked often or whose updates are noisy.

    ``unit``: momenta are scaled to unit vectors for eq. 8 and the direction, as in the authors' code, so that no short
    momentum can shorten it. ``project``: the direction d is replaced by the projection of the mean momentum
    v = Σ λ_i m_i onto it, ⟨v, d⟩/⟨d, d⟩ · d, which is at least as long. ``deviation`` ε: |λ̃_i − λ_i| ≤ ε, so that no
    client is forgotten or dominates; λ are the objective's weights.

    The authors' code weighs the new update by α where the paper's Algorithm 1 weighs the old momentum; this is the
    paper's rule.
    """

    alpha: Share | tuple[Share, ...] = 0.5
    unit: bool = False
    project: bool = False
    deviation: Deviation | None = None
    start: Literal["seen", "mean"] = "seen"
    precision: Precision = "float32"  # of the momenta

    def init(self, population: Population, dim: int) -> State:
        n = population.size
        if n > MOST_CLIENTS:
            raise BadInput(
                f"{type(self).__name__} keeps the products of all clients' momenta, N² numbers, and takes at most "
                f"{MOST_CLIENTS:,} clients. There are {n:,}: use fewer, or another aggregator."
            )
        if isinstance(self.alpha, tuple) and len(self.alpha) != n:
            wanted = f"one number, or one for each of the {n} clients. Got {len(self.alpha)}"
            raise BadInput(f"The 'alpha' parameter of {type(self).__name__} must be {wanted}.")
        return {
            "momentum": Rows.zeros(n, dim, self.precision),
            "gram": np.zeros((n, n)),  # ⟨m_i, m_j⟩
            "weights": np.zeros(n),  # λ̃; zeros until eq. 8 is solved
        }

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        mean, _ = FEDAVG.combine({}, view, cohort, replies)
        if not replies.received.any():
            return mean, state
        momentum, gram = self._remember(state, view, cohort, replies)
        if not np.isfinite(gram).all():
            return LOST * mean, state
        after = {"momentum": momentum, "gram": gram, "weights": np.zeros(len(gram))}
        if self.start == "mean" and not momentum.written.all():
            return mean, after
        who, Q, prior, length = self._hull(after, view)
        lam = min_norm_weights(Q, prior, self.deviation)
        after["weights"][who] = lam
        if self.project:
            lam = lam * (prior @ Q @ lam) / max(lam @ Q @ lam, np.finfo(float).tiny)
        share = np.zeros(len(gram))
        share[who] = lam / length
        direction = momentum.combine(share)
        direction[view.layout.parameters :] = mean[view.layout.parameters :]  # buffers have no momentum
        return direction, after

    def _remember(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Rows, Array]:
        """Return momenta and Gram matrix, updated for the clients that answered, in one pass over the table."""
        received, p = replies.received, view.layout.parameters
        ids, fresh = cohort.ids[received], replies.updates if received.all() else replies.updates[received]
        if p < fresh.shape[1]:
            fresh = np.concatenate([fresh[:, :p], np.zeros_like(fresh[:, p:])], axis=1)
        before = state["momentum"]
        alpha = np.array(self.alpha)[ids] if isinstance(self.alpha, tuple) else self.alpha
        momentum = before.mixed(ids, np.where(before.written[ids], alpha, 0.0), fresh)
        gram, products = state["gram"].copy(), momentum.gram(ids)
        products[:, ids] = (products[:, ids] + products[:, ids].T) / 2
        gram[ids], gram[:, ids] = products, products.T
        return momentum, gram

    def _hull(self, state: State, view: View) -> tuple[Array, Array, Array, Array]:
        """Return the inputs of eq. 8: its clients, their Gram matrix and weights, and the divisors of the momenta."""
        gram = state["gram"]
        length = np.sqrt(np.diag(gram))
        # a zero momentum counts (its client is at its optimum), but it has no unit vector
        who = np.flatnonzero(state["momentum"].written & ((length > 0) | (not self.unit)))
        Q, weight = gram[np.ix_(who, who)], view.population.weight[who]
        divisor = length[who] if self.unit else np.ones(who.size)
        return who, Q / divisor / divisor[:, None], weight / weight.sum(), divisor

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        """Diversity of the momenta and of the step, χ²(λ̃ ‖ λ), and the length of the step relative to the mean."""
        if not state["weights"].any():
            return {}
        who, Q, prior, _ = self._hull(state, view)
        return hull_measures(Q, prior, state["weights"][who])

    def surrogate(self, state: State) -> Array | None:
        return state["weights"] if state["weights"].any() else None


def hull_measures(Q: Array, prior: Array, lam: Array) -> dict[str, float]:
    """Return eqs 3 and 6 and related measures for vectors with Gram matrix Q and the weights of objective and step.

    ``shortening`` is ‖Σ λ̃ m‖ / ‖Σ λ m‖: 1 where the step is as long as FedAvg's from the same vectors, near 0 where the
    convex hull is close to the origin. Training has then ``stalled``: see the guide. ``chi_square`` is the divergence
    Σ (λ̃ − λ)²/λ; the paper uses that name for Σ λ̃²/λ².
    """
    square, mean, step = float(prior @ np.diag(Q)), max(float(prior @ Q @ prior), 0), max(float(lam @ Q @ lam), 0)
    shortening = np.sqrt(step / mean) if mean > 0 else 1.0
    return {
        "memory_diversity": diversity_ratio(square, mean),
        "surrogate_diversity": diversity_ratio(square, step),
        "chi_square": chi_square(lam, prior),
        "shortening": float(shortening),
        "stalled": float(shortening < STALLED),
    }


@settings
class MGDA(Aggregator):
    """Σ λ̃_i u_i/‖u_i‖, the shortest combination of this round's unit updates, |λ̃_i − λ_i| ≤ ε (FedMGDA+, Hu et al.).

    λ are the objective's weights among the answers. ε = 1 is multiple gradient descent, ε = 0 FedAvg of unit updates.
    An update of zero has no direction and is left out.
    """

    deviation: Deviation = 1.0

    def init(self, population: Population, dim: int) -> State:
        return {"weights": np.zeros(population.size), "surrogate_diversity": np.full(1, np.nan)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        p, U = view.layout.parameters, replies.updates
        direction, _ = FEDAVG.combine({}, view, cohort, replies)
        length = np.linalg.norm(U[:, :p], axis=1)
        who = np.flatnonzero(replies.received & (length > 0))
        fresh = self.init(view.population, U.shape[1])
        if not who.size:
            return direction, fresh
        Q = (U[who, :p] @ U[who, :p].T).astype(float) / length[who] / length[who, None]
        if not np.isfinite(Q).all():
            return LOST * direction, fresh
        np.fill_diagonal(Q, 1.0)
        weight = view.population.weight[cohort.ids[who]] * cohort.count[who]
        prior = weight / weight.sum()
        lam = min_norm_weights(Q, prior, self.deviation)
        share = np.zeros(length.size)
        share[who] = lam / length[who]
        direction[:p] = weigh(share, replies)[:p]
        fresh["weights"][cohort.ids[who]] = lam
        fresh["surrogate_diversity"][0] = hull_measures(Q, prior, lam)["surrogate_diversity"]
        return direction, fresh

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        """The diversity of the step on this round's unit updates."""
        return {"surrogate_diversity": float(state["surrogate_diversity"][0])}

    def surrogate(self, state: State) -> Array | None:
        return state["weights"] if state["weights"].any() else None
