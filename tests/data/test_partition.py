"""Laws of every partition, and the hand-worked cases of the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from fedweave.core.settings import BadInput
from fedweave.data import Dataset, from_arrays, imbalance, load, synthetic
from fedweave.data.deal import Shares, apportion, deal_in_proportion, dirichlet, draw_subset, fill_up, stratified_split
from fedweave.data.partition import (
    IID,
    Auto,
    Classes,
    Dirichlet,
    Natural,
    OneClass,
    Partition,
    Shards,
    Split,
    forms,
    label_counts,
    parse,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labelled(sizes: list[int], test_sizes: list[int] | None = None) -> Dataset:
    """Samples that are their own index, ``sizes[c]`` of class c in a mixed order."""
    y = rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    t = np.repeat(np.arange(len(sizes)), test_sizes or sizes)
    x, test_x = np.arange(len(y))[:, None], np.arange(len(t))[:, None]
    return from_arrays(x, y, test_x, t, name="made", classes=len(sizes))


DEALS = st.sampled_from(["even", "random"])


def partitions(clients: int) -> st.SearchStrategy[Partition]:
    alpha = st.floats(1e-6, 1e6)
    return st.one_of(
        st.just(IID(clients)),
        st.builds(Dirichlet, st.just(clients), alpha, st.integers(1, 2)),
        st.builds(Shards, st.just(clients), st.integers(1, 3)),
        st.builds(Classes, st.just(clients), st.integers(1, 3)),
        st.builds(
            Classes, st.just(clients), st.integers(1, 3), deal=DEALS, rare=st.sampled_from(["samples", "owners"])
        ),
        st.builds(lambda low, more: Classes(clients, low, low + more), st.integers(1, 2), st.integers(0, 3)),
        st.just(OneClass(clients)),
        st.builds(Split, st.just(clients), st.floats(0.05, 0.95), st.floats(0.05, 0.95)),
    )


cases = st.integers(1, 12).flatmap(
    lambda n: st.tuples(partitions(n), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 99))
)


def covers(partition: Partition, data: Dataset) -> bool:
    """Whether the partition promises to deal out everything: not if classes outnumber owners, or by chance."""
    if isinstance(partition, Classes) and partition.deal == "random":
        return False
    least = {Classes: getattr(partition, "low", 1), OneClass: 1}.get(type(partition), data.classes)
    return (partition.clients or 0) * least >= (np.bincount(data.y) > 0).sum()


def must_work(partition: Partition, data: Dataset) -> bool:
    """Whether there are samples enough, where counting them is all it takes."""
    each = {
        IID: 1,
        Dirichlet: getattr(partition, "min_samples", 1),
        Shards: getattr(partition, "per_client", 1),
    }
    needed = each.get(type(partition), len(data.y) + 1) * (partition.clients or 0)
    return len(data.y) >= needed


def dealt(partition: Partition, data: Dataset, seed: int) -> Shares:
    """Return the clients' shares; a case with too few samples is refused, and another one is drawn."""
    try:
        return partition.split(data, rng(seed))
    except BadInput:
        assert not must_work(partition, data)
        reject()


@given(cases)
@settings(max_examples=250, deadline=None)
def test_every_partition_is_disjoint_complete_and_never_empty(case: tuple[Partition, list[int], int]):
    partition, sizes, seed = case
    assume(sum(sizes) > 0)
    data = labelled(sizes)
    train, test = dealt(partition, data, seed)
    together = np.concatenate(train)
    assert len(train) == len(test) == partition.clients
    assert all(len(i) > 0 and i.dtype == np.int64 for i in train)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(data.y)
    if covers(partition, data):
        assert len(together) == len(data.y)


