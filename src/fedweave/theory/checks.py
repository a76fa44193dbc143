"""Checks of the arguments; errors name the client that is wrong."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array


def check_clients(weight: Array, loss_rate: Array, effort: Array) -> tuple[Array, Array, Array]:
    """Return the three as float arrays of one length; raise ValueError naming the client that is wrong."""
    weight, loss_rate, effort = (np.asarray(a, float) for a in (weight, loss_rate, effort))
    if not weight.shape == loss_rate.shape == effort.shape or weight.ndim != 1 or not weight.size:
        shapes = f"{weight.shape}, {loss_rate.shape}, {effort.shape}"
        raise ValueError(f"weight, loss_rate and effort must be one number per client each. Got shapes {shapes}.")
    check_values("weight", weight, (weight >= 0) & np.isfinite(weight), "numbers >= 0")
    check_values("loss_rate", loss_rate, (loss_rate >= 0) & (loss_rate < 1), "in [0, 1), otherwise no update arrives")
    check_values("effort", effort, (effort > 0) & np.isfinite(effort), "numbers > 0, otherwise no work is done")
    if abs(weight.sum() - 1) > 1e-6:
        raise ValueError(f"weight must sum to 1. The sum is {weight.sum()!r}.")
    return weight, loss_rate, effort


def check_values(name: str, values: Array, good: Array, rule: str) -> None:
    """Raise ValueError with the rule and the first client whose value is not good."""
    if not good.all():
        client = int(np.flatnonzero(~good)[0])
        raise ValueError(f"{name} must be {rule}. Got {values[client]!r} for client {client}.")


def check_simplex(name: str, weight: Array, n: int) -> Array:
    """Return n weights as floats; raise ValueError unless they are non-negative and sum to 1."""
    weight = np.asarray(weight, float)
    if weight.shape != (n,):
        raise ValueError(f"{name} must be one number per client, {n}. Got shape {weight.shape}.")
    check_values(name, weight, (weight >= 0) & np.isfinite(weight), "numbers >= 0")
    if abs(weight.sum() - 1) > 1e-6:
        raise ValueError(f"{name} must sum to 1. The sum is {weight.sum()!r}.")
    return weight
