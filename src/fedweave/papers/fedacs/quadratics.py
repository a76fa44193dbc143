"""FedACS on quadratic clients, where every optimum is known: figures 4, 7 and 8, its bounds, and learned links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedweave import methods, theory
from fedweave.aggregate import Anonymous, Nova
from fedweave.core.records import Array, Population, ServerState
from fedweave.core.roles import System
from fedweave.core.settings import settings
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.local.solvers import SGD, Prox
from fedweave.method import Method
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import Line, Panel, bars, curves
from fedweave.papers.common.record import Record, value
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Records, Study
from fedweave.papers.fedacs.theory import measure_bound
from fedweave.round import first_state, run_round
from fedweave.round.calibration import calibrated_lr
from fedweave.round.plan import view_of
from fedweave.sample import ACS, Weighted
from fedweave.system import Dynamic, Static, Uniform


@dataclass(frozen=True)
class Walk:
    """A method on unit quadratics scattered by N(0, I) in R¹⁰ (example 1)."""

    method: Method
    world: System
    clients: int
    lr: float
    rounds: int
    calibrate: bool = False


def walk(arm: Walk, seed: int) -> Record:
    """Walk from zero; return distances from the true optimum, and where the last 30 % of the models settle.

    The closed form is the fixed point of the mean recursion, x∞ = Σ c κ(T) x* / Σ c κ(T), with c, T and the learning
    rate averaged over every tenth of these rounds. ``along`` is how far the averaged model lies beyond it, seen from
    the optimum: its mean over seeds is zero, and its spread over seeds is the Monte-Carlo error.
    """
    base = population_of(np.full(arm.clients, 1 / arm.clients), 15)
    problem = Quadratics.random(arm.clients, 10, seed)
    trainer = QuadraticTrainer(problem, arm.method.solver, seed, base.weight)
    engine, state = Simulator(trainer), first_state(arm.method, np.zeros(10), base, 10)
    path, pull, late = np.empty((arm.rounds, 10)), np.zeros(arm.clients), arm.rounds - arm.rounds * 3 // 10
    for r in range(1, arm.rounds + 1):
        population = arm.world.population(base, r, seed)
        if r > late and r % 10 == 0:
            c, lr = mean_coefficients(arm.method, state, population, engine, arm.lr, arm.calibrate)
            pull += c * trainer.reach(np.arange(arm.clients), population.steps, lr)
        state, _ = run_round(arm.method, state, population, engine, arm.lr, seed, arm.calibrate)
        path[r - 1] = state.x
    best, settled, averaged = problem.minimiser(base.weight), problem.minimiser(pull), path[late:].mean(0)
    away, bias = np.linalg.norm(path - best, axis=1), settled - best
    shown = np.arange(arm.rounds, 0, -max(arm.rounds // 200, 1))[::-1]
    values = {
        "distance": away[late:].mean(),
        "averaged": np.linalg.norm(averaged - best),
        "closed form": np.linalg.norm(bias),
        "along": (averaged - settled) @ bias / np.linalg.norm(bias),
    }
    return Record({"round": shown, "distance": away[shown - 1]}, values={k: float(v) for k, v in values.items()})


def mean_coefficients(
    method: Method, state: ServerState, population: Population, engine: Simulator, lr: float, calibrate: bool = False
) -> tuple[Array, float]:
    """Return the mean weight c of each client's update in the coming round, and the round's learning rate."""
    view = view_of(method, state, population, engine, lr)
    view = replace(view, lr=calibrated_lr(method, state, view)) if calibrate else view
    return method.aggregator.coefficients(view, method.sampler.law(state.sampler, view)), view.lr


MEASURES = {
    "distance": Measure(value("distance"), digits=3),  # as the paper plots
    "distance of the averaged model": Measure(value("averaged"), digits=3),  # the bias, without the noise of rounds
    "closed form": Measure(value("closed form"), digits=3),
    "beyond the closed form": Measure(value("along"), digits=2),
}
PANELS = (
    curves("Distance from the optimum", "distance", y_label="‖x − x*‖"),
    bars("Averaged model, last 30 % of the rounds", value("averaged"), "Distance from the optimum"),
)
READING = (
    "Distance: mean over the last 30 % of the rounds, as the paper plots it. The averaged model of these rounds has "
    "the bias without the noise of single rounds; beyond the closed form is its signed distance from the fixed point "
    "of theory, zero in the mean. The paper does not say how many rounds it ran."
)


def _study(
    item: str, shows: str, contest: Mapping[str, Method], world: System, drawn: tuple[int, int], lr: float, rounds: int,
    columns: tuple[Literal["calibrated"], ...] = (), notes: tuple[str, ...] = (),
) -> Study:  # fmt: skip
    per_round, clients = drawn
    length: dict[Scale, int] = {"smoke": 60, "laptop": rounds, "paper": rounds}
    return Study(
        name=f"fedacs/{item}",
        shows=shows,
        arms=lambda scale: {name: Walk(m, world, clients, lr, length[scale]) for name, m in contest.items()},
        work=walk,
        seeds={"smoke": 2, "laptop": 10, "paper": 10},
        measures=MEASURES,
        panels=PANELS,
        settings=lambda scale: {
            "clients": clients,
            "draws a round": per_round,
            "learning rate": lr,
            "rounds": length[scale],
            "world": str(world),
        },
        columns=columns,
        as_fedavg=AS_FEDAVG,
        notes=(READING, *notes),
    )


@settings
class Even(Uniform):
    """Figure 4, left: 15 steps and a loss rate of 0.2 for all clients."""

    def population(self, base: Population, round: int, seed: int) -> Population:
        return replace(super().population(base, round, seed), loss_rate=np.full(base.size, 0.2))


SOLVERS: dict[str, Method] = {
    "sgd": methods.fedavg_is(15),
    "proximal": replace(methods.fedavg_is(15), solver=Prox(1.0)),
    "decayed": replace(methods.fedavg_is(15), solver=SGD(decay=0.005)),
    "momentum": replace(methods.fedavg_is(15), solver=SGD(momentum=0.3)),
    "fedacs": methods.fedacs(15),
}
METHODS: dict[str, Method] = {  # as the paper's tables list them
    "fedacs": methods.fedacs(6),
    "fedavg": methods.fedavg_is(6),
    "c-a-fedavg": methods.fedavg_ca(6),
    "fedvarp": methods.fedvarp_reuse(6),
    "fednova": Method(Weighted(6), aggregator=Nova("sampled"), name="fednova"),
    "fedau": methods.fedau(6),
    "os": methods.fedos(6),
}
AS_FEDAVG = ("fedavg", "fednova", "fedau", "os")  # whose learning rate I.2 leaves as it is
LINKS: dict[str, Method] = {
    "fedavg": methods.fedavg_is(6),
    "fedacs, known": methods.fedacs(6),
    "fedacs, estimated": methods.fedacs_estimated(6),
    "fedacs, estimated, never forgets": Method(ACS(6, links="estimated", memory=1.0), aggregator=Anonymous()),
    "fedacs, estimated, forgets fast": Method(ACS(6, links="estimated", memory=0.9), aggregator=Anonymous()),
}
FIGURE4: dict[str, System] = {"even": Even(), "static": Static.figure4(), "dynamic": Dynamic.figure4()}
WORLDS: dict[str, System] = {"static": Static(), "dynamic": Dynamic()}
WHICH_RATE = (
    "The caption gives one learning rate, section 6 and appendix I.2 calibrate the step lengths of all benchmarks: "
    "both are run and judged. Calibrated, FedACS has the largest learning rate and so the noisiest rounds."
)
WALKS = (
    *(
        _study(f"fig4/{name}", f"distance from the optimum: four solvers and FedACS, {name} world", SOLVERS, world,
               (15, 30), 0.001, 1500)
        for name, world in FIGURE4.items()
    ),
    *(
        _study(f"fig7/{name}", f"distance from the optimum: FedACS and six baselines, {name} world", METHODS, world,
               (6, 20), 0.002, 6000, ("calibrated",), (WHICH_RATE,))
        for name, world in WORLDS.items()
    ),
    *(
        _study(f"links/{name}", f"beyond the paper: how close learned links and steps come to known ones, {name} world",
               LINKS, world, (6, 20), 0.002, 6000)
        for name, world in WORLDS.items()
    ),
)  # fmt: skip


# Figure 8: what is left to each method of the two heterogeneities, in two dimensions and for vanishing steps.
SURROGATES = {"links alone": (True, False), "compute alone": (False, True), "both": (True, True)}  # X̃₁, X̃₂, X̃₃
TINY = 1e-6  # learning rate


def settle(arm: Method | tuple[bool, bool], seed: int) -> Record:
    """Return the fixed point of a method, or the optimum of a surrogate objective, for four random clients, exactly."""
    rng, weight = np.random.default_rng(seed), np.full(4, 1 / 4)
    steps, lost, problem = rng.integers(1, 40, 4), rng.uniform(0, 0.6, 4), Quadratics(rng.standard_normal((4, 2)))
    population, best = population_of(weight, steps, lost), problem.minimiser(weight)
    biased = {
        name: problem.minimiser(weight * (1 - lost if links else 1) * (steps if compute else 1))
        for name, (links, compute) in SURROGATES.items()
    }
    if isinstance(arm, tuple):
        point = next(biased[name] for name, kind in SURROGATES.items() if kind == arm)
    else:
        engine = Simulator(QuadraticTrainer(problem, arm.solver, seed, weight))
        c, _ = mean_coefficients(arm, first_state(arm, np.zeros(2), population, 2), population, engine, TINY)
        point = theory.fixed_point(c, [np.eye(2)] * 4, problem.optimum, steps.tolist(), TINY)
    away = {name: float(np.linalg.norm(point - x)) for name, x in {"the optimum": best, **biased}.items()}
    return Record({"x": np.array([best[0], point[0]]), "y": np.array([best[1], point[1]])}, values=away)


def _points(records: Records) -> Panel:
    """Draw a line from the optimum to each point of the first seed; methods that converge to the same share one."""
    names: dict[tuple[float, float], list[str]] = {}
    for name, (first, *_) in records.items():
        x, y = (first.rounds[axis][1].round(4) for axis in "xy")
        names.setdefault((x, y), []).append(name)
    best = next(iter(records.values()))[0].rounds
    lines = [
        Line(", ".join(same), np.array([best["x"][0], x]), np.array([[best["y"][0], y]]))
        for (x, y), same in names.items()
    ]
    return Panel("Convergence points, seen from the optimum", "x₁", "x₂", lines, points=True)


FIGURE8 = Study(
    name="fedacs/fig8",
    shows="where the benchmarks converge, drawn from theory: biases by links, by compute and by both",
    arms=lambda scale: {**METHODS, **SURROGATES},
    work=settle,
    seeds={"smoke": 2, "laptop": 5, "paper": 5},
    measures={
        f"distance from {name}": Measure(value(name), digits=3)
        for name in ("the optimum", "links alone", "compute alone", "both")
    },
    panels=(_points,),
    exact=True,
    notes=(
        "Four quadratics in the plane, random steps and loss rates, vanishing learning rate. The paper has a sketch.",
        "FedVARP corrects for links here, as by the paper's own eq. 115 and against its text.",
    ),
)


# Theorems 1 to 3: the gradient that remains, measured and bounded.
ROUNDS: dict[Scale, tuple[int, ...]] = {
    "smoke": (50, 100),
    **dict.fromkeys(("laptop", "paper"), (100, 400, 1600, 6400)),
}


def measure(arm: tuple[Literal["fedavg", "fedacs"], bool, tuple[int, ...]], seed: int) -> Record:
    """Return the mean squared gradient of a method over R rounds, or its bound."""
    method, bounded, rounds = arm
    found = measure_bound(method, () if bounded else (seed,), rounds)
    return Record({"R": found.x, "gradient": found.bound if bounded else found.measured[0]})


def _at(position: int) -> Callable[[Record], float]:
    return lambda record: float(record.rounds["gradient"][position])


def exponent(record: Record) -> float:
    """Return r of gradient ∝ Rʳ, between the fewest and the most rounds."""
    R = record.rounds["R"]
    return float(np.log(_at(-1)(record) / _at(0)(record)) / np.log(R[-1] / R[0]))


def _bounds(scale: Scale) -> Mapping[str, Any]:
    names: tuple[Literal["fedavg", "fedacs"], ...] = ("fedavg", "fedacs")
    return {f"{n}{', bound' if b else ''}": (n, b, ROUNDS[scale]) for n in names for b in (False, True)}


BOUND = Study(
    name="fedacs/bound",
    shows="the mean squared gradient over R rounds, η ∝ 1/√R, beside the bounds of Theorems 1 to 3",
    arms=_bounds,
    work=measure,
    seeds={"smoke": 2, "laptop": 5, "paper": 5},
    measures={
        "gradient, fewest rounds": Measure(_at(0), ratio=True, digits=3),
        "gradient, most rounds": Measure(_at(-1), ratio=True, digits=3),
        "exponent": Measure(exponent, digits=2),
    },
    panels=(curves("Mean ‖∇F‖² over R rounds", "gradient", "R", "mean ‖∇F‖²", log="xy"),),
    settings=lambda scale: {"rounds": ", ".join(map(str, ROUNDS[scale]))},
    notes=(
        "Optima 2 ± 1 (G.3, but runs start at 0): ten clients with 2 steps and losses of 0.3, ten with 10 and none.",
        "Bounds as they can be proved (fedweave.theory.fedacs). FedAvg's limit is χ² κ² = 0.569 ((91) leaves out κ²).",
    ),
)
STUDIES: tuple[Study, ...] = (*WALKS, FIGURE8, BOUND)
