"""Power-of-Choice (Cho, Wang, Joshi): ask candidates for their loss, and train those with the largest."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Cohort, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.sample.fixed import empty_cohort


@settings
class PowerOfChoice(Sampler):
    """Of ``candidates`` clients (twice ``per_round`` unless given) the ``per_round`` with the largest loss.

    Candidates are drawn without replacement, all equally likely as in DELTA, or with ``among`` "weights" in proportion
    to ω as in the original. They receive the model and measure its loss on all their data, which costs a download and
    a pass each. The choice is greedy: E[count] is unknown, and a plain average is biased towards large losses.
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
        available = np.flatnonzero(p.available & ((p.weight > 0) | (self.among == "equal")))
        if not available.size:
            return empty_cohort()
        weight = p.weight[available] / p.weight[available].sum() if self.among == "weights" else None
        asked = rng.choice(
            available, min(self.candidates or 2 * self.per_round, available.size), replace=False, p=weight
        )
        loss = np.nan_to_num(view.probes.losses(asked), nan=np.inf)  # NaN counts as the largest loss
        order = np.lexsort((rng.random(asked.size), -loss))  # ties are broken at random
        ids = np.sort(asked[order[: self.per_round]])
        return Cohort(
            ids=ids, count=np.ones(ids.size, np.int64), expected=np.full(ids.size, np.nan), probed=asked.size - ids.size
        )
