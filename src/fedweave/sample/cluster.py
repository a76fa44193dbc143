"""Cluster-based importance sampling: clients are grouped by the norm of their updates and drawn from every group."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings
from fedweave.core.vectors import lengths
from fedweave.data.deal import apportion
from fedweave.sample.delta import Floor, probability_with_floor
from fedweave.sample.fixed import draw_with_replacement, empty_cohort, mean_count
from fedweave.sample.importance import fill_unknown, update_norms

TURNS = 100  # most iterations of k-means, which usually converges much earlier


@settings
class ClusterIS(Sampler):
    """``per_round`` draws with replacement, p ∝ ω_i ‖u_i‖ within clusters of clients by ‖u_i‖ (a baseline of DELTA).

    ``form`` "kmeans": ``clusters`` groups by one-dimensional k-means; each gets at least one draw, the others in
    proportion to its weight Σ ω. E[count] = n_c p(i|c), so that ``InverseProbability`` is the stratified estimator.
    "bins": clustered sampling (Fraboni et al., algorithm 1) with these scores, as in the authors' code: the clients'
    shares of the K draws, largest norm first, fill K bins of size one; each bin draws one client. E[count] = K p.
    ``norms``: "last" uses the norm of each client's last update, and their mean for clients without one; "oracle" lets
    every client train first. ``floor``: the least p within a group, as a share of equal probabilities.
    ``drop_after``: from that round on, the draws of the group with the smallest norms go to the group with the largest
    (the paper's figure 7, "kmeans" only); the estimator is then biased.
    """

    per_round: PositiveInt
    clusters: PositiveInt = 2
    form: Literal["kmeans", "bins"] = "kmeans"
    norms: Literal["last", "oracle"] = "last"
    floor: Floor = 1e-3
    drop_after: PositiveInt | None = None

    def oracle(self) -> bool:
        return self.norms == "oracle"

    def init(self, population: Population) -> State:
        return {"norm": np.full(population.size, np.nan)} if self.norms == "last" else {}

    def groups(self, state: State, view: View) -> list[tuple[Array, int]]:
        """Return each cluster's law (N,), zero for the clients of others, and its number of draws."""
        p, norm = view.population, self._norms(state, view)
        if not (p.available & (p.weight > 0)).any():
            return []
        if self.form == "bins":
            return _bins(probability_with_floor(p.weight * norm, p.available, self.floor), norm, self.per_round)
        members = [
            m for m in group_by_value(norm, p.available, min(self.clusters, self.per_round)) if p.weight[m].any()
        ]
        draws = 1 + apportion(np.array([p.weight[m].sum() for m in members]), self.per_round - len(members))
        if self.drop_after is not None and view.round > self.drop_after and len(members) > 1:
            members, draws = members[1:], np.append(draws[1:-1], draws[-1] + draws[0])
        laws = [
            mean_count(probability_with_floor(p.weight * norm, m, self.floor), int(k))
            for m, k in zip(members, draws, strict=True)
        ]
        return list(zip(laws, draws.tolist(), strict=True))

    def _norms(self, state: State, view: View) -> Array:
        if self.norms == "last":
            return fill_unknown(state["norm"])
        return fill_unknown(lengths(view.probes.updates(np.arange(view.population.size))))

    def law(self, state: State, view: View) -> Array:
        return np.sum([law for law, _ in self.groups(state, view)], axis=0) + np.zeros(view.population.size)

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        groups = self.groups(state, view)
        if not groups:
            return empty_cohort()
        count = np.zeros(view.population.size, np.int64)
        for law, draws in groups:
            some = draw_with_replacement(law, draws, rng)
            count[some.ids] += some.count
        ids = np.flatnonzero(count)
        return Cohort(ids=ids, count=count[ids], expected=np.sum([law for law, _ in groups], axis=0)[ids])

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        return {"norm": update_norms(state["norm"], cohort, replies)} if self.norms == "last" else state


def group_by_value(values: Array, able: Array, clusters: int) -> list[Array]:
    """Return masks (N,) of at most ``clusters`` groups of able clients, by one-dimensional k-means, smallest first.

    Lloyd's iteration from evenly spaced centres; in one dimension the groups are intervals of the sorted values. A
    centre without nearest clients is dropped.
    """
    points = np.sort(values[able])
    centres = np.linspace(points[0], points[-1], 2 * clusters + 1)[1::2]
    for _ in range(TURNS):
        before, middles = centres, (centres[1:] + centres[:-1]) / 2
        centres = np.array([g.mean() for g in np.split(points, points.searchsorted(middles)) if g.size])
        if np.array_equal(centres, before):
            break
    nearest = ((centres[1:] + centres[:-1]) / 2).searchsorted(values, side="right")
    return [m for m in (able & (nearest == c) for c in range(centres.size)) if m.any()]


def _bins(p: Array, norm: Array, draws: int) -> list[tuple[Array, int]]:
    """Return K laws of one draw each that sum to K·p: all shares in a row, largest norm first, cut into unit pieces."""
    order = np.argsort(-norm, kind="stable")
    ends = np.append(0.0, (p[order] * draws).cumsum())
    cuts = np.arange(draws + 1) * (ends[-1] / draws)
    laws = []
    for low, high in pairwise(cuts):
        law = np.zeros(p.size)
        law[order] = np.diff(np.clip(ends, low, high))
        laws.append((law, 1))
    return laws
