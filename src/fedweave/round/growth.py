"""Room for clients who come later: the others go on from what they have, and newcomers begin as everyone did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedweave.core.records import Array, Population, ServerState, State
from fedweave.core.roles import Aggregator
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.plan import first_state
from fedweave.tables.rows import Rows


def grown(method: Method, state: ServerState, population: Population, before: int, parameters: int) -> ServerState:
    """Return the state for a population in which clients were added behind the ``before`` that there were.

    A part that cannot take them says so (BadInput), most of them as they do in the first round.
    """
    if kept := summing(method):
        raise BadInput(f"{kept} keeps a sum over all clients, which newcomers would change: say how many there are.")
    fresh, n = first_state(method, state.x, population, parameters), population.size
    for name in ("sampler", "aggregator", "upload"):
        _refuse_reshaped(getattr(method, name), getattr(state, name), getattr(fresh, name), (before, n))
    parts = {
        name: extended(getattr(state, name), getattr(fresh, name))
        for name in ("sampler", "aggregator", "clients", "upload")
    }
    for part in _nested(method.aggregator):
        parts["aggregator"] = part.joined(parts["aggregator"], np.arange(before, n), state.round)
    refusals = extended(state.refusals, {name: np.zeros(n, kept.dtype) for name, kept in state.refusals.items()})
    return state._replace(**parts, refusals=refusals)


def _refuse_reshaped(part: Any, state: State, fresh: State, sizes: tuple[int, int]) -> None:
    """Refuse the state of a part in which it cannot be known what belongs to which client.

    An array grows along the axes that had as many entries as there were clients and have as many as there are at first.
    """
    for name, values in state.items():
        now, first = np.shape(values), np.shape(fresh.get(name, ()))
        pairs = zip(now, first, strict=False)
        if name not in fresh or len(now) != len(first) or any(a != b and (a, b) != sizes for a, b in pairs):
            raise BadInput(
                f"{type(part).__name__} keeps {name!r}, which does not have the shape of the first round any more, so "
                "it cannot be known where clients who come later would have their place: say how many there are."
            )


def _nested(part: Aggregator | None) -> Iterator[Aggregator]:
    """Yield an aggregator, and those inside of it."""
    while part is not None:
        yield part
        part = getattr(part, "aggregator", getattr(part, "inner", None))


def summing(method: Method, kinds: tuple[str, ...] = ("equal", "data")) -> str:
    """Return the name of the aggregator, or of one inside of it, that keeps a sum over all clients, so weighted."""
    return next((type(part).__name__ for part in _nested(method.aggregator) if part.keeps_sum in kinds), "")


def refuse_unknown(method: Method, samples: Array) -> None:
    """Refuse a method that must know all clients' samples before the first round; 0: not known."""
    if not samples.all() and (kept := summing(method, ("data",))):
        raise BadInput(
            f"{kept} keeps a sum over all clients by their weights, so the samples of all must be known before the "
            "first round: wait for the whole fleet, without 'connected' in the Terms and with clients of ours."
        )


def extended(state: State, fresh: State) -> State:
    """Return what a part remembers with room for more clients, of whom it remembers what it does at first."""
    return {name: _longer(value, fresh.get(name, value)) for name, value in state.items()}


def _longer(values: Any, fresh: Any) -> Any:
    if isinstance(values, Rows):
        return values.grown(fresh.shape[0]) if fresh.shape[0] > values.shape[0] else values
    if values.shape == fresh.shape:
        return values
    longer, n = fresh.copy(), len(values)
    longer[tuple(map(slice, values.shape))] = values
    if _is_law(values) and _is_law(fresh):  # newcomers get their share of it, the others keep their proportions
        longer[:n] = values * fresh[:n].sum()
    return longer


def _is_law(values: Array) -> bool:
    """Return whether these are probabilities, one for each client."""
    return values.ndim == 1 and values.dtype.kind == "f" and bool((values >= 0).all()) and abs(values.sum() - 1) < 1e-6
