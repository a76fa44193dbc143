"""What clients keep from round to round, and when: a memory changes only when the server has heard of it."""

from __future__ import annotations

import numpy as np

from fedweave.records import Array, Carried, Cohort, Population, Replies, ServerState, State
from fedweave.roles import Aggregator, Sampler, Solver
from fedweave.rows import Rows


def blank(solver: Solver, population: Population, x: Array) -> State:
    """Return what the clients remember before the first round: zeros, in the precision they compute in."""
    precision = "float64" if x.dtype == np.float64 else "float32"
    return {"memory": Rows.zeros(population.size, x.size, precision)} if solver.remembers else {}


def carried(sampler: Sampler, aggregator: Aggregator, state: ServerState) -> Carried:
    """Return what clients have in hand beside the model, what is sent in the model's own precision."""
    sent = aggregator.broadcast(state.aggregator)
    sent = None if sent is None else sent.astype(state.x.dtype, copy=False)
    return Carried(sent, state.clients.get("memory"), sampler.needs_variance)


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
    change[:, :parameters] = solver.learned(u, None if sent is None else sent[:parameters], *columns)
    return change


def committed(clients: State, cohort: Cohort, replies: Replies) -> State:
    """Return what the clients remember from now on: those that were heard add what they learned, no one else."""
    if replies.change is None:
        return clients
    heard, memory = cohort.ids[replies.received], clients["memory"]
    return {"memory": memory.replaced(heard, memory[heard] + replies.change[replies.received])}
