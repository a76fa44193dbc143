"""A warm start in which every client is asked once, before any other sampler takes over."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import empty_cohort

ASKED = "asked_at_first"


@settings
class FirstEveryone(Sampler):
    """Ask every client once in the first ``rounds`` rounds, then draw as ``sampler`` does.

    One round asks all of them together. With more rounds they are divided into random groups of nearly equal size:
    None takes ⌈N/K⌉ rounds, of which none is larger than the K = ``per_round`` that ``sampler`` asks. Clients that are
    unavailable then are skipped.
    """

    sampler: Sampler
    rounds: PositiveInt | None = 1

    def __post_init__(self) -> None:
        if self.rounds is None and not getattr(self.sampler, "per_round", None):
            raise ValueError(
                f"FirstEveryone with rounds=None needs a sampler with a fixed cohort size (per_round). {self.sampler} "
                "has none."
            )

    @property
    def law_known(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether ``sampler`` knows its law; the warm start does."""
        return self.sampler.law_known

    def required_fields(self) -> tuple[str, ...]:
        return self.sampler.required_fields()

    def oracle(self) -> bool:
        return self.sampler.oracle()

    def init(self, population: Population) -> State:
        return {**self.sampler.init(population), ASKED: np.zeros(population.size, bool)}

    def law(self, state: State, view: View) -> Array:
        if view.round > self._rounds(view):
            return self.sampler.law(state, view)
        left = view.population.available & ~state[ASKED]
        return left * (self._share(view, left) / max(left.sum(), 1))

    def _share(self, view: View, left: Array) -> int:
        """Return how many of the clients left are asked now, with equal numbers in the remaining rounds."""
        return -(-int(left.sum()) // (self._rounds(view) - view.round + 1))

    def _rounds(self, view: View) -> int:
        return self.rounds or -(-view.population.size // getattr(self.sampler, "per_round", 1))

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        if view.round > self._rounds(view):
            return self.sampler.draw(state, view, rng)
        left = view.population.available & ~state[ASKED]
        k = self._share(view, left)
        if not k:
            return empty_cohort()
        ids = np.sort(rng.choice(np.flatnonzero(left), k, replace=False))
        return Cohort(ids=ids, count=np.ones(k, np.int64), expected=np.full(k, k / left.sum()))

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        after = {**self.sampler.learn({k: v for k, v in state.items() if k != ASKED}, view, cohort, replies)}
        asked = state[ASKED].copy()
        asked[cohort.ids] = True
        return {**after, ASKED: asked}
