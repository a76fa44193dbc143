"""What clients keep from round to round, and when: a memory changes only when the server has received the answer."""

from __future__ import annotations

from functools import partial

import numpy as np

from fedweave.core.flights import NO_FLIGHTS
from fedweave.core.records import Array, Assignment, ClientContext, Cohort, Population, Replies, ServerState, State
from fedweave.core.returned import check_vector
from fedweave.core.roles import Solver
from fedweave.method import Method
from fedweave.round.guard import guarded
from fedweave.tables.rows import Rows

NOBODY = np.zeros(0, np.int64)


def empty_memories(method: Method, population: Population, x: Array) -> State:
    """Return what the clients remember before the first round: nothing, in the precision they compute in."""
    precision = "float64" if x.dtype == np.float64 else "float32"
    tables = {"memory": bool(method.solver.memory_kind), "kept": method.upload.keeps}
    return {name: Rows.zeros(population.size, x.size, precision) for name, wanted in tables.items() if wanted}


def no_flights(method: Method, x: Array, broadcast: Array | None) -> State:
    """Return the flights before the first round, with a table of the models that clients under way began with."""
    precision, slots = "float64" if x.dtype == np.float64 else "float32", method.pacing.most_staleness + 1
    sent = {"x": x} if broadcast is None else {"x": x, "broadcast": broadcast}
    tables = {name: Rows.zeros(slots, x.size, precision) for name in sent}
    return {**NO_FLIGHTS._asdict(), "dispatches": np.array(0), **tables}


def client_context(method: Method, state: ServerState) -> ClientContext:
    """Return what clients start with besides the model; what is sent has the model's precision."""
    parts, clients = guarded(method), state.clients
    broadcast = parts.aggregator.broadcast(state.aggregator)
    if broadcast is not None:
        check_vector(broadcast, state.x.size, method.aggregator, "broadcast")
    return ClientContext(
        broadcast=None if broadcast is None else broadcast.astype(state.x.dtype, copy=False),
        memory=clients.get("memory"),
        measure="variance" in parts.sampler.required_fields(),
        kept=clients.get("kept"),
        models=partial(parts.aggregator.models, state.aggregator, state.x),
    )


def bytes_down(assignment: Assignment, down: Array | None) -> Array:
    """Return what is sent to each of the cohort (k,): the model and what travels with it, unless ``down`` says less."""
    return np.full(assignment.cohort.ids.size, _whole_bytes(assignment)) if down is None else down


def total_bytes_down(assignment: Assignment, replies: Replies) -> int:
    """Return what was sent to all of the cohort, and to those that were only probed."""
    down = replies.bytes_down
    asked = replies.received.size * _whole_bytes(assignment) if down is None else int(down.sum())
    return asked + assignment.x.nbytes * assignment.cohort.probed


def _whole_bytes(assignment: Assignment) -> int:
    broadcast = assignment.context.broadcast
    return assignment.x.nbytes + (0 if broadcast is None else broadcast.nbytes)


def relative_weights(ids: Array, population: Population) -> Array:
    """Return N ω_i of these clients (k,)."""
    return population.size * population.weight[ids]


def with_memory_change(replies: Replies, solver: Solver, assignment: Assignment) -> Replies:
    """Return the replies with what each received client adds to its memory, which follows from its update."""
    if assignment.context.memory is None:
        return replies
    ids, p = assignment.cohort.ids, assignment.population
    change = memory_changes(
        solver,
        replies.updates,
        assignment.view.layout.parameters,
        assignment.context.broadcast,
        p.steps[ids],
        relative_weights(ids, p),
        assignment.lr,
    )
    change[~replies.received] = 0
    return replies._replace(memory_change=change)


def memory_changes(
    solver: Solver, updates: Array, parameters: int, broadcast: Array | None, steps: Array, share: Array, lr: float
) -> Array:
    """Return what clients with these updates, steps and shares N ω_i add to their memories (k, D).

    ``broadcast`` is what all were sent (D,), or each (k, D). Buffers are not trained: nothing is remembered of them.
    """
    u = updates[:, :parameters]
    columns = [a.astype(u.dtype)[:, None] for a in (lr * solver.effort(steps, lr), share)]
    change = np.zeros_like(updates)
    change[:, :parameters] = solver.memory_change(
        u, None if broadcast is None else broadcast[..., :parameters], *columns
    )
    return change


def commit_memories(
    clients: State, cohort: Cohort, replies: Replies, refreshed: bool = False, busy: Array = NOBODY
) -> State:
    """Return what the clients remember from now on: only those whose answers were received change.

    ``refreshed``: everyone takes the whole model next (FedDD eq. 6), so that nothing of what uploads kept is left, but
    with those that are ``busy``: they have begun with what they keep.
    """
    if not clients:
        return clients
    received, after = cohort.ids[replies.received], dict(clients)
    if replies.memory_change is not None:
        memory = clients["memory"]
        after["memory"] = memory.replaced(received, memory[received] + replies.memory_change[replies.received])
    if "kept" in clients and refreshed:
        after["kept"] = clients["kept"].only(busy)
    elif replies.kept is not None:
        after["kept"] = clients["kept"].replaced(received, replies.kept[replies.received])
    return after
