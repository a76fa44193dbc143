"""How much of its model each client may leave out, so that a round is short and what is lost counts little (FedDD)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput

SLACK = 1e-14  # of all bits: what rounding may be wrong by


class Terms(NamedTuple):
    """The problem in its own units: seconds and bits."""

    size: Array  # (n,) bits of each client's model
    whole: Array  # (n,) seconds for a whole model: down, compute, up
    link: Array  # (n,) of these, seconds on the link
    density: Array  # (n,) what a bit of its model is worth
    order: Array  # (n,) clients by that, the least first
    dropped: float  # bits that all together must leave out
    most: float  # share that a client may leave out


def dropout_plan(
    size: Array,
    compute_seconds: Array,
    up_rate: Array,
    down_rate: Array,
    contribution: Array,
    keep: float,
    max_rate: float,
    penalty: float,
) -> Array:
    """Return the rates D (n,) that minimise t + penalty Σ contribution·D (FedDD eqs 16 and 17).

    Each client needs compute_seconds + size (1 − D)(1/up_rate + 1/down_rate) ≤ t, with size in bits and rates in bit/s
    (inf: no time); 0 ≤ D ≤ max_rate; and Σ size (1 − D) = keep Σ size. A linear program, but one in disguise: for a
    given t each client has a least rate, and what more must be left out is left out where it is worth the least per
    bit, so that only t has to be searched. That is exact and much faster than a general solver, which meets t in every
    row (``benchmarks/dropout_plan.py``). Of equally good plans it is the one with the shortest round, and of equal
    clients the slower leaves out more.
    """
    terms = _terms(size, compute_seconds, up_rate, down_rate, contribution, keep, max_rate, penalty)
    if terms.dropped == 0:
        return np.zeros(terms.size.size)
    return _filled(terms, _demanded(terms, _fastest(terms, penalty)))[0]


def round_seconds(rate: Array, size: Array, compute_seconds: Array, up_rate: Array, down_rate: Array) -> float:
    """Return how long the slowest client takes under these rates (FedDD eq. 12)."""
    size = np.asarray(size, float)
    link = size * (1 / np.asarray(up_rate, float) + 1 / np.asarray(down_rate, float))
    return float((np.asarray(compute_seconds, float) + link * (1 - np.asarray(rate))).max())


def infeasible(keep: float, max_rate: float) -> str:
    """Return in numbers why no plan keeps so little with rates so low; nothing if one does."""
    if 1 - keep <= max_rate * (1 + 1e-12) + 1e-15:
        return ""
    return (
        f"Clients that leave out {max_rate:g} at most send {1 - max_rate:g} of their models at least, more than the "
        f"{keep:g} to be kept. Raise keep to {1 - max_rate:g} or max_rate to {1 - keep:g}."
    )


def _terms(
    size: Array,
    compute_seconds: Array,
    up_rate: Array,
    down_rate: Array,
    contribution: Array,
    keep: float,
    max_rate: float,
    penalty: float,
) -> Terms:
    """Check the input, all at once, and return the problem."""
    given = {
        "size": size,
        "compute_seconds": compute_seconds,
        "up_rate": up_rate,
        "down_rate": down_rate,
        "contribution": contribution,
    }
    columns = {name: np.atleast_1d(np.asarray(value, float)) for name, value in given.items()}
    problems = _wrong(columns, keep, max_rate, penalty)
    if problems:
        raise BadInput(*problems)
    size, compute, up, down, worth = np.broadcast_arrays(*columns.values())
    link = size * (1 / up + 1 / down)
    density = worth / size
    order = np.lexsort((-(compute + link), density))  # among equals the slower first
    return Terms(size, compute + link, link, density, order, (1 - keep) * float(size.sum()), max_rate)


def _wrong(columns: dict[str, Array], keep: float, max_rate: float, penalty: float) -> list[str]:
    who, problems = "dropout_plan", []
    lengths = {c.size for c in columns.values()} - {1}
    if len(lengths) > 1:
        sizes = ", ".join(f"{name} {c.size}" for name, c in columns.items())
        return [f"The columns of {who} must have one length. They have {sizes}."]
    for name, column in columns.items():
        positive = name not in ("compute_seconds", "contribution")
        fine = (column > 0) if positive else (column >= 0) & (column < np.inf)
        fine &= ~np.isnan(column) if name.endswith("rate") else np.isfinite(column)
        if not fine.all():
            rule = "positive" if positive else "not negative"
            problems.append(f"The {name!r} of {who} must be {rule}. Got {column[~fine][0]!r} for a client.")
    if not 0 < keep <= 1:
        problems.append(f"The 'keep' of {who} must be a share in (0, 1]. Got {keep!r}.")
    if not 0 <= max_rate <= 1:
        problems.append(f"The 'max_rate' of {who} must be a share in [0, 1]. Got {max_rate!r}.")
    if not 0 <= penalty < np.inf:
        problems.append(f"The 'penalty' of {who} must not be negative. Got {penalty!r}.")
    if not problems and (problem := infeasible(keep, max_rate)):
        problems.append(problem)
    return problems


def _fastest(terms: Terms, penalty: float) -> float:
    """Return t of the optimal plan.

    The least loss within t is convex and piecewise linear in t, so t + penalty · loss is least where its slope changes
    sign: halving finds the place to the last bit.
    """
    low, high = float((terms.whole - terms.link * terms.most).max()), float(terms.whole.max())
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _slope(terms, penalty, middle) >= 0 else (middle, high)
    return high


def _slope(terms: Terms, penalty: float, t: float) -> float:
    """Return the slope of t + penalty · loss to the right of t; −∞ where t is too short for what is to be kept.

    A second more lets each client at its least rate send 1/link of its model more, and someone else leaves as many
    bits out instead: whoever is next, the one worth the least per bit that can leave out more.
    """
    least = _demanded(terms, t)
    rate, left = _filled(terms, least)
    if left < -SLACK * terms.size.sum():
        return -np.inf
    bound = (least > 0) & (least < terms.most) & (rate == least)
    room = rate[terms.order] < terms.most
    price = float(terms.density[terms.order[room.argmax()]]) if room.any() else 0.0
    gain = (terms.density[bound] - price) * terms.size[bound] / terms.link[bound]
    return 1 - penalty * float(gain.sum())


def _demanded(terms: Terms, t: float) -> Array:
    """Return the least rate at which each client is done within t."""
    over = np.maximum(terms.whole - t, 0.0)
    return np.divide(over, terms.link, out=np.zeros_like(over), where=terms.link > 0).clip(0, terms.most)


def _filled(terms: Terms, least: Array) -> tuple[Array, float]:
    """Return the rates that lose least beyond ``least``, and the bits that were to be filled."""
    left = terms.dropped - float(least @ terms.size)
    room = ((terms.most - least) * terms.size)[terms.order]
    more = np.clip(left - (np.cumsum(room) - room), 0, room)
    rate = least.copy()
    full = more >= room
    rate[terms.order] = np.where(full, terms.most, least[terms.order] + more / terms.size[terms.order])
    return np.minimum(rate, terms.most), left
