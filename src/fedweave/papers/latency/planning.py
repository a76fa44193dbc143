"""The latency paper's figures 2 and 3, which need no training: the optimum of (P4), uniform and norm selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.panels import Make, curves
from fedweave.papers.common.record import Record
from fedweave.papers.common.scale import Scale
from fedweave.papers.common.study import Measure, Study
from fedweave.solve import latency_plan
from fedweave.solve.latency_plan import LatencyPlan, evaluate_plan

ALPHA, EPSILON = 1.0, 1e-3
ORDERS = (10.0, 1e3)  # of B and C, besides 1
REPETITIONS: Mapping[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}
RATIOS: Mapping[Scale, tuple[float, ...]] = {
    "smoke": (0.1, 0.5, 1.0),
    "laptop": tuple((np.arange(1, 11) / 10).tolist()),
    "paper": tuple((np.arange(1, 11) / 10).tolist()),
}
SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 5, "paper": 5}  # each with its own repetitions
FLEETS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "uniform gaps": lambda rng, n: np.cumsum(1 - rng.random(n)),  # δ_1 is a gap too: the paper does not say what it is
    "log-normal": lambda rng, n: np.sort(rng.lognormal(0, 1, n)),
}


@dataclass(frozen=True)
class Fleets:
    """Random fleets of a kind, to plan for at every ratio M/N."""

    clients: int
    ratios: tuple[float, ...]
    repetitions: int
    B_order: float = 1.0
    C_order: float = 1.0
    kind: str = "uniform gaps"


class Solved(NamedTuple):
    """One instance: the optimum, and what uniform and norm selection cost."""

    plan: LatencyPlan
    change: float  # of any probability from the optimum for orders of 1
    excess: tuple[float, float]  # of uniform and norm selection, shares of the optimum


def solve_instance(fleets: Fleets, ratio: float, repetition: int) -> Solved:
    """Solve (P4) for one instance; a repetition has the same random numbers at every order and ratio."""
    n, rng = fleets.clients, np.random.default_rng([fleets.clients, repetition])
    B, delta, M = 1 - rng.random(n), FLEETS[fleets.kind](rng, n), max(round(ratio * n), 1)

    def cost(law: Array) -> LatencyPlan:
        return evaluate_plan(law, fleets.C_order * delta, fleets.B_order * B, ALPHA, EPSILON, M)

    law = plain = latency_plan(delta, B, ALPHA, EPSILON, [M]).probability
    if (fleets.B_order, fleets.C_order) != (1.0, 1.0):
        law = latency_plan(fleets.C_order * delta, fleets.B_order * B, ALPHA, EPSILON, [M]).probability
    plan, norm = cost(law), np.sqrt(B) / np.sqrt(B).sum()
    uniform, by_norm = (cost(p).total_seconds / plan.total_seconds - 1 for p in (np.full(n, 1 / n), norm))
    return Solved(plan, float(np.abs(law - plain).max()), (uniform, by_norm))


def solve(fleets: Fleets, seed: int) -> Record:
    """Solve the repetitions of a seed at every ratio: means, and the deviation of the overall latency."""
    rows = []
    for ratio in fleets.ratios:
        first = seed * fleets.repetitions
        found = [solve_instance(fleets, ratio, r) for r in range(first, first + fleets.repetitions)]
        total, excess = np.array([s.plan.total_seconds for s in found]), np.array([s.excess for s in found])
        rows.append(
            {
                "M/N": ratio,
                "round latency": np.mean([s.plan.round_seconds for s in found]) / fleets.C_order,
                "rounds": np.mean([s.plan.rounds for s in found]) / fleets.B_order**2,
                "change": max(s.change for s in found),
                "total": total.mean(),
                "deviation": total.std(ddof=1),
                "uniform": 100 * excess[:, 0].mean(),
                "norm": 100 * excess[:, 1].mean(),
                "least": excess.min(),
            }
        )
    return Record({name: np.array([row[name] for row in rows], float) for name in rows[0]})


def mean(column: str, **how: Any) -> Measure:
    """Return the measure: the mean of a column over M/N."""
    return Measure(lambda r: float(r.rounds[column].mean()), **how)


def monotone(column: str, sign: int) -> Measure:
    """Return the measure: 1 if a column rises (sign 1) or falls (−1) from each M/N to the next, else 0."""
    return Measure(lambda r: float((sign * np.diff(r.rounds[column]) > 0).all()))


def outweighs(column: str, letter: str) -> Measure:
    """Return the measure: 1 if both N and M/N change a column more than the order of B or C does, at every M/N."""

    def of(records: Mapping[str, Record]) -> dict[str, float]:
        value = {arm: np.log(r.rounds[column]) for arm, r in records.items()}
        by_size = np.abs(value["N = 100, orders 1"] - value["N = 10, orders 1"]).min()
        found = {}
        for arm, mine in value.items():
            plain = value[f"{arm.split(',')[0]}, orders 1"]
            by_order = np.abs(mine - plain).max() if f"{letter} order" in arm else 0.0
            found[arm] = float(by_order < min(by_size, np.ptp(plain)))
        return found

    return Measure(of, joint=True)


def _panel(n: int, column: str, letter: str, title: str, y_label: str, log: Literal["", "y"] = "") -> Make:
    """Return a panel of figure 2: the fleets of one size at all orders of B or C."""
    make = curves(f"N = {n}: {title}", column, "M/N", y_label, log=log)
    words = (f"N = {n}, orders 1", f"N = {n}, {letter} order")
    return lambda records: make({arm: runs for arm, runs in records.items() if arm.startswith(words)})


def _fig2(scale: Scale) -> Mapping[str, Fleets]:
    found, given = dict[str, Fleets](), (RATIOS[scale], REPETITIONS[scale])
    for n in (10, 100):
        found[f"N = {n}, orders 1"] = Fleets(n, *given)
        found |= {f"N = {n}, C order {c:g}": Fleets(n, *given, C_order=c) for c in ORDERS}
        found |= {f"N = {n}, B order {b:g}": Fleets(n, *given, B_order=b) for b in ORDERS}
    return found


def _fig3(scale: Scale) -> Mapping[str, Fleets]:
    names = {f"N = {n}": (n, "uniform gaps") for n in (10, 50, 100)}
    names |= {f"{name}, log-normal": (n, "log-normal") for name, (n, _) in names.items()}
    given = RATIOS[scale], REPETITIONS[scale]
    return {name: Fleets(n, *given, kind=kind) for name, (n, kind) in names.items()}


def _settings(**own: Any) -> Callable[[Scale], Mapping[str, Any]]:
    given = {"α": ALPHA, "ε": EPSILON, "B": "U(0, order]", "latency gaps C": "U(0, order]", **own}
    return lambda scale: {**given, "M/N": ", ".join(map(str, RATIOS[scale])), "repetitions": REPETITIONS[scale]}


FIG2 = Study(
    name="latency/fig2",
    shows="optimal round latency and rounds over M/N, at other magnitudes of latency gaps and data factors",
    arms=_fig2,
    work=solve,
    seeds=SEEDS,
    exact=True,
    measures={
        "round latency, mean": mean("round latency", ratio=True),
        "rounds, mean": mean("rounds", ratio=True),
        "round latency rises with M/N": monotone("round latency", 1),
        "rounds fall with M/N": monotone("rounds", -1),
        "N and M/N outweigh the C order": outweighs("round latency", "C"),
        "N and M/N outweigh the B order": outweighs("rounds", "B"),
        "largest change of p": Measure(lambda r: float(r.rounds["change"].max()), digits=2),
    },
    panels=(
        *(_panel(n, "round latency", "C", "round latency / C order", "Optimal round latency, s") for n in (10, 100)),
        *(_panel(n, "rounds", "B", "rounds / B order²", "Optimal rounds", "y") for n in (10, 100)),
    ),
    settings=_settings(N="10, 100"),
    notes=(
        "C moves nothing if δ_1 scales with the gaps; B moves little because α stays: exactly nothing for α = 0.",
        "Rounds are divided by the square of the order of B, to which they are proportional where B outweighs α.",
    ),
)
FIG3 = Study(
    name="latency/fig3",
    shows="optimal overall latency, and how much more uniform and norm selection need; also log-normal latencies",
    arms=_fig3,
    work=solve,
    seeds=SEEDS,
    exact=True,
    measures={
        "overall latency, mean": mean("total", ratio=True),
        "deviation, mean": mean("deviation", ratio=True),
        "overall latency falls with M/N": monotone("total", -1),
        "deviation falls with M/N": monotone("deviation", -1),
        "ours is the smallest": Measure(lambda r: float(r.rounds["least"].min() >= -1e-12)),
        "uniform's excess, %": mean("uniform", digits=3),
        "norm's excess, %": mean("norm", digits=3),
    },
    panels=(
        curves("Overall latency of the optimum", "total", "M/N", "Overall latency, s", log="y"),
        curves("Its standard deviation over repetitions", "deviation", "M/N", "Deviation, s", log="y"),
        curves("Uniform selection", "uniform", "M/N", "More than the optimum, %"),
        curves("Norm selection", "norm", "M/N", "More than the optimum, %"),
    ),
    settings=_settings(N="10, 50, 100"),
)
