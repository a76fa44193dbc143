"""Samples of every kind: dtypes kept, several inputs and targets, lazy items, and what is taken from a data set."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.data import Dataset, from_arrays, from_torch, load
from fedweave.data.columns import Items, arrays, as_array, each, length, rows
from fedweave.data.dataset import scaling
from fedweave.local.client_data import ClientData
from fedweave.local.torch.samples import Samples, first_samples

CPU = torch.device("cpu")


def rng():
    return np.random.default_rng(0)


def samples_of(data):
    return Samples(data.x, data.y, data.mean, data.std, CPU)


class Pictures:
    """A map-style data set that counts what is read of it."""

    def __init__(self, n=20, shape=(1, 4, 4)):
        self.x, self.targets = rng().standard_normal((n, *shape)).astype(np.float32), [i % 2 for i in range(n)]
        self.read = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[i], self.targets[i]


class Together(Pictures):
    """One that reads several items at once."""

    def __getitems__(self, places):
        self.read.append(list(places))
        return [(self.x[i], self.targets[i]) for i in places]


KINDS = {
    "bytes": (np.uint8, (3, 2, 2), np.uint8),
    "bytes that are no images": (np.uint8, (5,), np.float32),
    "whole": (np.int32, (5,), np.int64),
    "double": (np.float64, (5, 2), np.float32),
    "half": (np.float16, (5,), np.float32),
    "truths": (np.bool_, (5,), np.float32),
}


@pytest.mark.parametrize(("given", "shape", "kept"), KINDS.values(), ids=KINDS)
def test_what_kind_of_numbers_a_data_set_keeps(given, shape, kept):
    x = rng().integers(0, 2, (10, *shape)).astype(given)
    data = from_arrays(x, np.arange(10) % 2)
    assert data.x.dtype == data.test_x.dtype == kept
    assert data.shape == shape
    batch = samples_of(data).take(torch.arange(2)).x
    assert batch.dtype == (torch.int64 if kept == np.int64 else torch.float32)
    assert torch.equal(data.prepare(data.x[:2]), batch)
    assert data.prepare(x[:2]).dtype == batch.dtype
    assert torch.equal(data.prepare(x[:2]), data.prepare(x[:2].astype(kept)))


def test_several_inputs_and_several_targets():
    x = {"image": np.ones((10, 1, 4, 4)), "age": np.arange(10), "words": np.ones((10, 3), np.int32)}
    y = {"class": np.arange(10) % 3, "weight": np.linspace(0, 1, 10)}
    data = from_arrays(x, y, group=np.arange(10) // 5)
    assert {name: array.dtype for name, array in arrays(data.x)} == {
        "age": np.int64, "image": np.float32, "words": np.int64,
    }  # fmt: skip
    assert {name: array.dtype for name, array in arrays(data.y)} == {"class": np.int64, "weight": np.float32}
    assert (len(data), length(data.test_y), data.classes, data.labels) == (8, 2, 0, None)
    batch = samples_of(data).take(torch.tensor([3, 1]))
    assert set(batch.x) == set(x)
    assert batch.size == 2
    assert torch.equal(batch.x["age"], torch.from_numpy(data.x["age"][[3, 1]]))
    assert torch.equal(batch.y["weight"], torch.from_numpy(data.y["weight"][[3, 1]]))
    grid = samples_of(data).take(torch.tensor([[3, 1], [0, 2]]))
    assert grid.x["image"].shape == (2, 2, 1, 4, 4)
    prepared = data.prepare({"image": np.ones((2, 1, 4, 4)), "age": np.arange(2), "words": np.ones((2, 3), int)})
    assert prepared["image"].dtype == torch.float32
    assert data.digest == replace(data, x=dict(reversed(data.x.items()))).digest
    assert data.digest != replace(data, x=data.x | {"age": data.x["age"] + 1}).digest
    assert "8 train + 2 test" in repr(data)


WRONG = {
    "nothing": ({"x": {}}, "x has no arrays"),
    "lengths": ({"x": {"a": np.ones((9, 2)), "b": np.ones((10, 2))}}, r"x\['a'\] has 9 samples but x\['b'\] has 10"),
    "words": ({"x": {"a": np.array(["cat"] * 10)}}, r"x\['a'\] must be numbers"),
    "target": ({"y": {"a": np.full(10, np.nan)}}, r"y\['a'\] has targets that are not finite"),
    "other keys": (
        {"x": {"a": np.ones((10, 2))}, "test_x": {"b": np.ones((10, 2))}, "test_y": np.arange(10) % 2},
        r"differ: a float32 \(2,\) and b float32 \(2,\)",
    ),
    "other labels": (
        {"y": {"a": np.ones(10)}, "test_x": np.ones((10, 2)), "test_y": {"b": np.ones(10)}},
        "Training and test samples differ: a float32.* and b float32",
    ),
    "other targets": (
        {"y": np.ones((10, 3)), "test_x": np.ones((10, 2)), "test_y": np.ones((10, 4))},
        r"Training and test samples differ: float32 \(3,\) and float32 \(4,\)",
    ),
    "padding": ({"y": -np.ones((10, 3), int)}, "has the label -1.*-100 in the place of padding"),
    "classes": ({"y": {"a": np.arange(10)}, "classes": 3}, "classes=3 is for whole numbers as labels"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_columns_are_refused(changes, message):
    with pytest.raises(BadInput, match=message) as error:
        from_arrays(**{"x": np.ones((10, 2)), "y": np.arange(10) % 2} | changes)
    assert "\n" not in str(error.value)


def test_tokens_keep_their_padding_and_are_counted():
    y = np.array([[1, 2, -100], [3, -100, -100], [1, 1, 2], [0, 2, 2], [1, 0, 0]])
    data = from_arrays(np.array([[0, 1, 2], [1, 3, 0], [6, 1, 1], [2, 0, 2], [1, 1, 0]]), y)
    assert (data.classes, data.tokens, data.labels) == (4, 7, None)
    assert data.sample == ((3,), 4, 7, True, 1)
    assert "4 tokens" in repr(data)
    assert data.as_features().x.dtype == np.float32
    assert from_arrays(np.eye(10), np.ones((10, 3))).sample == ((10,), 0, 0, False, 3)


def test_lazy_items_are_read_when_a_batch_needs_them_and_are_the_same():
    pictures = Pictures()
    lazy = from_torch(pictures, pictures, lazy=True)
    assert set(pictures.read) == {0}, "their labels are known, and the first one shows whether they can be read"
    assert (len(lazy), lazy.shape, lazy.classes) == (20, (1, 4, 4), 2)
    pictures.read.clear()
    found = samples_of(lazy).take(torch.tensor([3, 7, 3]))
    assert pictures.read == [3, 7, 3]
    kept = samples_of(from_torch(pictures, pictures)).take(torch.tensor([3, 7, 3]))
    assert torch.equal(found.x, kept.x)
    assert torch.equal(found.y, kept.y)


def test_items_may_be_read_together():
    together = Together()
    batch = samples_of(from_torch(together, lazy=True)).take(torch.tensor([2, 0]))
    assert isinstance(together.read[-1], list)
    assert len(together.read[-1]) == 2
    assert all(isinstance(i, int) for i in together.read[-1])
    assert torch.equal(batch.x, samples_of(from_torch(Pictures())).take(torch.tensor([2, 0])).x)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, np.bool_])
def test_lazy_items_become_the_same_numbers_as_arrays(kind):
    items = [(rng().integers(0, 5, 4).astype(kind), i % 2) for i in range(10)]
    lazy, kept = (samples_of(from_torch(items, lazy=lazy)).take(torch.arange(4)).x for lazy in (True, False))
    assert lazy.dtype == kept.dtype
    assert torch.equal(lazy, kept)


def test_lazy_images_are_scaled_like_others():
    from PIL import Image

    pixels = rng().integers(0, 256, (10, 4, 5, 3), dtype=np.uint8)
    items = [(Image.fromarray(p), i % 2) for i, p in enumerate(pixels)]
    kept = from_torch(items, items)
    lazy = from_torch(items, items, lazy=True, mean=kept.mean, std=kept.std)
    assert torch.equal(samples_of(lazy).take(torch.arange(4)).x, samples_of(kept).take(torch.arange(4)).x)
    with pytest.raises(BadInput, match="uint8 images need mean and std of each of 3 channels"):
        from_torch(items, items, lazy=True)


def pairs(items):
    """Collate dictionaries into two inputs and two targets."""
    a, b = (torch.stack([torch.as_tensor(item[key]) for item in items]) for key in ("a", "b"))
    return {"a": a, "b": b}, {"sum": a.sum(1), "count": torch.tensor([len(item["a"]) for item in items])}


def test_items_of_any_kind_with_a_collate():
    items = [{"a": np.full(3, i, np.float32), "b": np.arange(2) + i} for i in range(10)]
    labels = np.arange(10) % 2
    data = from_torch(items, items, lazy=True, collate=pairs, labels=labels, test_labels=labels)
    assert len(data.digest) == 64
    assert "10 train + 10 test" in repr(data)
    batch = samples_of(data).take(torch.tensor([4, 1]))
    assert batch.y["sum"].tolist() == [12.0, 3.0]
    assert batch.x["b"].tolist() == [[4, 5], [1, 2]]
    changed = [*items[:5], {"a": np.zeros(3, np.float32), "b": np.zeros(2)}, *items[6:]]
    assert data.digest != replace(data, x=Items(changed, pairs)).digest
    with pytest.raises(BadInput, match="'collate' is for lazy data sets"):
        from_torch(items, collate=pairs)
    with pytest.raises(BadInput, match="'labels'"):
        from_torch(items, lazy=True, collate=pairs)


@pytest.mark.parametrize("count", [10, 30])
def test_lazy_items_have_a_label_each(count):
    labels = np.arange(count) % 2
    with pytest.raises(BadInput, match=f"train has 20 samples but labels has {count}"):
        from_torch(Pictures(), lazy=True, labels=labels)
    with pytest.raises(BadInput, match=f"test has 20 samples but test_labels has {count}"):
        from_torch(Pictures(), Pictures(), lazy=True, test_labels=labels)


def test_first_samples_repeat_where_there_are_fewer():
    data = replace(from_torch(Pictures(), Pictures(), lazy=True).take([4]), test_x=Items(Pictures()))
    batch = first_samples(ClientData.of(data, []), 3)
    assert torch.equal(batch.x, torch.from_numpy(np.stack([Pictures().x[4]] * 3)))
    assert batch.y.tolist() == [0, 0, 0]


def test_lazy_data_is_split_and_taken_without_reading_it():
    pictures = Pictures()
    lazy, kept = (from_torch(pictures, lazy=lazy, group=np.arange(20) // 4) for lazy in (True, False))
    pictures.read.clear()
    for change in (lambda d: d, lambda d: d.take(np.arange(3, 9)), lambda d: d.split(0.25), lambda d: d.take(d.y == 1)):
        a, b = change(lazy), change(kept)
        assert np.array_equal(a.y, b.y)
        assert np.array_equal(a.test_y, b.test_y)
        assert np.array_equal(a.group, b.group)
        assert np.array_equal(a.test_group, b.test_group)
        assert pictures.read == []
        assert np.array_equal(np.stack([x for x, _ in a.test_x.read(range(len(a.test_x)))]), b.test_x)
        pictures.read.clear()
    with pytest.raises(BadInput, match="both be lazy, or neither"):
        replace(lazy, test_x=kept.test_x)


def test_items_columns_and_arrays_answer_alike():
    array, table, items = np.arange(6), {"b": np.arange(6), "a": -np.arange(6)}, Items(list(range(6)))
    assert [length(column) for column in (array, table, items, {})] == [6, 6, 6, 0]
    assert rows(table, [1, 2])["a"].tolist() == [-1, -2]
    assert rows(rows(items, [5, 3, 1]), [2, 0]).read([1, 0]) == [5, 1]
    assert each(items, np.negative) is items
    assert each(table, np.negative)["a"].tolist() == array.tolist()
    assert [name for name, _ in arrays(table)] == ["a", "b"]
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_take_and_split_keep_the_rest_and_lose_the_name():
    data = load("digits")
    some = data.take([5, 3, 5])
    assert np.array_equal(some.x, data.x[[5, 3, 5]])
    assert some.test_x is data.test_x
    assert (some.source, data.source, data.take(slice(None)).source) == (None, "digits", None)
    assert pickle.loads(pickle.dumps(some)).source is None
    renamed = data.named("mine")
    assert (renamed.source, renamed.describe()) == ("mine", "mine")


def test_a_validation_set_is_a_share_of_every_class():
    data = from_arrays(np.arange(100)[:, None], np.repeat([0, 1, 2], [50, 30, 20]), [[-1]], [0])
    tuned = data.split(validation=0.2)
    assert np.bincount(tuned.test_y).tolist() == [10, 6, 4]
    assert np.bincount(tuned.y).tolist() == [40, 24, 16]
    assert sorted([*tuned.x[:, 0], *tuned.test_x[:, 0]]) == list(range(100))
    assert np.array_equal(data.split(0.2).test_x, tuned.test_x)
    assert not np.array_equal(data.split(0.2, seed=1).test_x, tuned.test_x)
    for wrong in (0, 1, -0.1):
        with pytest.raises(BadInput, match=f"'validation' .* between 0 and 1. Got {wrong} instead"):
            data.split(wrong)


def test_groups_of_any_number_can_be_split():
    x, group = np.arange(12, dtype=np.float32)[:, None], np.repeat([-5, 10**12], 6)
    data = Dataset("mine", x, np.arange(12) % 2, x, np.arange(12) % 2, 2, group=group, test_group=group)
    tuned = data.split(0.34)
    assert sorted(tuned.test_group.tolist()) == [-5, -5, 10**12, 10**12]


def test_prepared_images_are_those_of_training(digits):
    batch = samples_of(digits).take(torch.arange(5))
    assert torch.equal(digits.prepare(digits.x[:5]), batch.x)
    assert torch.equal(digits.prepare(digits.x[:5, 0]), batch.x), "grey images need no channel"
    assert torch.equal(digits.prepare(torch.from_numpy(digits.x[:5])), batch.x)
    scale, shift = scaling(digits.mean, digits.std, 4)
    assert torch.equal(batch.x, torch.from_numpy(digits.x[:5]).float() * scale + shift)


def test_plain_numbers_are_features_for_models_of_features():
    """Whole numbers are tokens only where a model takes them."""
    x = rng().integers(0, 9, (60, 4))
    data = from_arrays(x, x[:, 0] % 3, name="whole")
    result = fw.run(fw.Experiment("fedavg", data, "iid", rounds=2, workers=1))
    floats = fw.run(fw.Experiment("fedavg", data.as_features(), "iid", rounds=2, workers=1))
    assert result.summary["digest"] == floats.summary["digest"]
