"""DELTA's arithmetic: the toy example (figures 3 and 5), the laws of least variance, table 1's orders, two theorems.

Figures 1 and 8 are illustrations; figure 5 is figure 3 with a frame for each method.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from fedweave import methods, theory
from fedweave.core.records import Array
from fedweave.engine.simulator import Simulator
from fedweave.local.quadratic import Quadratics, QuadraticTrainer
from fedweave.method import Method
from fedweave.papers.common.bounds import population_of
from fedweave.papers.common.panels import Line, Make, Panel, Records, bars, curves
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.papers.delta.setup import column_of
from fedweave.papers.delta.theory import Law, measure_bound
from fedweave.round import first_state
from fedweave.round.plan import view_of

# F₁ = x² + y², F₂ = 4(x − ½)² + ½y², F₃ = 3x² + 3/2 (y − 2)², at (1, 1)
CLIENTS = Quadratics(
    np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 2.0]]),
    np.array([np.diag([2.0, 2.0]), np.diag([8.0, 1.0]), np.diag([6.0, 3.0])]),
)
POINT, PICKED = np.ones(2), 2
METHODS = {"feddelta": methods.feddelta(PICKED), "fedis": methods.fedis(PICKED), "fedavg": methods.fedavg_us(PICKED)}
PRINTED = {"feddelta": ((1, 3), (4.0, -0.5)), "fedis": ((2, 3), (5.0, -1.0)), "fedavg": ((1, 2), (3.0, 1.5))}


def always(seeds: int = 1) -> dict[Scale, int]:
    """Return as many instances at every scale."""
    return {"smoke": seeds, "laptop": seeds, "paper": seeds}


def probabilities(method: Method) -> tuple[Array, Array]:
    """Return each client's share of the draws and all gradients, for one local step from the point."""
    population = population_of(np.full(3, 1 / 3), 1)
    engine = Simulator(QuadraticTrainer(CLIENTS, method.solver, 0, population.weight))
    state = first_state(method, POINT, population, 2)
    law = method.sampler.law(state.sampler, view_of(method, state, population, engine, 0.01))
    return law / law.sum(), engine.gradients(POINT, np.arange(3))


def mean_without_replacement(p: Array, g: Array) -> Array:
    """Return E (1/n) Σ g/(m p) over n = 2 clients that are drawn one after the other, from those that are left.

    Lemma C.1 calls it unbiased, with P(i in S) = n p; that is so only where all p are equal.
    """
    mean = 0 * POINT
    for i, j in permutations(range(p.size), PICKED):
        mean += p[i] * p[j] / (1 - p[i]) * (g[i] / p[i] + g[j] / p[j]) / (PICKED * p.size)
    return mean


def pick_pair(method: Method, seed: int) -> Record:
    """Return the two clients of the largest probability, their mean gradient, and how far it is from that of all.

    The largest is how the paper reads its figure, and for FedAvg it assumes clients 1 and 2; samplers draw at random.
    """
    p, g = probabilities(method)
    pair = np.sort(np.argsort(-p, kind="stable")[:PICKED])
    mean, printed = g[pair].mean(0), PRINTED[method.name.removesuffix("_us")]
    values = {
        "distance": np.linalg.norm(mean - g.mean(0)),
        "variance": theory.update_variance(p, np.full(3, 1 / 3), g, PICKED),
        "bias without replacement": np.linalg.norm(mean_without_replacement(p, g) - g.mean(0)),
        "as printed": float((tuple(pair + 1), tuple(mean.round(12))) == printed),
    }
    rounds = {f"client {i + 1}": v for i, v in enumerate(g)} | {"picked": mean, "all": g.mean(0), "p": p}
    return Record(rounds, values={name: float(v) for name, v in values.items()})


def value(name: str) -> Measure:
    """Return the measure of a number of the record."""
    return Measure(lambda r: float(r.values[name]), digits=5)


