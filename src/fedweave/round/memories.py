"""What clients keep from round to round, and when: a memory changes only when the server has heard of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Carried, Cohort, Population, Replies, ServerState, State
from fedweave.core.roles import Solver
from fedweave.method import Method
from fedweave.tables.rows import Rows


def blank(method: Method, population: Population, x: Array) -> State:
    """Return what the clients remember before the first round: nothing, in the precision they compute in."""
    precision = "float64" if x.dtype == np.float64 else "float32"
    tables = {"memory": bool(method.solver.memory_kind), "own": method.upload.partial}
    return {name: Rows.zeros(population.size, x.size, precision) for name, wanted in tables.items() if wanted}


def carried(method: Method, state: ServerState) -> Carried:
    """Return what clients have in hand beside the model, what is sent in the model's own precision."""
    sent, clients = method.aggregator.broadcast(state.aggregator), state.clients
    sent = None if sent is None else sent.astype(state.x.dtype, copy=False)
    return Carried(sent, clients.get("memory"), "variance" in method.sampler.required_fields(), clients.get("own"))


class Begin(NamedTuple):
    """Where clients begin that keep a part of their own: W_n = W ⊙ M_n + Ŵ_n ⊙ (1 − M_n), FedDD eq. 5."""

    start: Array  # (k, D)
    fetched: Array  # (k, D) bool: which entries are the server's


def beginnings(has: Carried, x: Array, ids: Array) -> Begin | None:
    """Return where each of these clients begins; None: all at x."""
    if has.own is None or not has.own.written[ids].any():
        return None
    own = has.own[ids]
    fetched = np.isnan(own)
    fetched[~has.own.written[ids]] = True
    return Begin(np.where(fetched, x, own), fetched)


def bytes_down(replies: Replies, x: Array, has: Carried) -> Array:
    """Return what was sent to each of the cohort (k,): the model and what travels with it, unless it was less."""
    if replies.bytes_down is not None:
        return replies.bytes_down
    return np.full(replies.received.size, _whole(x, has))


def all_bytes_down(replies: Replies, x: Array, has: Carried) -> int:
    """Return the sum of ``bytes_down``."""
    return replies.received.size * _whole(x, has) if replies.bytes_down is None else int(replies.bytes_down.sum())


def _whole(x: Array, has: Carried) -> int:
    return x.nbytes + (0 if has.sent is None else has.sent.nbytes)


def shares(ids: Array, population: Population) -> Array:
    """Return N ω_i of these clients (k,)."""
    return population.size * population.weight[ids]


def with_change(
    replies: Replies, solver: Solver, parameters: int, has: Carried, ids: Array, population: Population, lr: float
) -> Replies:
    """Return the replies with what each heard client adds to its memory, which follows from its update.

    Buffers are not trained: nothing is remembered of them.
    """
    if has.memory is None:
        return replies
    steps, share = population.steps[ids], shares(ids, population)
    change = learned(solver, replies.updates, parameters, has.sent, steps, share, lr)
    change[~replies.received] = 0
    return replies._replace(change=change)


def learned(
    solver: Solver, updates: Array, parameters: int, sent: Array | None, steps: Array, share: Array, lr: float
) -> Array:
    """Return what clients with these updates, steps and shares N ω_i add to their memories (k, D)."""
    u = updates[:, :parameters]
    columns = [a.astype(u.dtype)[:, None] for a in (lr * solver.effort(steps, lr), share)]
    change = np.zeros_like(updates)
    change[:, :parameters] = solver.memory_change(u, None if sent is None else sent[:parameters], *columns)
    return change


def committed(clients: State, cohort: Cohort, replies: Replies, refreshed: bool = False) -> State:
    """Return what the clients remember from now on: those that were heard add what they learned, no one else.

    ``refreshed``: everyone takes the whole model next (FedDD eq. 6), so that nothing of their own is left.
    """
    if not clients:
        return clients
    heard, after = cohort.ids[replies.received], dict(clients)
    if replies.change is not None:
        memory = clients["memory"]
        after["memory"] = memory.replaced(heard, memory[heard] + replies.change[replies.received])
    if "own" in clients and refreshed:
        after["own"] = clients["own"].emptied()
    elif replies.kept is not None:
        after["own"] = clients["own"].replaced(heard, replies.kept[replies.received])
    return after