@given(cases)
@settings(max_examples=100, deadline=None)
def test_test_samples_follow_the_clients_own_labels(case: tuple[Partition, list[int], int]):
    partition, sizes, seed = case
    assume(sum(sizes) > 0)
    data = labelled(sizes, [max(1, n // 3) for n in sizes])
    train, test = dealt(partition, data, seed)
    for own, mine in zip(label_counts(data, train), test, strict=True):
        got = np.bincount(data.test_y[mine], minlength=data.classes)
        assert len(np.unique(mine)) == len(mine) > 0
        assert np.abs(got - own / own.sum() * got.sum()).max() < 1  # nothing nearer in whole samples


@given(cases)
@settings(max_examples=40, deadline=None)
def test_same_seed_same_shares(case: tuple[Partition, list[int], int]):
    partition, sizes, seed = case
    assume(sum(sizes) > 0)
    data = labelled(sizes)
    a, b = dealt(partition, data, seed), dealt(partition, data, seed)
    for x, y in zip([*a.train, *a.test], [*b.train, *b.test], strict=True):
        assert np.array_equal(x, y)


@pytest.mark.parametrize(
    "partition", [IID(10), Dirichlet(10, 0.5), Shards(10), Classes(10, 2), OneClass(10), Split(10)]
)
def test_another_seed_gives_other_shares(partition: Partition):
    data = labelled([100] * 10)
    a, b = partition.split(data, rng(0)), partition.split(data, rng(1))
    assert any(not np.array_equal(x, y) for x, y in zip(a.train, b.train, strict=True))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(lambda w: sum(w) > 1e-3), st.integers(0, 500))
def test_apportion_rounds_each_quota_and_keeps_the_total(weights: list[float], total: int):
    w = np.array(weights)
    share = apportion(w, total)
    assert share.sum() == total
    assert (np.abs(share - w / w.sum() * total) < 1 + 1e-9).all()


def test_apportion_by_hand():
    assert apportion(np.array([50, 30, 20]), 7).tolist() == [4, 2, 1]  # 3.5 2.1 1.4: the half goes up
    assert apportion(np.array([1, 1, 0, 1]), 4).tolist() == [2, 1, 0, 1]  # a tie: the first
    assert apportion(np.array([1, 1, 0, 1]), 4, first=np.array([0, 1, 9, 2])).tolist() == [1, 1, 0, 2]


def test_stratified_by_hand():
    rest, taken = stratified_split(np.repeat([0, 1, 2], [10, 5, 1]), 0.2, rng())
    assert np.bincount(np.repeat([0, 1, 2], [10, 5, 1])[taken]).tolist() == [2, 1]  # the lone one stays
    assert sorted([*rest, *taken]) == list(range(16))


def test_filled_takes_the_commonest_label_of_the_largest_client():
    counts = np.array([[5, 1], [0, 0], [0, 3]])
    assert fill_up(counts, 1).tolist() == [[4, 1], [1, 0], [0, 3]]
    assert fill_up(counts, 2).tolist() == [[3, 1], [2, 0], [0, 3]]


def test_follow_hands_round_before_it_repeats():
    labels = np.array([0] * 6)
    parts = deal_in_proportion(labels, np.array([[2], [2], [2]]), np.arange(6))
    assert sorted(np.concatenate(parts)) == list(range(6))
    many = deal_in_proportion(
        labels, np.ones((12, 1), int), np.arange(6)
    )  # fewer test samples than clients: all used, twice
    assert np.bincount(np.concatenate(many)).tolist() == [2] * 6


@pytest.mark.parametrize("alpha", [5e-324, 1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e300])
@pytest.mark.parametrize("clients", [1, 2, 50])
def test_dirichlet_at_any_alpha(alpha: float, clients: int):
    shares = dirichlet(alpha, clients, rng())
    assert np.isfinite(shares).all()
    assert shares.sum() == pytest.approx(1)
    train = Dirichlet(clients, alpha).split(labelled([60] * 5), rng()).train
    assert min(map(len, train)) >= 1
    assert sum(map(len, train)) == 300


def test_dirichlet_has_the_moments_of_its_law():
    alpha, n = 0.7, 4
    draws = np.stack([dirichlet(alpha, n, rng(s)) for s in range(4000)])
    variance = (n - 1) / n**2 / (n * alpha + 1)  # of one share
    error = 5 * np.sqrt(variance / 4000)
    assert np.abs(draws.mean(0) - 1 / n).max() < error
    assert draws.var(0) == pytest.approx(np.full(n, variance), rel=0.1)


def test_large_alpha_is_even_and_small_alpha_is_concentrated():
    data = labelled([600] * 10)
    even = label_counts(data, Dirichlet(10, 1e6).split(data, rng()).train)
    assert np.abs(even - 60).max() <= 2
    skewed = label_counts(data, Dirichlet(10, 1e-4).split(data, rng()).train)
    assert (skewed.max(0) >= 590).all()  # each class lies with one client, but for what fills up the others


def test_dirichlet_min_samples():
    data = labelled([100] * 3)
    assert min(map(len, Dirichlet(20, 0.01, min_samples=10).split(data, rng()).train)) >= 10


def test_shards_of_the_pathological_setting():
    data = labelled([600] * 10)
    train = Shards(100, per_client=2).split(data, rng()).train  # 200 blocks of 30, each of one label
    assert all(len(i) == 60 for i in train)
    assert (label_counts(data, train) > 0).sum(1).max() <= 2


def test_half_of_the_classes_in_equal_volume():
    data = labelled([100] * 10)  # LatencySel: 10 clients, 5 of 10 classes each
    counts = label_counts(data, Classes(10, 5).split(data, rng()).train)
    assert (counts.sum(1) == 100).all()
    assert ((counts > 0).sum(1) == 5).all()
    assert ((counts > 0).sum(0) == 5).all()


def test_a_random_number_of_classes():
    data = labelled([500] * 10)  # FedDD Non-IID-a
    owned = (label_counts(data, Classes(100, 2, 10).split(data, rng()).train) > 0).sum(1)
    assert set(owned) == set(range(2, 11))


def test_classes_at_random_are_a_draw_of_each_client_by_itself():
    """Owners of a class are then binomial: mean n k/C and variance n k/C (1 − k/C), and pairs as likely as chance."""
    data, n, k = labelled([400] * 10), 40, 3
    owned = [label_counts(data, Classes(n, k, deal="random").split(data, rng(s)).train) > 0 for s in range(200)]
    assert all((some.sum(1) == k).all() for some in owned)
    owners = np.array([some.sum(0) for some in owned])  # (200, 10)
    assert owners.mean() == pytest.approx(n * k / 10)
    assert owners.var() == pytest.approx(n * 0.3 * 0.7, rel=0.15)
    together = np.mean([some[:, 0] & some[:, 1] for some in owned])
    assert together == pytest.approx(3 / 10 * 2 / 9, rel=0.15)
    even = label_counts(data, Classes(n, k).split(data, rng()).train) > 0
    assert (even.sum(0) == n * k / 10).all()


@pytest.mark.parametrize("deal", ["even", "random"])
def test_rare_classes_have_fewer_samples_or_fewer_owners(deal):
    """Seven classes of 1000 samples and three of 400: FedDD's section 6.7 in both readings."""
    data, n = labelled([400] * 3 + [1000] * 7), 50
    found = {}
    for rare in ("samples", "owners"):
        some = [label_counts(data, Classes(n, 3, None, deal, rare).split(data, rng(s)).train) for s in range(40)]
        counts = np.array(some)
        owners = (counts > 0).sum(1).mean(0)
        found[rare] = owners[:3].mean() / owners[3:].mean(), counts[..., :3].sum() / counts[..., 3:].sum()
        assert ((counts > 0).sum(2) == 3).all()
    assert found["samples"][0] == pytest.approx(1, rel=0.1)
    assert found["owners"][0] == pytest.approx(0.4, rel=0.1)
    assert found["samples"][1] == pytest.approx(found["owners"][1], rel=0.02)  # the data as a whole is the same


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=6), st.data())
def test_a_subset_is_drawn_with_exact_probabilities(wanted, data):
    """Every place by its share, capped at one, over all starts of the systematic draw: by a fine grid of them."""
    w = np.array(wanted)
    k = data.draw(st.integers(1, w.size))
    found = np.zeros(w.size)

    class Grid:
        def permutation(self, n):
            return np.arange(n)

    starts = (np.arange(400) + 0.5) / 400
    for u in starts:
        grid = Grid()
        grid.random = lambda u=u: u
        drawn = draw_subset(w, k, grid)
        assert drawn.size == k
        found[drawn] += 1 / starts.size
    expected = np.full(w.size, np.nan)
    for sure in range(w.size + 1):  # the largest are sure: the first cut that leaves no other above one
        order = np.argsort(-w, kind="stable")
        rest = order[sure:]
        expected[order[:sure]] = 1
        expected[rest] = (k - sure) * w[rest] / w[rest].sum() if rest.size else 1
        if (expected <= 1 + 1e-12).all():
            break
    assert found == pytest.approx(expected, abs=2 / 400)


