"""The latency paper, figures 2 and 3, which need no training: the optimum, uniform and norm selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.papers.common.claims import Claim, Outcome
from fedweave.papers.common.parallel import Progress, run_in_order
from fedweave.papers.common.scale import Scale
from fedweave.solve import latency_plan
from fedweave.solve.latency_plan import evaluate_plan

ALPHA, EPSILON = 1.0, 1e-3
ORDERS = (1.0, 10.0, 1e3)
REPETITIONS: dict[Scale, int] = {"smoke": 2, "laptop": 10, "paper": 10}
RATIOS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.1, 0.5, 1.0),
    "laptop": tuple(np.arange(1, 11) / 10),
    "paper": tuple(np.arange(1, 11) / 10),
}
FLEETS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "uniform gaps": lambda rng, n: np.cumsum(1 - rng.random(n)),  # δ_1 is a gap too: the paper does not say what it is
    "log-normal": lambda rng, n: np.sort(rng.lognormal(0, 1, n)),
}


def solve_instance(
    fleet: str, clients: int, ratio: float, B_order: float, C_order: float, repetition: int
) -> dict[str, Any]:
    """Return one optimum with uniform and norm selection; a repetition has the same fleet in every order."""
    rng = np.random.default_rng([clients, repetition])
    B, delta = B_order * (1 - rng.random(clients)), C_order * FLEETS[fleet](rng, clients)
    M, norm = max(round(ratio * clients), 1), np.sqrt(B) / np.sqrt(B).sum()
    plan = latency_plan(delta, B, ALPHA, EPSILON, [M])
    uniform, by_norm = (evaluate_plan(p, delta, B, ALPHA, EPSILON, M) for p in (np.full(clients, 1 / clients), norm))
    return {
        "p": plan.probability,
        "round_seconds": plan.round_seconds,
        "rounds": plan.rounds,
        "total": plan.total_seconds,
        "uniform": uniform.total_seconds / plan.total_seconds - 1,
        "norm": by_norm.total_seconds / plan.total_seconds - 1,
    }


def _table(
    jobs: Sequence[tuple[Any, ...]], repetitions: int, on_progress: Progress | None
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found = run_in_order(solve_instance, [(*job, r) for job in jobs for r in range(repetitions)], on_progress)
    return {job: found[i * repetitions : (i + 1) * repetitions] for i, job in enumerate(jobs)}


def _mean(cells: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([cell[key] for cell in cells]))


def fig2(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 2: optimal round latency and rounds over M/N, for other magnitudes of latency gaps and data factors."""
    ratios, repetitions, sizes = RATIOS[scale], REPETITIONS[scale], (10, 100)
    orders = [("C", 1.0, c) for c in ORDERS] + [("B", b, 1.0) for b in ORDERS[1:]]
    jobs = {
        (kind, n, order, ratio): ("uniform gaps", n, ratio, B, C)
        for (kind, B, C), n, ratio in product(orders, sizes, ratios)
        for order in (B * C,)
    }
    found = _table(list(jobs.values()), repetitions, on_progress)
    rows = [
        {
            "varied": kind,
            "order": order,
            "clients": n,
            "M/N": ratio,
            "round_seconds / C order": _mean(found[job], "round_seconds") / job[4],
            "rounds / B order²": _mean(found[job], "rounds") / job[3] ** 2,
            "largest change of p": max(
                float(np.abs(a["p"] - b["p"]).max())
                for a, b in zip(found[job], found[jobs["C", n, 1.0, ratio]], strict=True)
            ),
        }
        for (kind, n, order, ratio), job in jobs.items()
    ]
    base = {(r["clients"], r["M/N"]): r for r in rows if r["order"] == 1}
    claims = [
        _judge_monotone("the round latency rises with N and with M/N", base, "round_seconds / C order", 1, 1),
        _judge_monotone("the number of rounds rises with N and falls with M/N", base, "rounds / B order²", 1, -1),
        _judge_unchanged("the magnitude of C does not change the optimal probabilities", rows, "C", 1e-6),
        _judge_unchanged("the magnitude of B changes no optimal probability by 0.01", rows, "B", 0.01),
    ]
    notes = (
        f"α = {ALPHA:g}, ε = {EPSILON:g}, {repetitions} repetitions, the same random numbers in every order.",
        "C moves nothing if δ_1 scales with the gaps; B moves little because α stays: exactly nothing for α = 0.",
    )
    return Outcome("latency/fig2", scale, rows, claims, notes)