def _arrows(name: str) -> Make:
    """Return a frame of figure 5: the gradients of the clients, of the picked ones and of all."""

    def make(records: Records) -> Panel:
        columns = records[name][0].rounds
        lines = [
            Line(what, np.array([0.0, v[0]]), np.array([[0.0, v[1]]])) for what, v in columns.items() if what != "p"
        ]
        return Panel(f"What {name} picks", "∂/∂x", "∂/∂y", lines, points=True)

    return make


FIG3 = Study(
    name="delta/fig3",
    shows="toy example (also figure 5): how far the pairs that DELTA, IS and FedAvg pick are from the ideal gradient",
    arms=lambda scale: METHODS,
    seeds=always(),
    measures={name: value(name) for name in ("distance", "as printed", "variance", "bias without replacement")},
    panels=[_arrows(name) for name in METHODS],
    work=pick_pair,
    exact=True,
    notes=(
        "variance: E‖estimate − ideal‖² of the unbiased estimator by two draws with replacement.",
        "bias without replacement: ‖E estimate − ideal‖ with the same weights (Lemma C.1), one client after the other.",
    ),
)
LAWS = ("uniform", "importance", "delta")


def measure_variance(law: str, seed: int) -> Record:
    """Return Φ̃ (eq. 11) and the update variance of a law, for gradients and variances drawn at random."""
    rng, m, n, steps, lr = np.random.default_rng(seed), 10, 4, 5, 0.01
    even, g = np.full(m, 1 / m), rng.lognormal(0, 1, (m, 1)) * rng.standard_normal((m, 3))
    away, variance = np.linalg.norm(g - g.mean(0), axis=1), rng.lognormal(0, 1, m)
    K = np.full(m, steps)
    p = {
        "uniform": even,
        "importance": theory.importance_probability(even, np.linalg.norm(g, axis=1)),
        "delta": theory.delta_probability(even, away, variance, *theory.delta_alphas(K, lr, 1.0, n)),
    }[law]
    phi = theory.delta_bound(p, even, away, variance, K, lr, 1.0, n)
    return Record(values={"Φ̃": phi, "update variance": theory.update_variance(p, even, g, n)})


VARIANCE = Study(
    name="delta/variance",
    shows="section 3.4 and eqs 5 and 13: which law has the least Φ̃, and which the least update variance",
    arms=lambda scale: {law: law for law in LAWS},
    seeds=always(20),
    measures={n: Measure(lambda r, n=n: r.values[n], ratio=True, digits=3) for n in ("Φ̃", "update variance")},
    panels=[bars(n, lambda r, n=n: r.values[n], n, log="y") for n in ("Φ̃", "update variance")],
    work=measure_variance,
    exact=True,
    notes=("Ten clients with gradients and variances drawn at random, anew for each of 20 instances.",),
)
EPSILON = np.logspace(-8, -1, 36)


def order_of(row: str, seed: int) -> Record:
    """Return table 1's order of the rounds over ε, for constants drawn at random and gradients that grow by U = 1.5."""
    rng = np.random.default_rng(seed)
    K, n = int(rng.integers(1, 11)), int(rng.integers(1, 21))
    constants = rng.lognormal(0, 1, 3)  # σ_L², σ_G², ζ_G
    rounds = [theory.rounds_order(e, K, n, 100, *constants, change=1.5)[row] for e in EPSILON]
    return Record({"ε": EPSILON, "rounds": np.array(rounds)})


def leading(record: Record) -> float:
    """Return the power of 1/ε that the rounds grow with as ε → 0."""
    rounds, e = record.rounds["rounds"], record.rounds["ε"]
    return float(np.log(rounds[0] / rounds[1]) / np.log(e[1] / e[0]))