def test_one_class_shared_equally():
    data = labelled([60] * 10)  # FedACS: 20 clients, two per digit
    counts = label_counts(data, OneClass(20).split(data, rng()).train)
    assert ((counts > 0).sum(1) == 1).all()
    assert (counts.sum(1) == 30).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_split_is_deltas_split_fashion_mnist(seed: int):
    data = labelled([6000] * 10, [1000] * 10)
    train, test = Split(109, owners=9 / 109, share=0.9).split(data, rng(seed))
    counts = label_counts(data, train)
    assert (counts[:9].max(1) == 6000).all()
    assert [len(i) for i in train] == [6000] * 9 + [60] * 100
    assert ((counts > 0).sum(1) == 1).all()
    assert len(set(counts[:9].argmax(1))) == 9
    assert len(set(counts[9:].argmax(1))) == 1
    assert [len(i) for i in test] == [1000] * 9 + [10] * 100


def test_natural_clients_keep_their_own_samples():
    group, test_group = ["b", "a", "b", "c", "a", "b"], ["c", "b", "a", "a"]
    y, t = [0, 1, 0, 1, 0, 1], [0, 1, 0, 1]
    data = from_arrays(np.eye(6), y, np.eye(6)[:4], t, group=group, test_group=test_group)
    train, test = Natural().split(data, rng())
    assert [i.tolist() for i in train] == [[1, 4], [0, 2, 5], [3]]
    assert [i.tolist() for i in test] == [[2, 3], [1], [0]]


