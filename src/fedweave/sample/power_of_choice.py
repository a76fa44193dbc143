"""Power-of-Choice (Cho, Wang, Joshi): ask a few more how they do, and train those that do worst."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Cohort, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import nobody


@settings
class PowerOfChoice(Sampler):
    """Of ``candidates`` clients (twice ``per_round`` unless given) the ``per_round`` with the largest loss.

    Candidates are drawn without replacement, all equally likely as DELTA does, or by ``among`` "weights" in proportion
    to ω as the original does. They get the model and measure its loss on all their data, which costs a download and a
    pass each. A greedy choice: nobody knows E[count], and a plain average of the chosen is biased to large losses.
    """

    per_round: PositiveInt
    candidates: PositiveInt | None = None
    among: Literal["equal", "weights"] = "equal"
    law_known: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.candidates is not None and self.candidates < self.per_round:
            raise ValueError(
                f"The 'candidates' parameter of PowerOfChoice must be at least per_round = {self.per_round}. "
                f"Got {self.candidates}."
            )

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        p = view.population
        there = np.flatnonzero(p.available & ((p.weight > 0) | (self.among == "equal")))
        if not there.size:
            return nobody()
        weight = p.weight[there] / p.weight[there].sum() if self.among == "weights" else None
        asked = rng.choice(there, min(self.candidates or 2 * self.per_round, there.size), replace=False, p=weight)
        loss = np.nan_to_num(view.probes.losses(asked), nan=np.inf)  # a model that fails is the worst there is
        order = np.lexsort((rng.random(asked.size), -loss))  # ties are broken at random
        ids = np.sort(asked[order[: self.per_round]])
        return Cohort(
            ids=ids, count=np.ones(ids.size, np.int64), expected=np.full(ids.size, np.nan), probed=asked.size - ids.size
        )
