"""What a server can learn of its clients from what it sees: how often they are heard, and how far they go."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array, Cohort, Replies, State, View

SMALLEST_SHARE = 0.02  # of the counted effort: a client that hardly moved once is not trusted to never move


def fresh(clients: int) -> State:
    """Return the memory of a server that has seen nothing: discounted sums over a client's visits."""
    return {name: np.zeros(clients) for name in ("asked", "heard", "effort", "reach")}


def remember(state: State, view: View, cohort: Cohort, replies: Replies, memory: float) -> State:
    """Return the memory after a round. A visit fades by ``memory`` with each later visit of the same client."""
    ids, ok = cohort.ids, replies.received
    after = visited(state, ids, memory, asked=np.ones(ids.size), heard=ok)
    spoke = ids[ok]
    effort = view.effort[spoke]  # ‖a‖₁ of the steps they report
    after["effort"][ids] *= memory
    after["effort"][spoke] += effort
    after["reach"][ids] *= memory
    after["reach"][spoke] += measured_effort(replies, view.lr, effort)
    return after


def visited(state: State, ids: Array, memory: float, **values: Array) -> dict[str, Array]:
    """Return the sums ``state`` with a visit of these clients added to the named ones, older visits faded."""
    after = {name: sums.copy() for name, sums in state.items()}
    for name, value in values.items():
        after[name][ids] = memory * after[name][ids] + value
    return after


def measured_effort(replies: Replies, lr: float, effort: Array) -> Array:
    """Return κ = ‖u‖ / (η ‖first gradient‖) of the received updates, at most the counted effort.

    It is the counted effort where gradients stay as they are, and less where local training saturates.
    """
    ok = replies.received
    length = np.linalg.norm(replies.updates[ok], axis=1)
    first = replies.first_gradient[ok]
    kappa = np.divide(length, lr * first, out=np.array(effort, float), where=first > 0)
    return np.clip(kappa, SMALLEST_SHARE * effort, effort)


def success_rate(state: State, prior: float, floor: float) -> Array:
    """Return the believed 1 − q of every client: its own record, drawn towards everybody's by ``prior`` visits.

    ``floor`` keeps a client that failed a few times from being asked all the time (p goes with 1/(1 − q)).
    """
    common = (state["heard"].sum() + prior) / (state["asked"].sum() + prior)
    return np.maximum((state["heard"] + prior * common) / (state["asked"] + prior), floor)


def mean_effort(state: State, kind: str, counted: Array) -> Array:
    """Return the believed effort of every client: the mean over its visits.

    One never heard from gets the counted effort, corrected by as much as those that were heard needed it.
    """
    seen = state["heard"] > 0
    if not seen.any():
        return counted
    ratio = state[kind].sum() / max(state["effort"].sum(), np.finfo(float).tiny)
    return np.divide(state[kind], state["heard"], out=ratio * counted, where=seen)
