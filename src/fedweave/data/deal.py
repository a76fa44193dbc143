"""Deal samples to clients: apportionment in whole numbers, stratified splits, and the positions of each client."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import numpy as np

from fedweave.core.settings import BadInput
from fedweave.data.columns import Array, length
from fedweave.data.dataset import Dataset
from fedweave.data.ragged import Lazy, Ragged

BLOCK = 2**16  # clients whose labels are counted together: a table of all clients and classes may not fit into memory


class Shares(NamedTuple):
    """The samples of each client: sorted int64 indices into ``data.x`` and ``data.test_x``."""

    train: Sequence[Array]  # lists of arrays, or Ragged
    test: Sequence[Array]


def apportion(weights: Array, total: int | Array, first: Array | None = None) -> Array:
    """Divide ``total`` in proportion to ``weights`` by largest remainder; the result sums to ``total``.

    Each share is its exact quota rounded down or up. Shares with the largest fractions are rounded up first, or those
    with the largest ``first`` if given; ties go to the lower index. Rows of weights (N, n) divide one total each (N,).
    """
    whole = np.asarray(total)[..., None]
    quota = weights * whole / weights.sum(-1, keepdims=True)  # exact for whole numbers below 2^53
    share = np.floor(quota).astype(np.int64)
    fraction = quota - share
    order = np.where(fraction > 0, fraction if first is None else first, -np.inf)
    up = np.arange(share.shape[-1]) < whole - share.sum(-1, keepdims=True)
    places = np.argsort(-order, axis=-1, kind="stable")
    np.put_along_axis(share, places, np.take_along_axis(share, places, -1) + up, -1)
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


def deal(labels: Array, counts: Array, rng: np.random.Generator) -> Ragged:
    """Give client i ``counts[i, c]`` random samples of label c, sorted.

    The columns of ``counts`` (N, C) need not use all samples, but may not exceed the number available.
    """
    clients, classes = counts.shape
    order = shuffled_by(labels, rng)
    sizes = np.bincount(labels, minlength=classes)
    start = np.cumsum(sizes) - sizes
    dealt = [order[start[c] : start[c] + counts[:, c].sum()] for c in range(classes)]
    owner = [np.repeat(np.arange(clients), counts[:, c]) for c in range(classes)]
    return by_owner(np.concatenate(dealt), np.concatenate(owner), clients)


def by_owner(indices: Array, owner: Array, clients: int) -> Ragged:
    """Collect the indices of each owner 0..clients-1, sorted."""
    sizes, span = np.bincount(owner, minlength=clients), int(indices.max(initial=0)) + 1
    key = owner * span + indices  # one sort of whole numbers takes a tenth of the time of one by two keys
    key.sort()
    key -= np.repeat(np.arange(clients) * span, sizes)
    return Ragged.cut(key, sizes)


def evenly(samples: int, clients: int) -> Array:
    """Return the owner (n,) of each sample where clients get equal runs of them, the first ones one more."""
    least, more = divmod(samples, clients)
    return np.repeat(np.arange(clients), least + (np.arange(clients) < more))


def by_group(group: Array, groups: Array) -> Ragged:
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
    """Fill every client (row) up to ``least`` samples, taken from the most common label of the largest client.

    The smallest client is filled first; ties go to the lower index.
    """
    counts, sizes = counts.copy(), counts.sum(1)
    poor = [(int(sizes[i]), int(i)) for i in np.flatnonzero(sizes < least)]
    rich = [(-int(sizes[i]), int(i)) for i in np.flatnonzero(sizes > least)]
    heapify(poor)
    heapify(rich)
    while poor:
        (size, mine), (other, theirs) = poor[0], rich[0]
        label = counts[theirs].argmax()
        counts[mine, label] += 1
        counts[theirs, label] -= 1
        heapreplace(poor, (size + 1, mine)) if size + 1 < least else heappop(poor)
        heapreplace(rich, (other + 1, theirs))
    return counts


def draw_subset(wanted: Array, k: int, rng: np.random.Generator) -> Array:
    """Draw k distinct places, each with a probability in proportion to ``wanted``, or 1 where that would exceed it.

    Systematic sampling in random order: exact probabilities for any sizes, and all subsets alike for equal ones.
    """
    sure = np.zeros(wanted.size, bool)
    while True:
        chance = np.where(sure, 1, (k - sure.sum()) * wanted / max(wanted[~sure].sum(), np.finfo(float).tiny))
        if not (chance > 1).any():
            break
        sure |= chance > 1
    order = rng.permutation(wanted.size)
    ends = np.append(np.cumsum(chance[order])[:-1], k) + rng.random()
    return np.sort(order[np.diff(np.floor(ends), prepend=0) > 0])


def share_classes(owned: Array, sizes: Array) -> Array:
    """Divide each class equally among its owners: from (N, C) booleans to (N, C) numbers of samples.

    Rare classes are divided first; remainders go to the owners with the fewest samples so far.
    """
    counts, so_far = np.zeros(owned.shape, np.int64), np.zeros(len(owned), np.int64)
    for c in np.argsort(sizes, kind="stable"):
        if owned[:, c].any():
            counts[:, c] = apportion(owned[:, c], int(sizes[c]), first=-so_far)
            so_far += counts[:, c]
    return counts


def deal_in_proportion(labels: Array, counts: Array, order: Array) -> Ragged:
    """Give client i test samples in the label proportions of ``counts[i]``, each within one sample of exact.

    A client gets its proportional part of the test set: at least one sample, and less than its part only if a label
    runs out. Samples are given out in the order ``order`` (``shuffled_by`` label), starting again when a label is used
    up, so clients share samples only where exact proportions require it. Labels without test samples are left out.
    """
    available = np.bincount(labels, minlength=counts.shape[1])
    counts = counts * (available > 0)
    start, used, total = np.cumsum(available) - available, np.zeros_like(available), max(1, counts.sum())
    found = list[Ragged]()
    for first in range(0, len(counts), BLOCK):
        quota = _test_quota(counts[first : first + BLOCK], available, len(labels), total)
        which, taken = np.flatnonzero(quota.any(0)), quota.sum(0)
        dealt = [order[start[c] + (used[c] + np.arange(taken[c])) % available[c]] for c in which]
        owner = [np.repeat(np.arange(len(quota)), quota[:, c]) for c in which]
        nobody = [np.empty(0, np.int64)]
        found.append(by_owner(np.concatenate(nobody + dealt), np.concatenate(nobody + owner), len(quota)))
        used += taken
    return Ragged.cut(np.concatenate([p.values for p in found]), np.concatenate([p.sizes for p in found]))


def _test_quota(counts: Array, available: Array, samples: int, total: int) -> Array:
    """Return how many test samples of each label clients get who have ``counts`` of ``total`` training samples."""
    size = counts.sum(1)
    nothing = size == 0
    counts = np.where(nothing[:, None], 1, counts)
    own = counts > 0
    fair = np.maximum(np.rint(samples * size / total), 1).astype(np.int64)
    fits = np.where(own, available * size[:, None] // np.maximum(counts, 1), samples).min(1)  # else a label runs out
    return apportion(counts, np.where(nothing, 0, np.minimum(fair, fits)))


def label_counts(data: Dataset, train: Sequence[Array]) -> Array:
    """Return how many samples of each class each client has, (N, C); no columns where samples have no class."""
    labels, clients = data.labels, len(train)
    if labels is None:
        return np.zeros((clients, 0), np.int64)
    parts = Ragged.of(train)
    place = parts.owners * data.classes + labels[parts.values]
    return np.bincount(place, minlength=clients * data.classes).reshape(clients, data.classes)


def covered(data: Dataset, train: Sequence[Array]) -> Array:
    """Return Σ_c min(C·share of class c, 1) per client (N,): C where all classes are equally common (FedDD eq. 13)."""

    def of(counts: Array) -> Array:
        return np.minimum(counts.shape[1] * counts / counts.sum(1, keepdims=True), 1).sum(1)

    blocks = range(0, len(train), BLOCK)
    return np.concatenate([of(label_counts(data, train[first : first + BLOCK])) for first in blocks])


def add_test_samples(data: Dataset, train: Sequence[Array], rng: np.random.Generator) -> Shares:
    """Add test samples in each client's own label proportions; they are dealt when they are first read."""
    parts = train if isinstance(train, Ragged) else Ragged.of([np.sort(i) for i in train])
    by_class = data.labels is not None
    labels = np.asarray(data.test_y) if by_class else np.zeros(length(data.test_y), np.int64)
    order = shuffled_by(labels, rng)

    def test() -> Ragged:
        counts = label_counts(data, parts) if by_class else parts.sizes[:, None]
        return deal_in_proportion(labels, counts, order)

    return Shares(parts, Lazy(len(parts), test))
