"""FedACS: sample clients with lossy links or little work more often, so that a plain sum meets the true objective."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample import estimates
from fedweave.sample.fixed import draw_with_replacement, mean_count

Share = Annotated[float, Field(gt=0, le=1)]


@settings
class ACS(Sampler):
    """``per_round`` draws with replacement, p_m ∝ ω_m / ((1 − q_m) ‖a_m‖₁) (FedACS eq. 15), recomputed every round.

    ``links``: "known" uses this round's true loss rates and steps, as the paper does. "estimated" learns both from past
    rounds (``fedweave.sample.estimates``), because a real server knows neither.
    ``effort``: "counted" uses ‖a‖₁ of the steps. "measured" uses how far clients actually moved, κ = ‖u‖/(η‖g₀‖),
    smoothed over their visits: where local training saturates, twice the steps are not twice the displacement, and
    counting over-corrects. Where it does not saturate, κ equals ‖a‖₁ and this is FedACS.
    A client that is unavailable, always lost (q = 1) or idle (no steps) cannot be represented and is left out; the
    others keep their proportions.
    """

    per_round: PositiveInt
    links: Literal["known", "estimated"] = "known"
    effort: Literal["counted", "measured"] = "counted"
    memory: Share = 0.99  # weight that a visit keeps after the next one; 1 never forgets
    prior: NonNegativeFloat = 1.0  # weight, in visits, of the assumption that a link is like the average
    floor: Share = 0.05  # smallest estimated success rate

    def init(self, population: Population) -> State:
        return estimates.fresh(population.size) if self._learns else {}

    def required_fields(self) -> tuple[str, ...]:
        return ("first_gradient",) if self.effort == "measured" else ()

    @property
    def _learns(self) -> bool:
        return self.links == "estimated" or self.effort == "measured"

    def law(self, state: State, view: View) -> Array:
        p = view.population
        success = p.arrival_rate if self.links == "known" else estimates.success_rate(state, self.prior, self.floor)
        effort = view.effort
        if self.effort == "measured":
            effort = estimates.mean_effort(state, "reach", effort)
        elif self.links == "estimated":
            # The steps of this round are unknown too; before the first answer all clients are assumed equal.
            effort = estimates.mean_effort(state, "effort", np.full(p.size, view.effort.mean()))
        reach = success * effort
        able = p.available & (reach > 0)
        return mean_count(np.divide(p.weight, reach, out=np.zeros(p.size), where=able), self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        return draw_with_replacement(self.law(state, view), self.per_round, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        return estimates.remember(state, view, cohort, replies, self.memory) if self._learns else state
