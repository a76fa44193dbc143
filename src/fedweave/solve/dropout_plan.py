"""FedDD's dropout rates: how much of its model each client omits, so that rounds are short and little is lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput

SLACK = 1e-14  # of all bits: tolerance for rounding


class Terms(NamedTuple):
    """The problem in its own units: seconds and bits."""

    size: Array  # (n,) bits of each client's model
    whole: Array  # (n,) seconds for a whole model: down, compute, up
    link: Array  # (n,) of these, seconds on the link
    density: Array  # (n,) contribution per bit of the model
    order: Array  # (n,) clients by density, the least first
    dropped: float  # bits that all clients together must omit
    most: float  # largest share that a client may omit


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
    (inf: no time); 0 ≤ D ≤ max_rate; and Σ size (1 − D) = keep Σ size. This linear program has one free variable: for a
    given t each client has a least rate, and the remaining bits are omitted where they contribute least, so only t is
    searched. That is exact and much faster than a general solver, which meets t in every row
    (``benchmarks/dropout_plan.py``). Among equally good plans it returns the one with the shortest round; among equal
    clients the slower one omits more.
    """
    terms = _terms(size, compute_seconds, up_rate, down_rate, contribution, keep, max_rate, penalty)
    if terms.dropped == 0:
        return np.zeros(terms.size.size)
    return _fill_up(terms, _least_rates(terms, _best_time(terms, penalty)))[0]


def round_seconds(rate: Array, size: Array, compute_seconds: Array, up_rate: Array, down_rate: Array) -> float:
    """Return the duration of the slowest client under these rates (FedDD eq. 12)."""
    size = np.asarray(size, float)
    link = size * (1 / np.asarray(up_rate, float) + 1 / np.asarray(down_rate, float))
    return float((np.asarray(compute_seconds, float) + link * (1 - np.asarray(rate))).max())


def infeasible(keep: float, max_rate: float) -> str:
    """Return why no plan exists for these limits, as a sentence; an empty string if one exists."""
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
    """Check all inputs and return the problem."""
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
    order = np.lexsort((-(compute + link), density))  # ties: slower clients first
    return Terms(size, compute + link, link, density, order, (1 - keep) * float(size.sum()), max_rate)


def _wrong(columns: dict[str, Array], keep: float, max_rate: float, penalty: float) -> list[str]:
    caller, problems = "dropout_plan", []
    lengths = {c.size for c in columns.values()} - {1}
    if len(lengths) > 1:
        sizes = ", ".join(f"{name} {c.size}" for name, c in columns.items())
        return [f"The columns of {caller} must have one length. They have {sizes}."]
    for name, column in columns.items():
        positive = name not in ("compute_seconds", "contribution")
        fine = (column > 0) if positive else (column >= 0) & (column < np.inf)
        fine &= ~np.isnan(column) if name.endswith("rate") else np.isfinite(column)
        if not fine.all():
            rule = "positive" if positive else "not negative"
            problems.append(f"The {name!r} of {caller} must be {rule}. Got {column[~fine][0]!r} for a client.")
    if not 0 < keep <= 1:
        problems.append(f"The 'keep' of {caller} must be a share in (0, 1]. Got {keep!r}.")
    if not 0 <= max_rate <= 1:
        problems.append(f"The 'max_rate' of {caller} must be a share in [0, 1]. Got {max_rate!r}.")
    if not 0 <= penalty < np.inf:
        problems.append(f"The 'penalty' of {caller} must not be negative. Got {penalty!r}.")
    if not problems and (problem := infeasible(keep, max_rate)):
        problems.append(problem)
    return problems


def _best_time(terms: Terms, penalty: float) -> float:
    """Return t of the optimal plan.

    The least loss within t is convex and piecewise linear in t, so t + penalty · loss is least where its slope changes
    sign; bisection finds that point to the last bit.
    """
    low, high = float((terms.whole - terms.link * terms.most).max()), float(terms.whole.max())
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _slope(terms, penalty, middle) >= 0 else (middle, high)
    return high


def _slope(terms: Terms, penalty: float, t: float) -> float:
    """Return the slope of t + penalty · loss to the right of t; −∞ where t is too short to keep enough.

    One more second lets each client at its least rate send 1/link more of its model, and the client with the least
    contribution per bit that can still omit more omits as many bits instead.
    """
    least = _least_rates(terms, t)
    rate, left = _fill_up(terms, least)
    if left < -SLACK * terms.size.sum():
        return -np.inf
    bound = (least > 0) & (least < terms.most) & (rate == least)
    room = rate[terms.order] < terms.most
    price = float(terms.density[terms.order[room.argmax()]]) if room.any() else 0.0
    gain = (terms.density[bound] - price) * terms.size[bound] / terms.link[bound]
    return 1 - penalty * float(gain.sum())


def _least_rates(terms: Terms, t: float) -> Array:
    """Return the least rate at which each client finishes within t."""
    over = np.maximum(terms.whole - t, 0.0)
    return np.divide(over, terms.link, out=np.zeros_like(over), where=terms.link > 0).clip(0, terms.most)


def _fill_up(terms: Terms, least: Array) -> tuple[Array, float]:
    """Return the rates that lose least among those above ``least``, and the number of bits added."""
    left = terms.dropped - float(least @ terms.size)
    room = ((terms.most - least) * terms.size)[terms.order]
    more = np.clip(left - (np.cumsum(room) - room), 0, room)
    rate = least.copy()
    full = more >= room
    rate[terms.order] = np.where(full, terms.most, least[terms.order] + more / terms.size[terms.order])
    return np.minimum(rate, terms.most), left