@given(st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_some_natural_clients(clients: int, seed: int):
    data = synthetic.classification(30, samples=5, features=3)
    train, test = Natural(clients).split(data, rng(seed))
    assert data.group is not None
    assert data.test_group is not None
    for mine, other in zip(train, test, strict=True):
        (who,) = set(data.group[mine])
        assert np.array_equal(mine, np.flatnonzero(data.group == who))
        assert np.array_equal(other, np.flatnonzero(data.test_group == who))


def test_natural_without_test_groups_follows_labels():
    y = [0, 0, 1, 1]
    data = from_arrays(np.eye(4), y, np.eye(4), y, group=[0, 0, 1, 1])
    _, test = Natural().split(data, rng())
    assert [set(data.test_y[i]) for i in test] == [{0}, {1}]


@pytest.mark.parametrize("partition", [IID(7), Split(10, 0.2, 0.8), Natural(3)])
def test_regression_data_can_be_dealt(partition: Partition):
    data = synthetic.regression(clients=5, samples=40)
    train, test = partition.split(data, rng())
    assert len(np.unique(np.concatenate(train))) == sum(map(len, train))
    assert min(map(len, train)) > 0
    assert min(map(len, test)) > 0


def test_split_of_regression_data_blocks_by_target():
    data = synthetic.regression(clients=1, samples=100)
    train = Split(10, 0.2, 0.8).split(data, rng()).train
    assert data.y[train[0]].max() <= data.y[train[1]].min()


@pytest.mark.parametrize("partition", [Dirichlet(3, 1), Shards(3), Classes(3, 2), OneClass(3)])
def test_regression_data_has_no_classes(partition: Partition):
    with pytest.raises(BadInput, match=f"{type(partition).__name__}.* no classes. Use IID, Split or Natural"):
        partition.split(synthetic.regression(2, 20), rng())


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (IID(31), "at least 31 training samples, made has 30. Use fewer clients"),
        (Dirichlet(11, 0.1, min_samples=3), "at least 33 training"),
        (Shards(16), "at least 32 training"),
        (Classes(3, 4), "4 classes per client, made has 3"),
        (OneClass(40), "OneClass.*at least 40"),
        (Split(4), "0 owners and 4 others"),
        (Split(20, 0.1, 0.9), "27 samples to 2 owners and 3 to 18 others"),
        (Natural(), "made has no natural clients"),
    ],
)
def test_too_many_clients_are_refused_with_numbers(partition: Partition, message: str):
    with pytest.raises(BadInput, match=message):
        partition.split(labelled([10, 10, 10]), rng())


