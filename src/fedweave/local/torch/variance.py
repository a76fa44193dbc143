"""How much the stochastic gradients of a client differ, found on the way: no second pass, nothing kept but a mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.core.records import Array

NOTHING = torch.zeros(0)


class Spread:
    """Sums ‖g_t − mean‖² over the steps of each row by Welford's recursion, exact where all gradients are equal.

    The gradients are those of the local steps, each at its own point of the way: for short ways the noise of the
    batches, for long ones also how far the true gradient turns.
    """

    def __init__(self, wanted: bool):
        self.wanted = wanted
        self._mean = self._total = NOTHING

    def add(self, g: Tensor, t: int, active: int = 1) -> None:
        """Take in the gradients of step t, of which the first ``active`` rows count; later steps may have fewer."""
        if not self.wanted:
            return
        if t == 0:
            self._mean, self._total = g.clone(), torch.zeros(len(g), device=g.device)
            return
        self._mean = self._mean[: len(g)]
        away = g - self._mean
        self._mean.add_(away, alpha=1 / (t + 1))
        self._total[:active].add_(away.square_().sum(1)[:active], alpha=t / (t + 1))

    def variance(self, steps: Array | Sequence[int]) -> Array:
        """Return the mean over each row's ``steps`` (c,); nan where nobody asked."""
        n = len(steps)
        return self._total[:n].cpu().numpy() / np.asarray(steps, np.float32) if self.wanted else np.full(n, np.nan)
