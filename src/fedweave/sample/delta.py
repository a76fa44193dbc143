"""The theoretical samplers of DELTA (Wang, Guo, Lin, Tang): oracles that know every client's update in advance.

Aggregation weights. The paper has two. Its text (eq. 7) and its proofs weigh an update by 1/(n m p_i), for n draws of m
clients; line 12 of its algorithms uses n_i/(|S| n p_i), with n_i the client's samples. The first is unbiased for equal
weights if the draws are with replacement. The second is unbiased for data weights only if n is read as the number of
*all samples*, not of draws as everywhere else: then both are ω_i/(n p_i), one with ω = 1/m and one with data shares.
Without replacement neither is unbiased: Lemma C.1 uses n p_i as inclusion probability, which is wrong when clients are
drawn one after the other. ``InverseProbability`` weighs by ω_i c_i/E[c_i], which equals the first weight with
replacement and is the Horvitz-Thompson estimator without; these samplers then draw with known inclusion probabilities.

DELTA does not minimise the variance of the update; importance sampling does. It minimises Φ̃ (eq. 11), a bound in which
a client counts by the distance of its gradient from the global one and by its noise, not by its norm.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedweave import theory
from fedweave.core.records import Array, Cohort, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.core.vectors import lengths
from fedweave.sample.fixed import draw_from, law_of, proportional

Floor = Annotated[float, Field(ge=0, le=1)]


def probability_with_floor(score: Array, able: Array, floor: float) -> Array:
    """Return p ∝ score among able clients, at least ``floor`` times an equal share each; zero for the others.

    Infinite scores (of a diverging model) are replaced by the largest finite number.
    """
    p, n, known = np.zeros(able.size), int(able.sum()), np.isfinite(score)
    score = np.where(known, score, score[known].max(initial=0.0))
    p[able] = proportional(score[able], 1.0, floor / max(n, 1))
    return p


@settings
class IS(Sampler):
    """``per_round`` draws, p_i ∝ ω_i ‖ĝ_i‖ (eq. 5), with ĝ_i = −u_i/η the sum of local gradients: all clients train.

    The law of least update variance; apart from the floor it is ``Optimal`` with oracle norms. ``floor``: the least p,
    as a share of equal probabilities. Without ``replacement`` the inclusion probability is π_i = min(1, c·p_i), with
    Σ π = per_round.
    """

    per_round: PositiveInt
    replacement: bool = True
    floor: Floor = 1e-3

    def oracle(self) -> bool:
        return True

    def law(self, state: State, view: View) -> Array:
        p = view.population
        updates = view.probes.updates(np.arange(p.size))[:, : view.layout.parameters]
        score = p.weight * lengths(updates)
        return law_of(probability_with_floor(score, p.available, self.floor), self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_from(self.law(state, view), self.per_round, self.replacement, rng)


@settings
class Delta(Sampler):
    """``per_round`` draws, p_i ∝ ω_i √(α₁ ζ_i² + α₂ σ_i²) (eq. 13), from true gradients and variances at the model.

    ζ_i = ‖∇F_i − Σ ω ∇F‖, σ_i² the variance of the gradients of the client's batches. Only the ratio of α₁ and α₂
    matters; the paper uses ½ for both. With a ``smoothness`` L they follow its theory, α₁ = 20 K² L η and
    α₂ = 5 K L η + η_g/n, for the client's K steps and server steps of ``server_lr``. ``floor`` and ``replacement`` as
    in ``IS``; without replacement the α differ by a factor m/n in part of Φ̃, which the paper ignores, and so do we.
    """

    per_round: PositiveInt
    alpha1: NonNegativeFloat = 0.5
    alpha2: NonNegativeFloat = 0.5
    smoothness: PositiveFloat | None = None
    server_lr: PositiveFloat = 1.0
    replacement: bool = True
    floor: Floor = 1e-3

    def oracle(self) -> bool:
        return True

    def law(self, state: State, view: View) -> Array:
        p, everyone = view.population, np.arange(view.population.size)
        gradients = view.probes.gradients(everyone)
        away = gradients - p.weight.astype(gradients.dtype) @ gradients
        alphas = self.alpha1, self.alpha2
        if self.smoothness is not None:
            alphas = theory.delta_alphas(p.steps, view.lr, self.smoothness, self.per_round, self.server_lr)
        variances = view.probes.variances(everyone) if np.any(alphas[1]) else np.zeros(p.size)
        score = p.weight * theory.delta_score(np.linalg.norm(away, axis=1), variances, *alphas)
        return law_of(probability_with_floor(score, p.available, self.floor), self.per_round, self.replacement)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_from(self.law(state, view), self.per_round, self.replacement, rng)
