"""TiFL (Chai et al., HPDC 2020): clients are grouped into tiers of similar speed, and each round asks one tier."""

from __future__ import annotations

import math

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import empty_cohort


@settings
class Tiers(Sampler):
    """``per_round`` clients of one tier, all equally likely: E[count_i] = p_t · min(K, n_t)/n_t for n_t available ones.

    ``tiers``: that many groups of equal size by the mean seconds of a client's participations; the world's latency
    counts until it was asked (``FirstEveryone`` asks all of them first, as the paper's profiler does). Tier t is drawn
    with probability p_t among those with credits and available clients.
    ``credits``: how many rounds each tier may have, the fastest first; once all are spent they begin anew. Empty: no
    limit. ``probability``: p of each tier, the fastest first, such as the paper's static policies uniform (0.2, …) and
    fast (1, 0, 0, 0, 0). Empty: adaptive (Algorithm 2), equal at first; every ``interval`` rounds, if the tier just
    asked has become no better since the last check, p = (n − i)/(n (n + 1)/2) for the n tiers with credits, where i = 0
    is the worst.
    A server has no test set of each tier: a tier is as good as its clients' last training losses, weighted by samples,
    and one that was never heard is the worst. The paper itself could not be had: the rule of p follows public
    implementations, which differ in D; this form leaves no tier without a chance. ``interval`` 10 is our choice.
    """

    per_round: PositiveInt
    tiers: PositiveInt = 5
    interval: PositiveInt = 10
    credits: tuple[PositiveInt, ...] = ()
    probability: tuple[NonNegativeFloat, ...] = ()

    def __post_init__(self) -> None:
        for name in ("credits", "probability"):
            if (given := len(getattr(self, name))) not in (0, self.tiers):
                raise ValueError(
                    f"The {name!r} parameter of Tiers must have one number per tier, {self.tiers}. Got {given}."
                )
        if self.probability and not abs(math.fsum(self.probability) - 1) < 1e-6:
            raise ValueError(
                f"The 'probability' parameter of Tiers must sum to 1. The sum is {sum(self.probability)!r}."
            )

    def init(self, population: Population) -> State:
        equal = np.full(self.tiers, 1 / self.tiers)
        return {
            "seconds": np.zeros(population.size),  # mean over all participations
            "asked": np.zeros(population.size, np.int64),
            "loss": np.full(population.size, np.nan),
            "probability": np.array(self.probability) if self.probability else equal,
            "credits": self._all_credits(),
            "before": np.full(self.tiers, np.inf),  # loss of each tier at the last check
        }

    def _all_credits(self) -> Array:
        return np.array(self.credits or (1,) * self.tiers)

    def tier_of(self, state: State, view: View) -> Array:
        """Return each client's tier (N,), 0 for the fastest."""
        n, tier = view.population.size, np.empty(view.population.size, np.int64)
        seconds = np.where(state["asked"] > 0, state["seconds"], view.population.latency)
        tier[np.argsort(seconds, kind="stable")] = np.arange(n) * self.tiers // n
        return tier

    def chances(self, state: State, there: Array) -> Array:
        """Return the probability (T,) of each tier, given its number of available clients.

        Where all tiers with credits are away, those without are asked, and then those with p = 0.
        """
        p, able = state["probability"] * (there > 0), (state["credits"] > 0) & (there > 0)
        adaptive = () if self.probability else (able.astype(float),)  # credits that have begun anew count at once
        for q in (p * able, *adaptive, p, (there > 0).astype(float)):
            if q.any():
                return q / q.sum()
        return p

    def law(self, state: State, view: View) -> Array:
        return self._odds(state, view)[2]

    def _odds(self, state: State, view: View) -> tuple[Array, Array, Array]:
        """Return each client's tier (N,), the tiers' probabilities (T,) and E[count] (N,)."""
        tier, available = self.tier_of(state, view), view.population.available
        there = np.bincount(tier[available], minlength=self.tiers)
        chances = self.chances(state, there)
        share = np.minimum(self.per_round, there) / np.maximum(there, 1)
        return tier, chances, (chances * share)[tier] * available

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        tier, chances, law = self._odds(state, view)
        if not chances.any():
            return empty_cohort()
        members = np.flatnonzero(view.population.available & (tier == rng.choice(self.tiers, p=chances)))
        ids = np.sort(rng.choice(members, min(self.per_round, members.size), replace=False))
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=law[ids])

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        if not cohort.ids.size:
            return state
        tier = self.tier_of(state, view)
        asked_tiers = np.unique(tier[cohort.ids])
        seconds, asked, loss, credits = (state[name].copy() for name in ("seconds", "asked", "loss", "credits"))
        ids = cohort.ids[timed := np.isfinite(replies.seconds)]
        asked[ids] += 1
        seconds[ids] += (replies.seconds[timed] - seconds[ids]) / asked[ids]
        heard = replies.received & np.isfinite(replies.loss)
        loss[cohort.ids[heard]] = replies.loss[heard]
        if self.credits:
            credits[asked_tiers] = np.maximum(credits[asked_tiers] - 1, 0)
            credits = credits if credits.any() else self._all_credits()
        after = {**state, "seconds": seconds, "asked": asked, "loss": loss, "credits": credits}
        if self.probability or view.round % self.interval:
            return after
        now = self._tier_losses(loss, tier, view.population.samples)
        improved = (now < state["before"])[asked_tiers].all()
        p = state["probability"] if improved else by_rank(now, credits > 0)
        return {**after, "probability": p, "before": now}

    def _tier_losses(self, loss: Array, tier: Array, samples: Array) -> Array:
        """Return the mean of each tier's last losses (T,), weighted by samples; infinite where there is none."""
        known = np.flatnonzero(np.isfinite(loss) & (samples > 0))
        weight = np.bincount(tier[known], samples[known], self.tiers)
        total = np.bincount(tier[known], samples[known] * loss[known], self.tiers)
        return np.divide(total, weight, out=np.full(self.tiers, np.inf), where=weight > 0)


def by_rank(loss: Array, able: Array) -> Array:
    """Return TiFL's probabilities (T,): n, n − 1, …, 1 over their sum for the able tiers, the highest loss first."""
    ids = np.flatnonzero(able)
    order, n = ids[np.argsort(-loss[ids], kind="stable")], ids.size
    p = np.zeros(loss.size)
    p[order] = np.arange(n, 0, -1) / (n * (n + 1) / 2)
    return p
