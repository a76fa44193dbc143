"""What a strategy refuses: other models and states than it had, and what cannot be in the loop of a wrapper."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from fedweave.core.records import Assignment, ServerState
from fedweave.core.settings import BadInput, is_foreign
from fedweave.fleet.server.terms import Terms
from fedweave.method import Method
from fedweave.store.states import misfit


def other_array(one: ArrayRecord, other: ArrayRecord) -> str:
    """Return the first array in which two models differ in name, shape or type; "" if in none."""
    mine, theirs = ({n: (tuple(a.shape), a.dtype) for n, a in record.items()} for record in (one, other))
    return next((repr(name) for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), "")


def refuse_other_model(saved: ArrayRecord, arrays: ArrayRecord) -> None:
    """Refuse another model than the saved one in the loop of a wrapper, which clips and adds noise to its own."""
    if other_array(saved, arrays) or not all(np.array_equal(a.numpy(), arrays[n].numpy()) for n, a in saved.items()):
        raise BadInput(
            "A strategy that was loaded goes on with its saved model, but the wrapper around it has begun with another "
            "one: start it with wrapper.start(grid, strategy.arrays, …)."
        )


def refuse_wrapped(method: Method, terms: Terms, assignment: Assignment) -> None:
    """Refuse what cannot be in the loop of a wrapper, which changes answers before they are aggregated."""
    context = assignment.context
    more = context.memory is not None or context.broadcast is not None or method.aggregator.sends_own_models
    if more or not method.upload.identity:
        raise BadInput(
            f"{method.name} cannot be inside of Flower's DifferentialPrivacy wrappers, nor in another loop "
            "than that of its own start: these clip models, and its clients exchange more or less than the model. "
            "fedweave.aggregate.Private is our own."
        )
    if terms.answers is not None or terms.over_selection != 1:
        raise BadInput(
            "Only start of the strategy itself can close a round early: leave 'answers' and 'over_selection' out "
            "of Terms inside of Flower's wrappers."
        )


def refuse_foreign_state(method: Method, state: ServerState, first: ServerState) -> None:
    """Refuse a saved state that cannot be one of this method; the states of own parts may change their shapes."""
    names = zip(("sampler", "aggregator", "server", "upload"), method.stateful, strict=True)
    parts = {"clients", *(name for name, part in names if not is_foreign(part))}
    if other := misfit(state, first, parts):
        raise BadInput(f"The saved state of round {state.round} is not of this fleet: {other} has another shape.")
