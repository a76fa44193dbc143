"""Estimates of success rates and efforts that a server can learn from its clients' answers."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array, Cohort, Replies, State, View
from fedweave.core.vectors import lengths

SMALLEST_SHARE = 0.02  # of the counted effort: one tiny update must not make a client seem idle for good


def fresh(clients: int) -> State:
    """Return the initial estimates: empty discounted sums over each client's visits."""
    return {name: np.zeros(clients) for name in ("asked", "heard", "effort", "reach")}


def remember(state: State, view: View, cohort: Cohort, replies: Replies, memory: float) -> State:
    """Return the estimates after a round; each later visit of a client multiplies earlier ones by ``memory``."""
    ids, ok = cohort.ids, replies.received
    after = visited(state, ids, memory, asked=np.ones(ids.size), heard=ok)
    answered = ids[ok]
    effort = view.effort[answered]  # ‖a‖₁ of the steps they report
    after["effort"][ids] *= memory
    after["effort"][answered] += effort
    after["reach"][ids] *= memory
    after["reach"][answered] += measured_effort(replies, view.lr if replies.lr is None else replies.lr[ok], effort)
    return after


def visited(state: State, ids: Array, memory: float, **values: Array) -> dict[str, Array]:
    """Return the sums ``state`` with a visit of these clients added to the named ones and older visits discounted."""
    after = {name: sums.copy() for name, sums in state.items()}
    for name, value in values.items():
        after[name][ids] = memory * after[name][ids] + value
    return after


def measured_effort(replies: Replies, lr: float | Array, effort: Array) -> Array:
    """Return κ = ‖u‖ / (η ‖first gradient‖) of the received updates, at most the counted effort.

    It equals the counted effort where gradients stay constant, and is less where local training saturates.
    """
    ok = replies.received
    length = lengths(replies.updates)[ok]
    first = replies.first_gradient[ok]
    kappa = np.divide(length, lr * first, out=np.array(effort, float), where=first > 0)
    return np.clip(kappa, SMALLEST_SHARE * effort, effort)


def success_rate(state: State, prior: float, floor: float) -> Array:
    """Return the estimate of 1 − q per client: its own record, shrunk towards the average by ``prior`` visits.

    ``floor`` prevents that a client that failed a few times is asked all the time (p is proportional to 1/(1 − q)).
    """
    common = (state["heard"].sum() + prior) / (state["asked"].sum() + prior)
    return np.maximum((state["heard"] + prior * common) / (state["asked"] + prior), floor)


def mean_effort(state: State, kind: str, counted: Array) -> Array:
    """Return the estimated effort of every client: the mean over its visits.

    A client that has not answered yet gets the counted effort, scaled by the average ratio of the others.
    """
    seen = state["heard"] > 0
    if not seen.any():
        return counted
    ratio = state[kind].sum() / max(state["effort"].sum(), np.finfo(float).tiny)
    return np.divide(state[kind], state["heard"], out=ratio * counted, where=seen)