def test_more_natural_clients_than_there_are():
    data = from_arrays(np.eye(4), [0, 1, 0, 1], np.eye(4), [0, 1, 0, 1], group=[0, 0, 1, 1])
    with pytest.raises(BadInput, match="asks for 3 clients, arrays has 2"):
        Natural(3).split(data, rng())


def test_label_counts_by_hand():
    data = from_arrays(np.eye(5), [0, 2, 2, 1, 0], np.eye(5), [0] * 5)
    assert label_counts(data, [np.array([0, 1]), np.array([2, 4])]).tolist() == [[1, 0, 1], [1, 0, 1]]
    assert label_counts(synthetic.regression(2, 5), [np.array([0])]).shape == (1, 0)


def test_imbalance_thins_the_rare_classes():
    data = labelled([50] * 5)
    thin = imbalance(data, rare=(0, 3), keep=0.4, rng=rng())
    assert np.bincount(thin.y).tolist() == [20, 50, 50, 20, 50]
    assert np.array_equal(data.y[thin.x[:, 0].astype(int)], thin.y)  # samples keep their labels
    assert len(thin.test_y) == 250
    assert imbalance(load("digits"), rng=rng()).source is None  # it cannot be loaded by name
    with pytest.raises(BadInput, match="imbalance needs classes of made"):
        imbalance(data, rare=(9,), rng=rng())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", IID(9)),
        ("dirichlet:0.1", Dirichlet(9, 0.1)),
        ("shards:2", Shards(9, 2)),
        ("classes:3", Classes(9, 3)),
        ("classes:2-10", Classes(9, 2, 10)),
        ("classes:3:random", Classes(9, 3, deal="random")),
        ("classes:2-10:even:owners", Classes(9, 2, 10, rare="owners")),
        ("one-class", OneClass(9)),
        ("split:0.2:0.7", Split(9, 0.2, 0.7)),
        ("natural", Natural(9)),
    ],
)
def test_parse(text: str, expected: Partition):
    assert parse(text, 9) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlt:0.1", "Did you mean 'dirichlet'.*classes:LOW-HIGH"),
        ("", "There is no partition ''"),
        ("dirichlet", "lacks a value. Write dirichlet:ALPHA"),
        ("shards", "lacks a value. Write shards:K"),
        ("split", "lacks a value. Write split:OWNERS:SHARE"),
        ("split:0.1", "lacks a value"),
        ("classes", "lacks a value. Write classes:K:DEAL:RARE or classes:K or classes:LOW-HIGH"),
        ("classes:3:fair", "'even' or 'random'"),
        ("classes:3:even:owners:4", "too many values"),
        ("dirichlet:", "'alpha'"),
        ("dirichlet:-1", "greater than 0"),
        ("dirichlet:nan", "'alpha'"),
        ("dirichlet:inf", "'alpha'"),
        ("dirichlet:0.1:3", "too many values. Write dirichlet:ALPHA"),
        ("shards:1.5", "'per_client'"),
        ("classes:5-2", "at least low = 5"),
        ("classes:-2", "'low'"),
        ("split:2:0.9", "'owners'"),
        ("iid:3", "too many values"),
    ],
)
def test_malformed_partitions_name_the_form(text: str, message: str):
    with pytest.raises(BadInput, match=f"(?s){message}"):
        parse(text, 9)


