"""Arithmetic on the rows of a matrix of updates."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array


def squared_lengths(rows: Array) -> Array:
    """Return ‖u_i‖² of every row (k,), in the rows' own precision: all dot products in one call."""
    return np.matmul(rows[:, None, :], rows[:, :, None])[:, 0, 0]
