"""The clients that a joint plan of selection and dropout asks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedweave.core.records import Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.upload.joint import JointDropout


@settings
class Planned(Sampler):
    """The clients with the largest contribution per second, as ``plan``, which is also the upload, says."""

    plan: JointDropout
    law_known: ClassVar[bool] = False

    def init(self, population: Population) -> State:
        return self.plan.init(population)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        available = np.flatnonzero(view.population.available)
        share = self.plan.plan(state, view, available).share if available.size else np.zeros(0)
        ids = available[share > 0]
        return Cohort(ids=ids, count=np.ones(ids.size, np.int64), expected=np.full(ids.size, np.nan))

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        return self.plan.learn(state, view, cohort, replies)