def test_a_number_out_of_range_is_one_problem():
    with pytest.raises(BadInput) as found:
        parse("dirichlet:-1")
    assert len(found.value.problems) == 1, "it was written as it should be"


def test_without_a_number_natural_clients_are_all_and_others_twenty():
    assert parse("natural") == Natural()
    assert parse("iid") == IID(20)
    with pytest.raises(BadInput, match="greater than 0"):
        parse("iid", 0)


def test_forms_describe_every_partition():
    assert len(forms()) == sum(cls.__module__ == Partition.__module__ for cls in Partition.__subclasses__())
    assert all(forms().values())


def test_one_class_sorted_gives_the_halves_different_classes(digits):
    labels = [np.unique(digits.y[part]) for part in OneClass(20, "sorted").split(digits, rng()).train]
    assert all(len(own) == 1 for own in labels)
    assert {int(own[0]) for own in labels[:10]} == {0, 1, 2, 3, 4}
    assert {int(own[0]) for own in labels[10:]} == {5, 6, 7, 8, 9}
    mixed = [int(digits.y[part][0]) for part in OneClass(20).split(digits, rng()).train]
    assert set(mixed[:10]) == set(mixed[10:]) == set(range(10))
    assert parse("one-class:sorted", 20) == OneClass(20, "sorted")
    with pytest.raises(BadInput, match="sorted"):
        parse("one-class:upside-down", 20)


def test_auto_takes_natural_clients_else_deals_classes_else_all_equally():
    plain, numbers = labelled([40, 40]), from_arrays(np.eye(50), np.linspace(0, 1, 50))
    grouped = from_arrays(np.eye(60), np.arange(60) % 2, group=np.arange(60) // 12)
    for data, clients, expected in (
        (grouped, None, Natural()),
        (grouped, 3, Natural(3)),
        (plain, 5, Dirichlet(5, 0.5)),
        (plain, None, Dirichlet(20, 0.5)),
        (numbers, 5, IID(5)),
    ):
        found, wanted = (p.split(data, rng()) for p in (Auto(clients), expected))
        for part in ("train", "test"):
            pairs = zip(getattr(found, part), getattr(wanted, part), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs), (data.name, clients)
    assert (parse("auto"), parse("auto", 7)) == (Auto(), Auto(7))


def test_dirichlet_without_filling_draws_again():
    data = labelled([50] * 4)
    filled, drawn = (Dirichlet(6, 0.3, min_samples=10, fill=fill) for fill in (True, False))
    generator, draws = rng(3), 0
    while True:  # by hand: the first draw in which all have enough
        draws += 1
        counts = np.stack([apportion(dirichlet(0.3, 6, generator), 50) for _ in range(4)], axis=1)
        if counts.sum(1).min() >= 10:
            break
    assert draws > 1, "this test wants a draw that is refused"
    assert np.array_equal(label_counts(data, drawn.split(data, rng(3)).train), counts)
    assert not np.array_equal(label_counts(data, filled.split(data, rng(3)).train), counts)
    with pytest.raises(BadInput, match=r"in 1000 draws some client always had fewer than 30 samples.*fill=True"):
        Dirichlet(6, 0.01, min_samples=30, fill=False).split(data, rng())


def test_tokens_and_several_answers_are_dealt_without_classes():
    tokens = from_arrays(np.arange(40).reshape(20, 2), np.arange(40).reshape(20, 2), classes=40)
    several = from_arrays(np.eye(20), {"a": np.arange(20), "b": np.ones(20)})
    for data in (tokens, several):
        shares = Auto(4).split(data, rng())
        assert sorted(np.concatenate(shares.train)) == list(range(len(data)))
        assert label_counts(data, shares.train).shape == (4, 0)
        for by_class in (Dirichlet(4, 0.5), Shards(4), Split(4, 0.25, 0.5)):
            with pytest.raises(BadInput, match=r"has no (classes|single one per sample)"):
                by_class.split(data, rng())
