"""Oort (Lai, Zhu, Madhyastha, Chowdhury): prefer clients with a high loss, unless they are too slow."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fedcs import affordable
from fedweave.sample.fixed import empty_cohort

Share = Annotated[float, Field(gt=0, le=1)]
CLIP = 0.98  # quantile of the utilities at which they are clipped
UNCERTAIN = 0.1  # weight of the time since a client's last answer


@settings
class Oort(Sampler):
    """``per_round`` clients, or as many as hold the share ``keep`` of all model bytes, by utility.

    Utility is samples × √(mean of the samples' squared losses) over the local steps, scaled to 0 … 1 between the least
    and a high quantile, plus √(0.1 ln r / last visit) so that no client is forgotten; times (T/t)^α for clients that
    take t > T seconds, ``straggler`` α = 2. Clients with at least ``cutoff`` times the utility of the last client that
    fits are drawn in proportion to their utility.
    A share of the cohort, 0.9 at first and multiplied by ``fades`` each round down to ``explore``, goes to clients that
    have never answered, larger and faster ones first, as long as there are any.
    ``explore=0`` is Oort as FedDD describes it: the clients with the lowest utility are dropped, and nothing is drawn.
    Clients that have never answered have no utility yet and come first (``FirstEveryone`` asks all of them at once).
    T is the duration within which the share ``fastest`` of the clients is done (None: as many as are asked). When the
    utility gained in ``pace`` rounds is within a tenth of that of the ``pace`` rounds before, T is relaxed by 0.05 of
    the clients; when it changes more than fivefold, it is tightened (Oort's pacer).
    A client that reports only the mean of its losses, such as a Flower app of your own, counts with that; it is smaller
    where losses differ within a client.
    """

    per_round: PositiveInt | None = None
    keep: Share | None = None
    straggler: NonNegativeFloat = 2.0
    explore: Annotated[float, Field(ge=0, le=1)] = 0.2
    fades: Share = 0.95
    cutoff: Share = 0.7
    fastest: Share | None = None
    pace: PositiveInt = 20
    window: PositiveFloat = 5.0  # new clients considered, as a multiple of the number wanted
    law_known: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if (self.per_round is None) == (self.keep is None):
            raise ValueError("Give either 'per_round' or 'keep' to Oort.")

    def init(self, population: Population) -> State:
        share = self.keep or (self.per_round or 1) / population.size
        return {
            "utility": np.zeros(population.size),
            "duration": np.full(population.size, np.nan),
            "heard": np.zeros(population.size),  # round of the last answer, 0 if none
            "fastest": np.array([min(self.fastest or share, 1.0)]),
            "gained": np.zeros(2 * self.pace),  # utility of clients asked again, per round, the newest last
        }

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        p = view.population
        available = np.flatnonzero(p.available)
        if not available.size:
            return empty_cohort()
        k = min(self.per_round or max(round((self.keep or 1) * available.size), 1), available.size)
        score = self._scores(state, view)
        new = available[state["heard"][available] == 0]
        known = available[state["heard"][available] > 0]
        share = max(0.9 * self.fades ** (view.round - 1), self.explore) if self.explore else 1.0
        fresh = min(max(round(share * k), k - known.size), new.size)
        eligible = self._count_eligible(score[known], k - fresh) if self.explore else 0
        window = int(self.window * fresh) if self.explore else 0
        picked = np.concatenate(
            [_draw_best(known, score, k - fresh, eligible, rng), _draw_best(new, score, fresh, window, rng)]
        )
        if self.keep is not None and p.model_bytes is not None:
            order = np.argsort(-score[picked], kind="stable")
            budget = self.keep * p.model_bytes[available].sum() / max(p.model_bytes[picked].sum(), 1)
            picked = picked[order][: affordable(p.model_bytes[picked][order], min(budget, 1.0))]
        ids = np.sort(picked)
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=np.full(ids.size, np.nan))

    def _scores(self, state: State, view: View) -> Array:
        """Return the utility of every client (N,): by its last answer, or by the size of its data without one."""
        p, known = view.population, state["heard"] > 0
        score = p.samples.astype(float)
        if known.any():
            gain = state["utility"][known]
            least, top = 0.999 * gain.min(), np.quantile(gain, CLIP)
            scaled = (np.minimum(gain, top) - least) / max(gain.max() - least, 1e-4)
            score[known] = scaled + np.sqrt(UNCERTAIN * np.log(view.round) / state["heard"][known])
        duration = np.where(np.isnan(state["duration"]), p.latency, state["duration"])
        preferred = np.quantile(duration, state["fastest"][0]) if state["fastest"][0] < 1 else np.inf
        slow = duration > preferred
        score[slow] *= (preferred / duration[slow]) ** self.straggler
        return score

    def _count_eligible(self, score: Array, k: int) -> int:
        """Return how many known clients may be drawn: those above the share ``cutoff`` of the k-th utility."""
        if not 0 < k < score.size:
            return score.size
        return int(np.count_nonzero(score >= self.cutoff * np.partition(score, -k)[-k]))

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        ok = replies.received & np.isfinite(replies.loss)
        ids = cohort.ids[ok]
        utility, duration, heard = (state[name].copy() for name in ("utility", "duration", "heard"))
        again = ids[heard[ids] > 0]
        utility[ids] = view.population.samples[ids] * _typical_loss(replies)[ok]
        duration[cohort.ids] = replies.seconds
        heard[ids] = view.round
        gained = np.append(state["gained"][1:], utility[again].sum())
        fastest = state["fastest"]
        if view.round >= 2 * self.pace and view.round % self.pace == 0:
            before, now = gained[: self.pace].sum(), gained[self.pace :].sum()
            if abs(now - before) <= 0.1 * before:
                fastest = np.minimum(fastest + 0.05, 1.0)
            elif abs(now - before) >= 5 * before:
                fastest = np.maximum(fastest - 0.05, 0.05)
        return {"utility": utility, "duration": duration, "heard": heard, "fastest": fastest, "gained": gained}


def _typical_loss(replies: Replies) -> Array:
    """Return the root mean square of each client's sample losses (k,); the mean where only that is reported."""
    if replies.squared_loss is None:
        return replies.loss
    return np.where(np.isfinite(replies.squared_loss), np.sqrt(replies.squared_loss), replies.loss)


def largest(score: Array, count: int) -> Array:
    """Return the places of the largest scores, in descending order; ties go to the lower place."""
    some = np.arange(score.size)
    if count < score.size:  # sorting all of a million clients would be most of a round
        some = np.flatnonzero(score >= np.partition(score, -count)[-count])
    return some[np.argsort(-score[some], kind="stable")][:count]


def _draw_best(ids: Array, score: Array, k: int, best: int, rng: np.random.Generator) -> Array:
    """Draw k of the ``best`` of these clients without replacement, in proportion to their scores."""
    if k <= 0:
        return ids[:0]
    order = ids[largest(score[ids], max(best, k))]
    chance = np.maximum(score[order], 1e-4 * max(score[order].max(), 1e-12))
    return rng.choice(order, k, replace=False, p=chance / chance.sum())
