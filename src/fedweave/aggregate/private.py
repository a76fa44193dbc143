"""The anonymous sum under central differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat

from fedweave.aggregate.linear import weigh
from fedweave.aggregate.robust import clip_rows
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator
from fedweave.core.settings import settings
from fedweave.privacy import epsilon_participation_known, needs_library


@settings
class Private(Aggregator):
    """(1/K) [Σ c_i clip(u_i) + C z ξ] over the received updates, ξ ~ N(0, I), K the number of draws (FedACS eq. 18).

    FedACS needs only the sum of the updates, and its law depends on links and work but not on data, so the Gaussian
    mechanism applies directly. One draw moves the sum by at most the clip C; z is the ``noise`` multiplier. The column
    ``epsilon`` holds at ``delta`` for the client received most often so far, against observers who know which clients
    took part; ``privacy.epsilon`` is the smaller value against observers who do not. In a simulation the noise follows
    from the seed. The server of a real fleet draws it from a secret of its own, since clients know the seed.
    """

    clip: PositiveFloat = 1.0
    noise: PositiveFloat = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def init(self, population: Population, dim: int) -> State:
        needs_library()  # fail before the first round
        return {"spent": np.zeros(population.size)}  # Σ c² over the rounds in which a client was received

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        draws = max(cohort.count.sum(), 1)
        total = weigh(cohort.count, replies._replace(updates=clip_rows(replies.updates, self.clip)))
        if cohort.ids.size:
            rng = rng_for(view.seed if view.secret is None else view.secret, view.round, Stream.PRIVACY)
            total = total + self.clip * self.noise * rng.standard_normal(total.size, total.dtype)
        spent = state["spent"].copy()
        spent[cohort.ids] += np.where(replies.received, cohort.count, 0) ** 2
        return (total / draws).astype(replies.updates.dtype, copy=False), {"spent": spent}

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        return {"epsilon": epsilon_participation_known(self.noise, float(state["spent"].max()), self.delta)}