def _judge_monotone(text: str, rows: Mapping[Any, Mapping[str, Any]], key: str, by_size: int, by_ratio: int) -> Claim:
    """Judge whether a quantity rises (1) or falls (−1) with the number of clients and with the ratio, everywhere."""
    sizes, ratios = (sorted({place[i] for place in rows}) for i in (0, 1))
    values = np.array([[rows[n, r][key] for r in ratios] for n in sizes])
    holds = (by_size * np.diff(values, axis=0) > 0).all() and (by_ratio * np.diff(values, axis=1) > 0).all()
    corners = ", ".join(
        f"N={n} M/N={r:g}: {rows[n, r][key]:.3g}" for n in (sizes[0], sizes[-1]) for r in (ratios[0], ratios[-1])
    )
    return Claim.judge(text, bool(holds), corners)


def _judge_unchanged(text: str, rows: Sequence[Mapping[str, Any]], kind: str, limit: float) -> Claim:
    change = max(row["largest change of p"] for row in rows if row["varied"] == kind)
    return Claim.judge(text, change < limit, f"largest change of any p: {change:.2g}")


def fig3(scale: Scale, on_progress: Progress | None = None) -> Outcome:
    """Figure 3: optimal overall latency, and how much more uniform and norm selection need; also log-normal fleets."""
    ratios, repetitions, sizes = RATIOS[scale], REPETITIONS[scale], (10, 50, 100)
    jobs = {place: (*place, 1.0, 1.0) for place in product(FLEETS, sizes, ratios)}
    found = _table(list(jobs.values()), repetitions, on_progress)
    rows = [
        {
            "latencies": fleet,
            "clients": n,
            "M/N": ratio,
            "total_seconds": _mean(found[job], "total"),
            "deviation": float(np.std([c["total"] for c in found[job]], ddof=1)),
            "uniform, % more": 100 * _mean(found[job], "uniform"),
            "norm, % more": 100 * _mean(found[job], "norm"),
        }
        for (fleet, n, ratio), job in jobs.items()
    ]
    paper = {(r["clients"], r["M/N"]): r for r in rows if r["latencies"] == "uniform gaps"}
    least = min(min(cell["uniform"], cell["norm"]) for cells in found.values() for cell in cells)
    gap = {
        (fleet, n): float(np.mean([r["norm, % more"] for r in rows if (r["latencies"], r["clients"]) == (fleet, n)]))
        for fleet, n in product(FLEETS, sizes)
    }
    small, large = (gap["uniform gaps", n] for n in (sizes[0], sizes[-1]))
    heavy = gap["log-normal", sizes[-1]]
    claims = [
        _judge_monotone("the overall latency rises with N and falls with M/N", paper, "total_seconds", 1, -1),
        _judge_monotone("its deviation rises with N and falls with M/N", paper, "deviation", 1, -1),
        Claim.judge(
            "ours is the smallest, on every instance", least >= 0, f"smallest excess of the others: {least:.2g}"
        ),
        Claim.judge(
            "norm selection comes close when N is large",
            large < small,
            f"{small:.2g} % more at N = {sizes[0]}, {large:.2g} % more at N = {sizes[-1]}",
        ),
        Claim.judge(
            "heavy tails promise more (beyond the paper)",
            heavy > 2 * large,
            f"over norm selection at N = {sizes[-1]}: {heavy:.3g} % with log-normal latencies, {large:.2g} % with gaps",
        ),
    ]
    notes = (f"α = {ALPHA:g}, ε = {EPSILON:g}, B and C of order 1, {repetitions} repetitions.",)
    return Outcome("latency/fig3", scale, rows, claims, notes)
