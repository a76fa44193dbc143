"""A partition in which labels go with the clients' numbers, and so with whatever a world gives by number."""

from __future__ import annotations

import numpy as np

from fedweave.core.settings import settings
from fedweave.data import Dataset
from fedweave.data.deal import Shares
from fedweave.data.partition import Dirichlet


@settings
class SortedDirichlet(Dirichlet):
    """Dirichlet, with the clients ordered by the mean of their labels: the first ones have mostly low digits."""

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        shares = super().split(data, rng)
        order = np.argsort([data.y[own].mean() for own in shares.train], kind="stable")
        return Shares(*([part[i] for i in order] for part in shares))
