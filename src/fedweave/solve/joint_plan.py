"""Who is asked and how much of its model each sends, in one plan: what FedDD (section 8) leaves open.

A round lasts as long as its slowest client, t = max compute_n + link_n s_n over those that are asked, and gains
Σ contribution_n s_n. Rounds are repeated, so the plan with the largest gain per second is wanted:

    maximise  Σ w_n s_n / t   over  s_n = 0 (not asked)  or  1 − max_rate ≤ s_n ≤ 1,
    with  Σ size_n s_n ≤ budget  and at most ``most`` clients asked.

For a given t each client has a largest share u_n(t). Counting s_n/u_n of a client instead of a whole one gives a linear
program with two constraints, whose dual needs one multiplier to be searched: an upper bound V(t), which increases with
t, so no plan between a and b seconds gains more per second than V(b)/a, or than the dual's terms divided by t, each
where it is largest. The search splits the time, or settles whether a client is asked, where the bound is weakest
(branch and bound, the best first), until the best plan found is within ``gap`` of it.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput

TINY = 1e-12  # relative tolerance for rounding
HALVINGS = 24  # of the range of a multiplier: any value gives a bound


class JointPlan(NamedTuple):
    """Who sends how much, what it gains, and how much the best plan can gain."""

    share: Array  # (n,) of its model that each client sends; 0: it is not asked
    seconds: float  # of the round
    gain: float  # Σ contribution · share
    bound: float  # no plan gains more per second


class Terms(NamedTuple):
    """The problem in its own units."""

    size: Array  # (n,) bits of each client's model
    compute: Array  # (n,) seconds
    link: Array  # (n,) seconds for a whole model, both ways
    worth: Array  # (n,) what a whole model contributes
    least: float  # smallest share that may be asked for
    budget: float  # bits that all together may send
    most: int  # clients that may be asked

    def largest(self, t: float) -> Array:
        """Return the largest share (n,) that each client sends within t; 0 where the least one takes longer."""
        room = np.maximum(t * (1 + TINY) - self.compute, 0.0)
        whole = room >= self.link
        share = np.where(whole, room >= 0, np.divide(room, self.link, out=np.zeros_like(room), where=~whole))
        share = np.where(self.compute > t * (1 + TINY), 0.0, share)
        return np.where(share >= self.least * (1 - TINY), np.maximum(share, self.least), 0.0)

    def seconds(self, share: Array) -> float:
        """Return the length of the round."""
        asked = share > 0
        return float((self.compute + self.link * share)[asked].max(initial=0.0))


class Node(NamedTuple):
    """Plans of at most ``end`` seconds and not fewer than ``begin``, with some clients asked and some not."""

    begin: float
    end: float
    inside: Array
    outside: Array


class Relaxed(NamedTuple):
    """The linear program of a node: an upper bound of what it gains, and how to come close to it."""

    gain: float
    rate: float  # upper bound of the gain per second
    asked: Array  # (n,) share of each client that is counted as asked
    rank: Array  # (n,) what asking a client is worth at the prices of bits and of places


def joint_plan(
    size: Array,
    compute_seconds: Array,
    up_rate: Array,
    down_rate: Array,
    contribution: Array,
    budget: float,
    max_rate: float,
    most: int | None = None,
    *,
    asked: Array | None = None,
    gap: float = 1e-3,
    nodes: int = 2000,
) -> JointPlan:
    """Return who is asked and how much each sends, with the largest contribution per second.

    ``size`` in bits, rates in bit/s (inf: no time), ``budget`` the bits that all together may send, ``most`` how many
    may be asked. ``asked`` (n,) fixes who is: then only the shares are planned. ``bound`` is the certificate: no plan
    contributes more per second, and this one contributes at least bound/(1 + gap), unless ``nodes`` parts of the search
    were not enough. Nobody is asked where nobody can be.
    """
    terms = _terms(size, compute_seconds, up_rate, down_rate, contribution, budget, max_rate, most)
    fixed = np.zeros(terms.size.size, bool) if asked is None else np.asarray(asked, bool)
    first = terms.compute + terms.link * terms.least
    useful = fixed if asked is not None else terms.worth > 0
    useful = useful & (terms.least * terms.size <= terms.budget * (1 + TINY))
    if not useful.any():
        return JointPlan(np.zeros(terms.size.size), 0.0, 0.0, 0.0)
    begin = float(first[fixed].max() if asked is not None else first[useful].min())
    end = float((terms.compute + terms.link)[useful].max())
    begin = max(begin, TINY * end, 1e-300)
    return _search(terms, Node(begin, max(end, begin), fixed, ~useful), gap, nodes)


def _search(terms: Terms, whole: Node, gap: float, nodes: int) -> JointPlan:
    """Look at the part of the plans with the highest bound until none is much higher than the best plan."""
    best, rate, settled, number = np.zeros(terms.size.size), 0.0, 0.0, count()
    heap: list[tuple[float, int, Node, Relaxed, float]] = []

    def look(node: Node) -> None:
        nonlocal best, rate
        if (relaxed := relax(terms, node)) is None:
            return
        found = 0.0
        for few in (False, True):
            share = rounded(terms, node, relaxed, few)
            gain, seconds = float(terms.worth @ share), max(terms.seconds(share), 1e-300)
            found = max(found, gain)
            if gain / seconds > rate:
                best, rate = share, gain / seconds
        heapq.heappush(heap, (-relaxed.rate, next(number), node, relaxed, found))

    look(whole)
    while heap and -heap[0][0] > rate * (1 + gap) and nodes > 0:
        _, _, node, relaxed, found = heapq.heappop(heap)
        nodes -= 1
        open_ = (relaxed.asked > TINY) & (relaxed.asked < 1 - 1e-9) & ~node.inside
        middle = float(np.sqrt(node.begin * node.end))
        divisible = node.begin < middle < node.end
        # the clients are more open than the time
        if open_.any() and (relaxed.gain * node.begin > found * node.end or not divisible):
            one = np.arange(open_.size) == np.argmax(np.where(open_, 0.5 - np.abs(relaxed.asked - 0.5), -1.0))
            look(node._replace(inside=node.inside | one))
            look(node._replace(outside=node.outside | one))
        elif divisible:
            look(node._replace(end=middle))
            look(node._replace(begin=middle))
        else:
            settled = max(settled, relaxed.rate)
    bound = max([rate, settled, *(-entry[0] for entry in heap[:1])])
    return JointPlan(best, terms.seconds(best), float(terms.worth @ best), bound)


def relax(terms: Terms, node: Node) -> Relaxed | None:
    """Return the linear program's bound for plans of a node; None where it has none.

    With the price μ of a place the rest is a knapsack, filled in order of contribution per bit. μ·places + knapsack is
    convex in μ and an upper bound at every μ; more places are taken than there are below the best μ, fewer above.
    """
    u = np.where(node.outside, 0.0, terms.largest(node.end))
    free, inside = (u > 0) & ~node.inside, node.inside
    bits = terms.budget - terms.least * float(terms.size[inside].sum())
    places = terms.most - int(inside.sum())
    if (u[inside] == 0).any() or bits < -TINY * terms.budget or places < 0:
        return None
    base = terms.least * float(terms.worth[inside].sum())
    room = np.where(inside, u - terms.least, np.where(free, u, 0.0)) * terms.size
    per_place = np.divide(1.0, u, out=np.zeros_like(u), where=free)
    early = np.where(node.outside, 0.0, terms.largest(node.begin))
    at_best = np.clip(terms.compute + terms.link, node.begin, node.end)  # the time at which u/t is largest
    part = np.clip((at_best - terms.compute) / np.maximum(terms.link, 1e-300), 0, 1)
    steepest = np.where(u > 0, np.where(at_best >= terms.compute + terms.link, 1.0, part) / at_best, 0.0)

    def at(price: float) -> Relaxed:
        density = (terms.worth - price * per_place) / terms.size
        order = np.argsort(-density, kind="stable")
        take = np.zeros_like(room)
        filled = np.cumsum(room[order])
        take[order] = np.clip(bits - (filled - room[order]), 0, room[order])
        take[density <= 0] = 0.0
        margin = density[order[min(np.searchsorted(filled, bits), order.size - 1)]] if filled[-1] > bits else 0.0
        gain = base + price * places + float(density @ take)
        margin = max(margin, 0.0)
        over = np.maximum(terms.worth - margin * terms.size, 0.0)
        sure = free & (over * early >= price)  # in the dual at all these times
        steady = base + margin * max(bits, 0.0) + price * (places - int(sure.sum())) - terms.least * over[inside].sum()
        rate = max(steady / node.begin, steady / node.end) + float((over * steepest)[sure | inside].sum())
        rate += float(np.maximum(over * steepest - price / node.end, 0)[free & ~sure].sum())
        rank = np.where(free, (density - margin) * room, np.where(inside, np.inf, -np.inf))
        return Relaxed(gain, min(rate, gain / node.begin), np.where(inside, 1.0, take * per_place / terms.size), rank)

    low, high = 0.0, float((terms.worth * u)[free].max(initial=0.0))
    found = at(low)
    if found.asked[free].sum() <= places * (1 + TINY):
        return found
    for _ in range(HALVINGS):
        tried = at(middle := (low + high) / 2)
        found = min(found, tried, key=lambda relaxed: relaxed.rate)
        low, high = (middle, high) if tried.asked[free].sum() > places else (low, middle)
    return found


def rounded(terms: Terms, node: Node, relaxed: Relaxed, few: bool) -> Array:
    """Return a plan close to the linear program's (n,): the clients of the highest rank, and their best shares.

    As many clients as may be asked, or ``few``: only those that the linear program asks.
    """
    u = np.where(node.outside, 0.0, terms.largest(node.end))
    order = np.argsort(-relaxed.rank, kind="stable")
    order = order[(u[order] > 0) & (not few or relaxed.asked[order] > TINY)][: terms.most]
    order = order[np.cumsum(terms.least * terms.size[order]) <= terms.budget * (1 + TINY)]
    order = order[np.argsort(-(terms.worth / terms.size)[order], kind="stable")]
    room = (u[order] - terms.least) * terms.size[order]
    left = max(terms.budget - terms.least * float(terms.size[order].sum()), 0.0)
    share = np.zeros(u.size)
    share[order] = terms.least + np.clip(left - (np.cumsum(room) - room), 0, room) / terms.size[order]
    return np.minimum(share, u)


def _terms(
    size: Array,
    compute: Array,
    up: Array,
    down: Array,
    contribution: Array,
    budget: float,
    max_rate: float,
    most: int | None,
) -> Terms:
    """Check all inputs and return the problem."""
    given = {"size": size, "compute_seconds": compute, "up_rate": up, "down_rate": down, "contribution": contribution}
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column, float)) for column in given.values()))
    columns = dict(zip(given, arrays, strict=True))
    problems = list[str]()
    for name, column in columns.items():
        positive = name in ("size", "up_rate", "down_rate")
        fine = (column > 0) if positive else (column >= 0)
        fine = fine & (~np.isnan(column) if name.endswith("rate") else np.isfinite(column))
        if not fine.all():
            rule = "positive" if positive else "not negative"
            problems.append(f"The {name!r} of joint_plan must be {rule}. Got {column[~fine][0]!r} for a client.")
    if not 0 < budget < np.inf:
        problems.append(f"The 'budget' of joint_plan must be a number of bits > 0. Got {budget!r}.")
    if not 0 <= max_rate < 1:
        problems.append(f"The 'max_rate' of joint_plan must be a share in [0, 1). Got {max_rate!r}.")
    if most is not None and most < 1:
        problems.append(f"The 'most' of joint_plan must be at least 1. Got {most!r}.")
    if problems:
        raise BadInput(*problems)
    size, compute, up, down, worth = columns.values()
    most = size.size if most is None else most
    return Terms(size, compute, size * (1 / up + 1 / down), worth, 1 - max_rate, float(budget), most)
