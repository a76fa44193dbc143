"""Where methods settle under arbitrary participation: quadratic clients, whose optimum is known, in four worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedweave import methods, theory
from fedweave.aggregate import Anonymous
from fedweave.core.records import Array, Population, ServerState
from fedweave.core.roles import System
from fedweave.core.settings import settings
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.method import Method
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import curves
from fedweave.papers.common.record import Record, value
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.fedacs.quadratics import Even
from fedweave.round import first_state, run_round
from fedweave.round.plan import view_of
from fedweave.system import Dynamic, Static

CLIENTS, PER_ROUND, STEPS, DIM = 20, 6, 15, 10
LR = 0.004
ROUNDS: Mapping[Scale, int] = {"smoke": 20, "laptop": 3000, "paper": 3000}
CLOSE = 0.01  # where a model has arrived; the clients' own optima are about 3 away


@settings
class Absent(System):
    """Nothing is lost and all work alike, but the n-th client is there for a part of a day of 40 rounds only.

    The part falls from 0.9 for the first client to 0.2 for the last, beginning at another hour for each.
    """

    def population(self, base: Population, round: int, seed: int) -> Population:
        n = np.arange(base.size)
        hour = (round + 40 * n * (5**0.5 - 1) / 2) % 40
        return replace(base, available=hour < 40 * np.linspace(0.9, 0.2, base.size))


WORLDS: Mapping[str, System] = {"even": Even(), "static": Static(), "dynamic": Dynamic(), "absent": Absent()}
METHODS: Mapping[str, Method] = {
    "fedavg": methods.fedavg_is(PER_ROUND),
    "fedacs": methods.fedacs(PER_ROUND),
    "fedau": methods.fedau(PER_ROUND),
    "mifa": methods.mifa(PER_ROUND),
    "fedawe": methods.fedawe(PER_ROUND),
    "scaffold": methods.scaffold(PER_ROUND),
    "feddyn": methods.feddyn(PER_ROUND),
    "feddyn, α = 10": methods.feddyn(PER_ROUND, alpha=10.0),
    "focus": methods.focus(PER_ROUND),
}


@dataclass(frozen=True)
class Walk:
    """A method in all worlds."""

    method: Method
    rounds: int


def problem(seed: int) -> Quadratics:
    """Return clients with optima N(0, I) and curvatures between 0.5 and 1.5, ordered by their first coordinate.

    So whatever goes by a client's number, such as its links, its work or its hours, goes by its data too.
    """
    rng = np.random.default_rng(seed)
    optimum = rng.standard_normal((CLIENTS, DIM))
    axes, _ = np.linalg.qr(rng.standard_normal((CLIENTS, DIM, DIM)))
    curvature = np.einsum("nij,nj,nkj->nik", axes, rng.uniform(0.5, 1.5, (CLIENTS, DIM)), axes)
    return Quadratics(optimum[optimum[:, 0].argsort()], (curvature + curvature.transpose(0, 2, 1)) / 2)


def settle(arm: Walk, seed: int) -> Record:
    """Return a method's distances from the optimum in every world, and where it settles, measured and in theory.

    ``beyond theory`` is how far the mean model lies beyond the fixed point, seen from the optimum.
    """
    best, late = problem(seed).minimiser(np.ones(CLIENTS)), _late(arm.rounds)
    shown = np.arange(arm.rounds, 0, -max(arm.rounds // 200, 1))[::-1]
    rounds, values = {"round": shown}, dict[str, float]()
    for name, world in WORLDS.items():
        path = walk(arm, world, seed)
        away, mean = np.linalg.norm(path - best, axis=1), path[late:].mean(0)
        values[f"settles, {name}"] = float(np.linalg.norm(mean - best))
        arrived = np.flatnonzero(away <= CLOSE)
        values[f"arrives, {name}"] = float(arrived[0] + 1) if arrived.size else np.nan
        point = fixed_point(arm, world, seed)
        bias = 0 * best if point is None else point - best
        values[f"theory, {name}"] = length = float(np.linalg.norm(bias))
        values[f"beyond theory, {name}"] = float((mean - best) @ bias / length) - length if length else np.nan
        rounds[name] = away[shown - 1]
    return Record(rounds, values=values)


def _late(rounds: int) -> int:
    return rounds - rounds * 3 // 10


def walk(arm: Walk, world: System, seed: int) -> Array:
    """Return the models (R, d) after every round, from zero."""
    engine, state, base = start(arm, seed)
    path = np.empty((arm.rounds, DIM))
    for r in range(1, arm.rounds + 1):
        state, _ = run_round(arm.method, state, world.population(base, r, seed), engine, LR, seed)
        path[r - 1] = state.x
    return path


def start(arm: Walk, seed: int) -> tuple[Simulator, ServerState, Population]:
    """Return what trains, the first state and the nominal clients."""
    base = population_of(np.full(CLIENTS, 1 / CLIENTS), STEPS)
    engine = Simulator(QuadraticTrainer(problem(seed), arm.method.solver, seed, base.weight))
    return engine, first_state(arm.method, np.zeros(DIM), base, DIM), base


def fixed_point(arm: Walk, world: System, seed: int) -> Array | None:
    """Return (Σ c K H)⁻¹ Σ c K H x*, the fixed point of the mean recursion over every seventh of the last rounds.

    c are the mean weights of the updates; rules that make up for absences weigh absent clients too. None for clients
    with memories: they rest where nobody moves, which is the optimum.
    """
    method, quadratics = arm.method, problem(seed)
    if method.solver.memory_kind:
        return None
    (engine, state, base), pulls = start(arm, seed), np.zeros((CLIENTS, DIM, DIM))
    assert quadratics.curvature is not None
    for r in range(_late(arm.rounds) + 1, arm.rounds + 1, 7):
        population = world.population(base, r, seed)
        view = view_of(method, state, population, engine, LR)
        law = method.sampler.law(state.sampler, view) if isinstance(method.aggregator, Anonymous) else np.ones(CLIENTS)
        reach = [
            theory.local_reach(H, int(T), LR) @ H for H, T in zip(quadratics.curvature, population.steps, strict=True)
        ]
        pulls += method.aggregator.coefficients(view, law)[:, None, None] * np.array(reach)
    return np.linalg.solve(pulls.sum(0), np.einsum("nij,nj->i", pulls, quadratics.optimum))


MEASURES = {
    **{f"settles, {w}": Measure(value(f"settles, {w}"), ratio=True, digits=2) for w in WORLDS},
    **{f"theory, {w}": Measure(value(f"theory, {w}"), digits=2) for w in WORLDS},
    **{f"beyond theory, {w}": Measure(value(f"beyond theory, {w}"), digits=1) for w in WORLDS},
    **{
        f"arrives, {w}": Measure(value(f"arrives, {w}"), end=lambda record: float(record.rounds["round"][-1]) + 1)
        for w in WORLDS
    },
}
READING = (
    "Settles: distance of the mean of the models of the last 30 % of the rounds from the optimum of the plain mean of "
    "the objectives; the clients' own optima are about 3 away from it. Theory: the same of the fixed point of the mean "
    "recursion; zero for clients with memories. Beyond theory: how far the mean model lies beyond that point, seen "
    f"from the optimum. Arrives: first round in which the model is within {CLOSE:g} of the optimum. Every method is as "
    "registered, with one learning rate for all; FedDyn also with the α of a pilot."
)
PARTICIPATION = Study(
    name="beyond/participation",
    shows="where eight methods settle on quadratics, whoever takes part: even, static, dynamic and absent clients",
    arms=lambda scale: {name: Walk(method, ROUNDS[scale]) for name, method in METHODS.items()},
    work=settle,
    seeds={"smoke": 2, "laptop": 10, "paper": 10},
    measures=MEASURES,
    panels=[curves(f"Distance from the optimum, {w}", w, y_label="‖x − x*‖", log="y") for w in WORLDS],
    settings=lambda scale: {
        "problem": f"{CLIENTS} quadratics in R{DIM}, curvatures 0.5 to 1.5, ordered by their first coordinate",
        "draws a round": PER_ROUND,
        "learning rate": LR,
        "rounds": ROUNDS[scale],
        **{f"world: {name}": str(world) for name, world in WORLDS.items()},
    },
    notes=(READING,),
)
