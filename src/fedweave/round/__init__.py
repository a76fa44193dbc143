"""One federated round, as every paper writes it: a plan, and what becomes of the answers."""

from __future__ import annotations

from fedweave.core.records import Population, ServerState
from fedweave.core.returned import read_only_error
from fedweave.core.roles import Engine
from fedweave.method import Method
from fedweave.round.absorb import Round as Round
from fedweave.round.absorb import absorb as absorb
from fedweave.round.plan import first_state as first_state
from fedweave.round.plan import plan as plan
from fedweave.round.rules import NO_RULES, Rules


def run_round(
    method: Method,
    state: ServerState,
    population: Population,
    engine: Engine,
    lr: float,
    seed: int,
    calibrate: bool = False,
    rules: Rules = NO_RULES,
) -> tuple[ServerState, Round]:
    """Return the state after one round, and what happened in it."""
    try:
        assignment = plan(method, state, population, engine, lr, seed, calibrate, rules)
        replies = engine.train(assignment)
        return absorb(method, state, assignment, replies, rules)
    except Exception as error:
        if sentence := read_only_error(error, *method.stateful, method.pacing):
            raise sentence from error
        raise
