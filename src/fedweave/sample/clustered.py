"""Clustered sampling (Fraboni, Vidal, Kameni, Lorenzi; ICML 2021): one client from each of K distributions."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.core.vectors import row_blocks
from fedweave.sample.fixed import draw_on_line, mean_count

WIDTH = 256  # numbers kept of each client's last update


@settings
class Clustered(Sampler):
    """One draw from each of ``per_round`` distributions r_k with Σ_k r_k,i = K ω_i: E[count] = K ω, as in ``Weighted``.

    Var[count_i] = Σ_k r_k,i (1 − r_k,i) ≤ K ω_i (1 − ω_i), that of multinomial draws: Σ_k r² is least for equal r.
    ``by`` "size", Algorithm 1: the clients' shares K ω, largest first, fill one distribution after the other. A client
    with K ω ≥ 1 fills at least ⌊K ω⌋ − 1 of them alone, so that it is certain to be drawn as often.
    "similarity", Algorithm 2: clients whose last updates point the same way are grouped by Ward's method as long as a
    group's share is at most 1. The groups with the largest shares are the distributions; the clients of the others fill
    what is left of them. Of a client with K ω ≥ 1, ⌊K ω⌋ distributions are its own and the rest takes part in this.
    Ward's distances are those of unit vectors, ‖a − b‖² = 2 − 2 cos, where the authors' code has the angle; a client
    that has never answered has a zero vector. Takes O(N²) work and memory a round. Of an update longer than 256 entries
    a count sketch of 256 is kept: inner products are then right on average, to about 1/16 of both lengths.
    Only the opening of the paper could be had; both algorithms follow the authors' published code.
    """

    per_round: PositiveInt
    by: Literal["size", "similarity"] = "size"

    def init(self, population: Population) -> State:
        return {"direction": np.zeros((population.size, WIDTH), np.float32)} if self.by == "similarity" else {}

    def law(self, state: State, view: View) -> Array:
        return mean_count(view.population.weight * view.population.available, self.per_round)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        law = self.law(state, view)
        ids = np.argsort(-law, kind="stable")[: np.count_nonzero(law)]
        length = law[ids]
        if self.by == "similarity" and ids.size > 1:
            where, length = fill_with_groups(length, state["direction"][ids])
            ids = ids[where]
        return draw_on_line(ids, length, law, self.per_round, rng)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        if self.by == "size":
            return state
        direction, updates = state["direction"].copy(), replies.updates[:, : view.layout.parameters]
        for some in row_blocks(updates):
            rows = np.arange(some.start, some.stop)[replies.received[some]]
            direction[cohort.ids[rows]] = unit(sketch(updates[rows], view.seed))
        return {"direction": direction}


def fill_with_groups(share: Array, direction: Array) -> tuple[Array, Array]:
    """Return clients (s,) and their pieces (s,) of a line on which each unit is one distribution of Algorithm 2.

    ``share`` K ω is positive and sums to K. Whole units of clients with K ω ≥ 1 come first.
    """
    whole = np.floor(share + 1e-12)
    left = np.maximum(share - whole, 0)
    some = np.flatnonzero(left > 1e-12)
    first = np.flatnonzero(whole)
    if not some.size:
        return first, whole[first]
    share, cells = left[some], round(float(left[some].sum()))
    group = groups_of_at_most_one(share, direction[some])
    total = np.bincount(group, share)
    kept = np.argsort(-total, kind="stable")[:cells]
    pieces = np.where(group == kept[:, None], share, 0.0)  # (cells, n)
    order = np.flatnonzero(~pieces.any(0))
    order = order[np.lexsort((-share[order], group[order], -total[group[order]]))]
    ends = np.append(0.0, share[order].cumsum())
    room = np.append(0.0, (1 - total[kept]).cumsum())[:, None]
    room[-1] = np.inf  # rounding errors go to the last
    pieces[:, order] = np.diff(np.clip(ends, room[:-1], room[1:]), axis=1)
    cell, client = pieces.nonzero()
    return np.append(first, some[client]), np.append(whole[first], pieces[cell, client])


def groups_of_at_most_one(share: Array, direction: Array) -> Array:
    """Return the group (n,) of each client: the largest subtrees of Ward's tree whose shares sum to at most 1."""
    from scipy.cluster.hierarchy import fcluster, linkage  # imported here because it takes half a second

    if share.size < 2:
        return np.zeros(share.size, np.int64)
    tree, total = linkage(direction.astype(float), "ward"), share.tolist()
    for a, b in tree[:, :2].astype(int):
        total.append(total[a] + total[b])
    tree[:, 2] = total[share.size :]
    return fcluster(tree, 1 + 1e-9, "distance") - 1


def sketch(rows: Array, seed: int) -> Array:
    """Return ``WIDTH`` numbers of each row: the row itself, or its entries with random signs, added up at random."""
    k, dim = rows.shape
    if dim <= WIDTH:
        return np.pad(rows, ((0, 0), (0, WIDTH - dim)))
    rng = rng_for(seed, 0, Stream.SAMPLER)
    place, sign = rng.integers(WIDTH, size=dim), rng.integers(2, size=dim) * 2 - 1
    return np.array([np.bincount(place, sign * row, WIDTH) for row in rows]).reshape(k, WIDTH)


def unit(rows: Array) -> Array:
    """Return rows of length 1; zero rows stay as they are."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros(rows.shape), where=length > 0)
