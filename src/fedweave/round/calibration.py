"""Step-length calibration (FedACS I.2): every method moves as far in a round as FedAvg by importance sampling."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import ServerState, View
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.guard import guarded


def calibrated_lr(method: Method, state: ServerState, view: View) -> float:
    """Return the learning rate at which this round is as long as that of FedAvg by importance sampling.

    FedAvg moves η Σ ω (1 − q) ‖a‖₁ per unit gradient, the method η' Σ c ‖a‖₁, efforts at the nominal η (FedACS I.2).
    """
    parts, p = guarded(method), view.population
    fedavg = float(p.weight @ (p.arrival_rate * view.effort))
    length = parts.aggregator.step_length(view, parts.sampler.law(state.sampler, view))
    if not isinstance(length, float) or not 0 < length < np.inf:
        pair = f"{type(method.sampler).__name__} with {type(method.aggregator).__name__}"
        raise BadInput(f"{method.name} cannot be calibrated: the step length of {pair} is not known.")
    return view.lr * fedavg / length
