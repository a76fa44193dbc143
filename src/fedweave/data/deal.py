"""Deal samples to clients: apportionment in whole numbers, stratified splits, and index lists per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data.columns import Array, length
from fedweave.data.dataset import Dataset


class Shares(NamedTuple):
    """The samples of each client: sorted int64 indices into ``data.x`` and ``data.test_x``."""

    train: list[Array]
    test: list[Array]


def apportion(weights: Array, total: int, first: Array | None = None) -> Array:
    """Divide ``total`` in proportion to ``weights`` by largest remainder; the result sums to ``total``.

    Each share is its exact quota rounded down or up. Shares with the largest fractions are rounded up first, or those
    with the largest ``first`` if given; ties go to the lower index.
    """
    quota = weights * total / weights.sum()  # exact for whole numbers below 2^53
    share = np.floor(quota).astype(np.int64)
    fraction = quota - share
    order = np.where(fraction > 0, fraction if first is None else first, -np.inf)
    share[np.argsort(-order, kind="stable")[: total - share.sum()]] += 1
    return share


def shuffled_by(key: Array, rng: np.random.Generator) -> Array:
    """Return all indices sorted by ``key``, in random order among equal keys."""
    mixed = rng.permutation(len(key))
    return mixed[np.argsort(key[mixed], kind="stable")]


def stratified_split(strata: Array, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Split indices into (rest, ``share`` of them) with every stratum in proportion and none emptied."""
    sizes = np.bincount(strata)
    take = apportion(sizes, max(1, round(share * len(strata))))
    take = np.minimum(take, np.maximum(sizes - 1, 0))
    if not take.any():
        raise BadInput(
            f"Every label or group occurs once in {len(strata)} samples, so none can be set aside "
            "for testing. Give test samples too."
        )
    order = shuffled_by(strata, rng)
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[strata[order]]
    chosen = rank < take[strata[order]]
    return np.sort(order[~chosen]), np.sort(order[chosen])


def deal(labels: Array, counts: Array, rng: np.random.Generator) -> list[Array]:
    """Give client i ``counts[i, c]`` random samples of label c; every list is sorted.

    The columns of ``counts`` (N, C) need not use all samples, but may not exceed the number available.
    """
    clients, classes = counts.shape
    order = shuffled_by(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    start = np.cumsum(sizes) - sizes
    dealt = [order[start[c] : start[c] + counts[:, c].sum()] for c in range(classes)]
    owner = [np.repeat(np.arange(clients), counts[:, c]) for c in range(classes)]
    return by_owner(np.concatenate(dealt), np.concatenate(owner), clients)


def by_owner(indices: Array, owner: Array, clients: int) -> list[Array]:
    """Collect the indices of each owner 0..clients-1, sorted."""
    mine = indices[np.lexsort((indices, owner))].astype(np.int64)
    return np.split(mine, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def by_group(group: Array, groups: Array) -> list[Array]:
    """Collect the indices of each of the sorted ``groups``; other samples are left out."""
    place = np.minimum(np.searchsorted(groups, group), len(groups) - 1)
    mine = np.flatnonzero(groups[place] == group)
    return by_owner(mine, place[mine], len(groups))


def dirichlet(alpha: float, n: int, rng: np.random.Generator) -> Array:
    """Draw n shares from Dirichlet(α) for any α > 0.

    Uses G(α) = G(α + 1) U^(1/α) in logarithms, because for small α every G underflows to 0 and the shares to 0 / 0.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, n)) - rng.standard_exponential(n) / max(alpha, 1e-300)
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def fill_up(counts: Array, least: int) -> Array:
    """Fill every client (row) up to ``least`` samples, taken from the most common label of the largest client."""
    counts, sizes = counts.copy(), counts.sum(1)
    while sizes.min() < least:
        poor, rich = sizes.argmin(), sizes.argmax()
        label = counts[rich].argmax()
        counts[[poor, rich], label] += 1, -1
        sizes[[poor, rich]] += 1, -1
    return counts


def share_classes(owned: Array, sizes: Array) -> Array:
    """Divide each class equally among its owners: from (N, C) booleans to (N, C) numbers of samples.

    Rare classes are divided first; remainders go to the owners with the fewest samples so far.
    """
    counts = np.zeros(owned.shape, np.int64)
    for c in np.argsort(sizes, kind="stable"):
        if owned[:, c].any():
            counts[:, c] = apportion(owned[:, c], int(sizes[c]), first=-counts.sum(1))
    return counts


def deal_in_proportion(labels: Array, counts: Array, rng: np.random.Generator) -> list[Array]:
    """Give client i test samples in the label proportions of ``counts[i]``, each within one sample of exact.

    A client gets its proportional part of the test set: at least one sample, and less than its part only if a label
    runs out. Samples are given out in a random order, starting again when a label is used up, so clients share samples
    only where exact proportions require it. Labels without test samples are left out.
    """
    available = np.bincount(labels, minlength=counts.shape[1])
    counts = np.where(available > 0, counts, 0)
    order = shuffled_by(labels, rng)
    start = np.cumsum(available) - available
    used = np.zeros_like(available)
    parts: list[Array] = []
    for row in counts:
        quota = _test_quota(row, available, fair=len(labels) * row.sum() / max(1, counts.sum()))
        mine = [order[start[c] + (used[c] + np.arange(quota[c])) % available[c]] for c in np.flatnonzero(quota)]
        used += quota
        parts.append(np.sort(np.concatenate([np.empty(0, np.int64), *mine])))
    return parts


def _test_quota(row: Array, available: Array, fair: float) -> Array:
    if not row.any():
        return np.zeros_like(available)
    own = row > 0
    fits = int((available[own] * row.sum() // row[own]).min())  # beyond this a label would run out
    return apportion(row, min(max(1, round(fair)), fits))


def label_counts(data: Dataset, train: Sequence[Array]) -> Array:
    """Return how many samples of each class each client has, (N, C); no columns where samples have no class."""
    labels = data.labels
    if labels is None:
        return np.zeros((len(train), 0), np.int64)
    return np.stack([np.bincount(labels[i], minlength=data.classes) for i in train])


def covered(labels: Array) -> Array:
    """Return Σ_c min(C·share of class c, 1) per client (N,): C where all classes are equally common (FedDD eq. 13)."""
    return np.minimum(labels.shape[1] * labels / labels.sum(1, keepdims=True), 1).sum(1)


def add_test_samples(data: Dataset, train: Sequence[Array], rng: np.random.Generator) -> Shares:
    """Add test samples in each client's own label proportions."""
    if data.labels is not None:
        counts, labels = label_counts(data, train), np.asarray(data.test_y)
    else:
        counts, labels = np.array([[len(i)] for i in train]), np.zeros(length(data.test_y), np.int64)
    return Shares([np.sort(i) for i in train], deal_in_proportion(labels, counts, rng))