ROWS = tuple(theory.rounds_order(0.1, 2, 2, 100, 1.0, 1.0, 1.0))
TABLE1 = Study(
    name="delta/table1",
    shows="table 1: the order of the rounds to an accuracy ε that each method is said to need",
    arms=lambda scale: {row: row for row in ROWS},
    seeds=always(20),
    measures={
        "rounds as ε → 0": Measure(lambda r: float(r.rounds["rounds"][0]), ratio=True, digits=3),
        "power of 1/ε": Measure(leading, digits=4),
    },
    panels=(curves("Rounds by table 1", "rounds", "ε", "Rounds, all constants 1", log="xy"),),
    work=order_of,
    exact=True,
    notes=(
        "Arithmetic of the printed expressions for 20 draws of the constants, at ε = 10⁻⁸.",
        "The rows of DELTA follow from Theorem 3.5, which is false: see delta/bound/theorem3.5.",
        "FedIS of others is left out: its row has a constant that the paper does not define.",
        "The table's row of practical DELTA drops the factor U² that eq. 18 has, and which is kept here.",
    ),
)


def bound_of(law: Law, seed: int) -> Record:
    """Return the mean squared gradient over T rounds on quadratics, and its bound."""
    found = measure_bound(law, (seed,))
    columns = {"T": found.x.astype(float), "measured": found.measured[0], "bound": found.bound}
    return Record(columns, values={"holds": float((found.measured[0] <= found.bound).all())})


def _against(arm: str, title: str, y_label: str) -> Make:
    """Return a panel with what is measured, and the bound."""

    def make(records: Records) -> Panel:
        runs = records[arm]
        lines = [Line(name, runs[0].rounds["T"], column_of(runs, name)) for name in ("measured", "bound")]
        return Panel(title, "Rounds T", y_label, lines, log="xy")

    return make


def settle_between_two(arm: str, seed: int) -> Record:
    """Return min E ‖∇f‖² over T rounds and what Theorem 3.5 says is above it: two clients with optima ±1, one draw.

    DELTA's law is ½ each. E ‖∇f‖² = E x² obeys v ← (1 − η)² v + η² from x = 2 on and falls to η/(2 − η). The bound has
    the smallest c of the theorem's condition, ¼, which favours it. η is drawn at random.
    """
    lr, half, one = np.random.default_rng(seed).uniform(0.002, 0.008), np.full(2, 0.5), np.ones(2)
    T = np.unique(np.logspace(0, 7, 60).round())
    settled = lr / (2 - lr)
    measured = settled + (4 - settled) * (1 - lr) ** (2 * (T - 1))
    phi = theory.delta_bound(half, half, one, 0 * one, one, lr, 1.0, 1)
    bound = 2 / (0.25 * lr * T) + phi / 0.25
    columns = {"T": T, "measured": measured, "bound": bound}
    return Record(columns, values={"holds": float((measured <= bound).all())})


def _theorem(name: str, shows: str, arms: dict[str, Any], work: Any, y_label: str, seeds: int, note: str) -> Study:
    return Study(
        name=f"delta/bound/{name}",
        shows=shows,
        arms=lambda scale: arms,
        seeds=always(seeds),
        measures={"holds": value("holds")},
        panels=[_against(arm, arm, y_label) for arm in arms],
        work=work,
        exact=True,
        notes=(note,),
    )


STUDIES = (
    TABLE1,
    FIG3,
    VARIANCE,
    _theorem(
        "theorem3.1",
        "Theorem 3.1 on quadratics: the gradient under importance sampling and under DELTA's law, and the bound",
        {"importance": "importance", "delta": "delta"},
        bound_of,
        "Mean ‖∇f‖² over T rounds",
        5,
        "The bound has the law's own update variance, measured on the way; so it holds for every unbiased law.",
    ),
    _theorem(
        "theorem3.5",
        "Theorem 3.5, DELTA's own bound: a counterexample with two clients",
        {"delta": "delta"},
        settle_between_two,
        "min E‖∇f‖² over T rounds",
        20,
        "The proof loses the update variance: it treats the next model as independent of the cohort that made it.",
    ),
)
