"""Many arrays in one: they read like a list of arrays, and partitions deal as to one client after another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from fedweave.core.settings import BadInput
from fedweave.data import Dataset, from_arrays
from fedweave.data.columns import arrays, each
from fedweave.data.deal import add_test_samples, apportion, covered, dirichlet, fill_up, label_counts, shuffled_by
from fedweave.data.partition import IID, Classes, Dirichlet, Natural, OneClass, Partition, Shards, Split
from fedweave.data.ragged import Lazy, Ragged

lists = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=9)


def same(found, wanted):
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == np.int64
        assert mine.tolist() == list(theirs)


@given(lists, st.integers(-12, 12), st.slices(9))
def test_it_reads_like_a_list_of_arrays(parts, place, some):
    ragged = Ragged.of([np.array(part, np.int64) for part in parts])
    same(ragged, parts)
    same(ragged[some], parts[some])
    same(list(reversed(ragged)), parts[::-1])
    assert ragged.sizes.tolist() == [len(part) for part in parts]
    assert ragged.owners.tolist() == [i for i, part in enumerate(parts) for _ in part]
    for where in (place, np.int64(place)):
        if -len(parts) <= place < len(parts):
            assert ragged[where].tolist() == parts[place]
        else:
            with pytest.raises(IndexError):
                ragged[where]
    same(pickle.loads(pickle.dumps(ragged)), parts)
    same(Ragged.of([np.array(part, np.uint8) for part in parts]), parts)  # any whole numbers
    assert Ragged.of(ragged) is ragged
    same(each(ragged, np.array), parts)
    assert [a.size for _, a in arrays(ragged)] == [sum(map(len, parts)), len(parts) + 1]


def test_parts_are_views_and_only_whole_numbers_are_taken():
    ragged = Ragged.cut(np.arange(6), np.array([2, 0, 4]))
    assert all(np.shares_memory(part, ragged.values) for part in (ragged[0], ragged[2], ragged[1:][1]))
    with pytest.raises(TypeError):
        Ragged.of([np.array([0.5])])


@pytest.mark.parametrize("width", [1, 2, 9, 100])
def test_means_are_those_of_one_array_after_another_to_the_bit(width, monkeypatch):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((500, width)) * 10.0 ** rng.integers(-3, 4, (500, 1))).astype(np.float32)
    sizes = np.concatenate([np.repeat([1, 2, 7, 8, 9], 900), rng.integers(1, 40, 300), [129, 1000, 1000]])
    parts = Ragged.cut(rng.integers(0, 500, sizes.sum()), sizes)
    monkeypatch.setattr("fedweave.data.ragged.AT_A_TIME", 10**4)
    assert np.array_equal(parts.means(x), [x[part].mean(0, dtype=float) for part in parts])


def test_lazy_parts_are_made_when_one_is_read():
    made = []

    def make() -> Ragged:
        made.append(1)
        return Ragged.cut(np.arange(3), np.array([1, 2]))

    lazy = Lazy(2, make)
    assert (len(lazy), bool(lazy), made) == (2, True, [])
    same(lazy, [[0], [1, 2]])
    same(pickle.loads(pickle.dumps(Lazy(2, make))), [[0], [1, 2]])
    same(Ragged.of(lazy), [[0], [1, 2]])
    assert made == [1, 1]


# One client after another


def fill_up_slowly(counts, least):
    counts = counts.copy()
    while counts.sum(1).min() < least:
        poor, rich = counts.sum(1).argmin(), counts.sum(1).argmax()
        label = counts[rich].argmax()
        counts[poor, label] += 1
        counts[rich, label] -= 1
    return counts


def deal_slowly(labels, counts, rng):
    order = shuffled_by(labels, rng)
    left = {c: [i for i in order if labels[i] == c] for c in range(counts.shape[1])}
    hands = [[] for _ in counts]
    for c, samples in left.items():
        for hand, count in zip(hands, counts[:, c], strict=True):
            hand += samples[:count]
            del samples[:count]
    return hands


def test_slowly(labels, counts, rng):
    """Each client in turn: its part of the test set by largest remainder, each label's samples in a circle."""
    order, available = shuffled_by(labels, rng), np.bincount(labels, minlength=counts.shape[1])
    piles = {c: [int(i) for i in order if labels[i] == c] for c in range(counts.shape[1])}
    counts = np.array([[n if available[c] else 0 for c, n in enumerate(row)] for row in counts])
    total, parts = max(1, int(counts.sum())), []
    for row in counts:
        mine: list[int] = []
        if row.any():
            fits = min(int(available[c]) * int(row.sum()) // int(row[c]) for c in np.flatnonzero(row))
            wanted = min(max(1, round(len(labels) * int(row.sum()) / total)), fits)
            for c, n in enumerate(apportion(row, wanted)):
                mine += piles[c][:n]
                piles[c] = piles[c][n:] + piles[c][:n]
        parts.append(mine)
    return parts


test_slowly.__test__ = False  # pyright: ignore[reportFunctionMemberAccess] - no test, but of test samples


def train_slowly(partition: Partition, data: Dataset, rng: np.random.Generator):
    n, clients, labels = len(data), partition.clients or 0, data.y
    if isinstance(partition, IID):
        return np.array_split(rng.permutation(n), clients)
    if isinstance(partition, Dirichlet):
        columns = [apportion(dirichlet(partition.alpha, clients, rng), int(k)) for k in np.bincount(labels)]
        return deal_slowly(labels, fill_up_slowly(np.stack(columns, axis=1), partition.min_samples), rng)
    if isinstance(partition, Shards):
        shards = np.array_split(shuffled_by(labels, rng), clients * partition.per_client)
        hands = rng.permutation(len(shards)).reshape(clients, -1)
        return [np.concatenate([shards[b] for b in hand]) for hand in hands]
    if isinstance(partition, Split):
        owners, first = round(partition.owners * clients), round(partition.share * n)
        order = shuffled_by(rng.permutation(data.classes)[labels], rng)
        rest = np.array_split(rng.permutation(order[first:]), clients - owners)
        return [*np.array_split(order[:first], owners), *rest]
    assert isinstance(partition, Classes)
    sizes = np.bincount(labels, minlength=data.classes)
    present, owned = np.flatnonzero(sizes), np.zeros((clients, data.classes), bool)
    number = rng.integers(partition.low, partition.high or partition.low, clients, endpoint=True)
    for i, k in enumerate(number):
        order = np.lexsort((rng.random(len(present)), owned[:, present].sum(0)))
        owned[i, present[order[:k]]] = True
    counts = np.zeros(owned.shape, np.int64)
    for c in np.argsort(sizes, kind="stable"):
        if owned[:, c].any():
            counts[:, c] = apportion(owned[:, c], int(sizes[c]), first=-counts.sum(1))
    return deal_slowly(labels, counts, rng)


def partitions(clients: int) -> st.SearchStrategy[Partition]:
    return st.one_of(
        st.just(IID(clients)),
        st.builds(Dirichlet, st.just(clients), st.floats(1e-3, 10), st.integers(1, 3)),
        st.builds(Shards, st.just(clients), st.integers(1, 3)),
        st.builds(Classes, st.just(clients), st.integers(1, 3)),
        st.builds(Split, st.just(clients), st.floats(0.05, 0.95), st.floats(0.05, 0.95)),
    )


def labelled(sizes: list[int], test_sizes: list[int]) -> Dataset:
    y, t = (np.repeat(np.arange(len(counts)), counts) for counts in (sizes, test_sizes))
    y = np.random.default_rng(1).permutation(y)
    return from_arrays(np.arange(len(y))[:, None], y, np.arange(len(t))[:, None], t, classes=len(sizes))


@given(
    st.integers(1, 12).flatmap(partitions),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(0, 99),
)
@settings(max_examples=250, deadline=None)
def test_every_partition_deals_as_one_client_after_another(partition, sizes, seed):
    assume(any(test for _, test in sizes))
    data, rng = labelled([a for a, _ in sizes], [b for _, b in sizes]), np.random.default_rng(seed)
    try:
        shares = partition.split(data, rng)
    except BadInput:
        reject()
    slow = np.random.default_rng(seed)
    train = [sorted(part) for part in train_slowly(partition, data, slow)]
    same(shares.train, train)
    counts = np.array([np.bincount(data.y[part], minlength=data.classes) for part in train])
    same(shares.test, [sorted(part) for part in test_slowly(data.test_y, counts, slow)])
    assert rng.random() == slow.random()  # what is dealt later draws nothing later
    assert np.array_equal(label_counts(data, shares.train), counts)
    whole = [np.minimum(data.classes * row / row.sum(), 1).sum() for row in counts]
    assert np.array_equal(covered(data, shares.train), whole)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_natural_clients_get_their_own_samples(groups, clients, seed):
    group = np.array(groups) * 3  # not every number is a client
    data = from_arrays(
        np.eye(group.size), np.arange(group.size) % 2, np.ones((9, group.size)), np.arange(9) % 2, group=group
    )
    assume(clients <= np.unique(group).size)
    found = np.sort(np.random.default_rng(seed).choice(np.unique(data.group), clients, replace=False))
    shares = Natural(clients).split(data, np.random.default_rng(seed))
    same(shares.train, [np.flatnonzero(data.group == g) for g in found])


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=9), st.integers(1, 4))
def test_filling_up_takes_from_the_largest_one_sample_at_a_time(counts, least):
    table = np.array(counts)
    assume(table.sum() >= least * len(table))
    assert np.array_equal(fill_up(table, least), fill_up_slowly(table, least))


def test_blocks_of_clients_change_nothing(monkeypatch):
    data, rng = labelled([40, 30, 20], [4, 3, 2]), np.random.default_rng
    whole = Dirichlet(23, 0.3).split(data, rng(0))
    test, coverage = list(whole.test), covered(data, whole.train)
    monkeypatch.setattr("fedweave.data.deal.BLOCK", 4)
    again = Dirichlet(23, 0.3).split(data, rng(0))
    same(again.test, [part.tolist() for part in test])
    assert np.array_equal(covered(data, again.train), coverage)


def test_one_class_sorted_and_lists_of_own_partitions():
    data = labelled([30, 30], [6, 6])
    shares = OneClass(4, "sorted").split(data, np.random.default_rng(0))
    assert [set(data.y[part]) for part in shares.train] == [{0}, {0}, {1}, {1}]
    lists = [part[::-1] for part in shares.train]
    again = add_test_samples(data, lists, np.random.default_rng(0))  # as an own partition may call it
    same(again.train, [part.tolist() for part in shares.train])
