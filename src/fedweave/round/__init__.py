"""One federated round, as every paper writes it: a plan, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fedweave.core.records import Population, ServerState
from fedweave.core.returned import read_only_error
from fedweave.core.roles import Engine, OverlappingEngine
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.absorb import Round as Round
from fedweave.round.absorb import absorb as absorb
from fedweave.round.flights import gather, with_staleness
from fedweave.round.plan import first_state as first_state
from fedweave.round.plan import plan as plan
from fedweave.round.rules import NO_RULES, Rules


def run_round(
    method: Method,
    state: ServerState,
    world: Population | Callable[[int], Population],
    engine: Engine,
    lr: float,
    seed: int,
    calibrate: bool = False,
    rules: Rules = NO_RULES,
) -> tuple[ServerState, Round]:
    """Return the state after one round, and what happened in it.

    ``world`` says how the clients are in a dispatch, which is a round unless rounds overlap; a population stays as it
    is.
    """
    try:
        if method.pacing.overlaps:
            return _overlapping(method, state, world, engine, lr, seed, rules)
        population = world if isinstance(world, Population) else world(state.round + 1)
        assignment = plan(method, state, population, engine, lr, seed, calibrate, rules)
        replies = engine.train(assignment)
        return absorb(method, state, assignment, replies, rules)
    except Exception as error:
        if sentence := read_only_error(error, *method.stateful, method.pacing):
            raise sentence from error
        raise


def _overlapping(
    method: Method,
    state: ServerState,
    world: Population | Callable[[int], Population],
    engine: Engine,
    lr: float,
    seed: int,
    rules: Rules,
) -> tuple[ServerState, Round]:
    """Do a round whose answers were asked for at different times; the others stay under way."""
    if not hasattr(engine, "wait"):
        who = f"{type(engine).__name__} waits for all of a round before the next"
        raise BadInput(f"{who}: use the pacing Synchronous() with it.")
    where = (lambda number: world) if isinstance(world, Population) else world
    assignment, clock, flights = gather(method, state, where, cast(OverlappingEngine, engine), lr, seed, rules)
    replies = with_staleness(method, state, assignment, engine.train(assignment))
    after, happened = absorb(method, state, assignment, replies, rules)
    return after._replace(clock=clock, flights=flights), happened
