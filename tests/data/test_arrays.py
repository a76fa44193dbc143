"""Data sets from arrays and torch data sets, and the generated ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedweave.core.settings import BadInput
from fedweave.data import Dataset, from_arrays, from_torch, load, synthetic
from fedweave.data.arrays import pixel_stats


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_images_get_a_channel_axis_and_their_statistics():
    x = rng().integers(0, 256, (20, 5, 4), dtype=np.uint8)
    data = from_arrays(x, np.arange(20) % 2, x, np.arange(20) % 2)
    assert data.shape == (1, 5, 4)
    assert data.mean == (pytest.approx(x.mean() / 255, abs=1e-6),)
    assert data.std == (pytest.approx(x.std() / 255, abs=1e-6),)
    assert from_arrays(x.astype(float), [0, 1] * 10).shape == (5, 4)  # numbers stay as they are


def test_statistics_are_by_channel_and_a_constant_one_stays():
    x = np.zeros((2, 3, 1, 2), np.uint8)
    x[:, 1], x[:, 2, :, 1] = 255, 255
    assert pixel_stats(x) == ((0.0, 1.0, 0.5), (1.0, 1.0, 0.5))


def test_without_test_samples_a_fifth_of_each_class_is_set_aside():
    x, y = np.arange(50)[:, None], np.repeat([0, 1], [30, 20])
    data = from_arrays(x, y)
    assert np.bincount(data.test_y).tolist() == [6, 4]
    assert sorted([*data.x[:, 0], *data.test_x[:, 0]]) == list(range(50))
    assert from_arrays(x, y).digest == data.digest


def test_with_groups_a_fifth_of_each_group_is_set_aside():
    data = from_arrays(np.eye(30), np.arange(30) % 3, group=["u"] * 20 + ["v"] * 10)
    assert data.group is not None
    assert data.test_group is not None
    assert np.bincount(data.group).tolist() == [16, 8]
    assert np.bincount(data.test_group).tolist() == [4, 2]


def test_float_targets_are_regression():
    data = from_arrays(np.eye(10), np.linspace(0, 1, 10))
    assert data.classes == 0
    assert data.y.dtype == np.float32
    assert len(data.test_y) == 2


def test_classes_that_do_not_occur_can_be_declared():
    assert from_arrays(np.eye(4), [0, 1, 0, 1], classes=7).classes == 7


E = np.eye(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": E, "y": [0, 1, 0]}, "x has 4 samples but y has 3"),
        ({"x": np.arange(4), "y": [0] * 4}, "x must be numbers of shape"),
        ({"x": np.array([["a"]] * 4), "y": [0] * 4}, "x must be numbers"),
        ({"x": np.where(E == 1, np.nan, E), "y": [0] * 4}, "not finite as float32, first in sample 0"),
        ({"x": E, "y": [0, 1, -1, 0]}, "label -1"),
        ({"x": E, "y": [0, 1, 10**12, 0]}, "label 1000000000000"),
        ({"x": E, "y": [0, 1, 5, 0], "test_x": E, "test_y": [0] * 4, "classes": 3}, "label 5, but 3 classes"),
        ({"x": E, "y": [["a"]] * 4}, "y must be numbers"),
        ({"x": E, "y": [0.0, np.inf, 1.0, 2.0]}, "targets that are not finite"),
        ({"x": np.zeros((4, 8, 8, 3), np.uint8), "y": [0] * 4}, r"transpose\(0, 3, 1, 2\)"),
        ({"x": E, "y": [0] * 4, "test_x": E}, "both test_x and test_y"),
        ({"x": E, "y": [0] * 4, "test_x": E[:, :2], "test_y": [0] * 4}, "differ"),
        ({"x": E, "y": [0] * 4, "test_x": E, "test_y": [0, 1]}, "test_x has 4 samples but test_y has 2"),
        ({"x": E, "y": [0] * 4, "group": [0, 1]}, "x has 4 samples but group has 2"),
        ({"x": E[:0], "y": np.zeros(0, int)}, "at least 2"),
        ({"x": E, "y": [0, 1, 2, 3]}, "occurs once"),
        ({"x": np.where(E == 1, 1e39, E), "y": [0, 1] * 2}, "x has values that are not finite as float32, first in"),
        ({"x": E, "y": [0, 1] * 2, "test_x": -1e39 * E, "test_y": [0, 1] * 2}, "test_x has values that are not finite"),
        ({"x": E, "y": [0.0, 1e39, 1.0, 2.0]}, "targets that are not finite as float32"),
        ({"x": E, "y": [0, 1] * 2, "classes": 2**40}, "whole number from 1 to 1000000. Got 1099511627776"),
        ({"x": E, "y": [0, 1] * 2, "classes": 2.5}, "whole number from 1 to 1000000. Got 2.5"),
        ({"x": E, "y": [0, 1] * 2, "classes": 0}, "whole number from 1 to 1000000. Got 0"),
        ({"x": E, "y": [0.0, 1.0] * 2, "classes": 2}, "classes=2 is for whole numbers as labels"),
        ({"x": E, "y": [1, 2, 1, 2]}, "labels begin at 1.*y - 1.*classes=3"),
        ({"x": E, "y": [0, 5, 0, 5]}, "labels up to 5 but 4 samples.*classes=6"),
        ({"x": np.zeros((4, 8, 8, 3)), "y": [0, 1] * 2}, r"transpose\(0, 3, 1, 2\)"),
        ({"x": np.zeros((4, 8, 6, 1), np.int64), "y": [0, 1] * 2}, r"transpose\(0, 3, 1, 2\)"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "x cannot be read as an array"),
        ({"x": E, "y": [[0], [1, 2]]}, "y cannot be read as an array"),
        ({"x": E, "y": [0, 1] * 2, "group": [[0], [1, 2], 3, 4]}, "group cannot be read as an array"),
    ],
)
def test_wrong_arrays_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        from_arrays(**arguments)


def whole(**changes: Any) -> Dataset:
    """Return a data set of six samples that is put together by hand."""
    x, y = np.ones((6, 3), np.float32), np.arange(6) % 2
    return Dataset(**{"name": "mine", "x": x, "y": y, "test_x": x, "test_y": y, "classes": 2} | changes)


BYTES = np.zeros((6, 1, 2, 2), np.uint8)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "lists": ({"x": [[1.0]] * 6}, "x must be an array.*from_arrays"),
    "float64": (
        {"x": np.ones((6, 3))},
        "x must be float32 features, int64 tokens or uint8 images.*Got float64.*from_arrays",
    ),
    "not finite": ({"x": np.full((6, 3), np.nan, np.float32)}, "x has values that are not finite"),
    "test not finite": ({"test_x": np.full((6, 3), np.inf, np.float32)}, "test_x has values that are not finite"),
    "flat": ({"x": np.ones(6, np.float32)}, "x must .* 2 axes"),
    "fewer": ({"y": np.arange(5) % 2}, "x has 6 samples but y has 5"),
    "fewer test": ({"test_y": np.arange(5) % 2}, "test_x has 6 samples but test_y has 5"),
    "other shape": ({"test_x": np.ones((6, 2), np.float32)}, "differ"),
    "bytes without mean": ({"x": BYTES, "test_x": BYTES}, "mean and std of each of 1 channels"),
    "std 0": ({"x": BYTES, "test_x": BYTES, "mean": (0.0,), "std": (0.0,)}, "mean and std of each of 1 channels"),
    "mean of features": ({"mean": (0.0,), "std": (1.0,)}, "mean and std are for images of bytes"),
    "label 9": ({"y": np.arange(6)}, "label 5, but 2 classes"),
    "label -1": ({"y": np.arange(6) % 2 - 1}, "label -1"),
    "test label": ({"test_y": np.arange(6)}, "label 5, but 2 classes"),
    "int32": ({"y": (np.arange(6) % 2).astype(np.int32)}, "y must be int64 labels.*Got int32"),
    "targets": ({"classes": 0}, "y must be float32 targets.*Got int64"),
    "target nan": ({"classes": 0, "y": np.full(6, np.nan, np.float32), "test_y": np.ones(6, np.float32)}, "not finite"),
    "classes": ({"classes": 2**40}, "classes"),
    "group": ({"group": np.arange(4)}, "x has 6 samples but group has 4"),
    "group names": ({"group": np.array(["a"] * 6)}, "group must be whole numbers"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_data_set_put_together_by_hand_passes_the_same_gate(changes: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message) as error:
        whole(**changes)
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=message):
        replace(whole(), **changes)


def test_changed_data_does_not_keep_the_name_it_was_loaded_by():
    data = load("digits")
    assert data.describe() == "digits"
    other = replace(data, x=data.x[:, :, ::-1])
    assert other.source is None
    assert other.describe()["digest"] == other.digest != data.digest
    assert pickle.loads(pickle.dumps(data)).describe() == "digits"


def test_rows_of_a_huggingface_data_set_are_explained():
    rows = [{"image": np.zeros((2, 2)), "label": i % 2} for i in range(10)]
    with pytest.raises(BadInput, match=r"image, label.*from_huggingface"):
        from_torch(rows)
    assert from_torch([(row["image"], row["label"]) for row in rows]).shape == (2, 2)


ITEMS: dict[str, tuple[Any, str]] = {
    "three": ((np.zeros(2), np.zeros(2), 1), "pair"),
    "number": (3, "pair"),
    "two inputs": (((np.zeros(2), np.zeros(3)), 1), "Sample 0 of train cannot be read as one array"),
    "label vector": ((np.zeros(2), np.zeros(2)), "The label of sample 0 of train must be one number"),
    "label word": ((np.zeros(2), "cat"), "The label of sample 0 of train must be one number"),
}


@pytest.mark.parametrize(("item", "message"), ITEMS.values(), ids=ITEMS)
def test_items_that_are_no_sample_with_a_label_are_explained(item: Any, message: str):
    with pytest.raises(BadInput, match=message) as error:
        from_torch([item] * 10)
    assert "\n" not in str(error.value)


def test_torch_data_sets():
    torch = pytest.importorskip("torch")
    x, y = torch.rand(10, 3, 4, 4), torch.arange(10) % 2
    whole = torch.utils.data.TensorDataset(x, y)
    data = from_torch(whole, whole, name="mine")
    assert np.array_equal(data.x, x.numpy())
    assert data.y.dtype == np.int64
    assert (data.name, data.classes) == ("mine", 2)
    assert len(from_torch(torch.utils.data.Subset(whole, range(8))).y) == 6
    assert from_torch(torch.utils.data.TensorDataset(x, torch.rand(10))).classes == 0


def test_any_map_style_data_set_will_do():
    from PIL import Image

    colour = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    data = from_torch([(Image.fromarray(colour), i % 2) for i in range(10)])
    assert data.shape == (3, 4, 5)
    assert np.array_equal(data.x[0], colour.transpose(2, 0, 1))
    with pytest.raises(BadInput, match="Sample 1 of train has shape"):
        from_torch([(np.zeros((2, 2)), 0), (np.zeros((3, 2)), 1)])
    with pytest.raises(BadInput, match="map-style"):
        from_torch(iter([]))


def test_regression_is_deltas_formula():
    slope, offset = [10.0, 8.0, 8.0], [1.0, 2.0, 2.0]
    data = synthetic.regression(3, 50, slope, offset, seed=4)
    assert data.classes == 0
    assert data.group is not None
    assert np.bincount(data.group).tolist() == [50, 50, 50]
    A, b, x = np.array(slope)[data.group], np.array(offset)[data.group], data.x[:, 0]
    assert np.exp(data.y) * 2 == pytest.approx((A * x - b) ** 2, rel=1e-5)
    assert 1 <= x.min() < x.max() <= 2
    assert synthetic.regression(3, 50, seed=5).digest != synthetic.regression(3, 50, seed=4).digest


def test_regression_noise_has_its_standard_deviation():
    clean, noisy = (synthetic.regression(4, 1000, noise=s, seed=1) for s in (0.0, 0.5))
    assert np.array_equal(clean.x, noisy.x)
    assert (noisy.y - clean.y).std() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"span": (0.0, 1.0)}, {"slope": [1.0, 2.0]}, {"noise": -1.0}])
def test_regression_refuses_what_cannot_be(wrong: dict[str, Any]):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        synthetic.regression(**wrong)


def test_classification_sizes_and_determinism():
    data = synthetic.classification(20, samples=30, seed=3)
    assert data.group is not None
    assert data.test_group is not None
    sizes = np.bincount(data.group) + np.bincount(data.test_group)
    assert len(sizes) == 20
    assert sizes.min() >= 30
    assert sizes.max() > 4 * np.median(sizes)  # log-normal: few clients have most
    assert data.digest == synthetic.classification(20, samples=30, seed=3).digest
    assert data.digest != synthetic.classification(20, samples=30, seed=4).digest
    assert load("synthetic").digest == synthetic.classification().digest
    with pytest.raises(BadInput, match=r"'clients'(?s:.*)'features'"):
        synthetic.classification(clients=0, features=0)


def test_beta_spreads_the_clients_inputs():
    def spread(beta: float) -> float:
        data = synthetic.classification(40, samples=30, beta=beta, seed=0)
        return float(np.std([data.x[data.group == k].mean() for k in range(40)]))

    assert spread(5.0) == pytest.approx(5.0, rel=0.4)  # the mean of a client's x is B_k, up to 1/√60
    assert spread(0.0) < 0.3


IMAGES = rng().integers(0, 256, (20, 3, 5, 6), dtype=np.uint8)
WAYS = {
    "grey images": IMAGES[:, 0],
    "images": IMAGES,
    "numbers": rng().standard_normal((20, 3)),
    "tokens": rng().integers(0, 9, (20, 4), dtype=np.int32),
    "several inputs": {"a": rng().standard_normal((20, 3)), "b": rng().integers(0, 9, (20, 4))},
}


@pytest.mark.parametrize("raw", WAYS.values(), ids=WAYS)
def test_prepared_samples_are_those_that_training_uses(raw):
    """``prepare`` is given what ``from_arrays`` was given, and returns the batch that a trainer hands to the model."""
    import torch

    from fedweave.data.columns import each
    from fedweave.local.client_data import ClientData
    from fedweave.local.torch.samples import first_samples

    y = np.arange(20) % 2
    data = from_arrays(raw, y, raw, y)
    used = first_samples(ClientData.of(data, []), 20).x
    for given in (raw, each(raw, torch.from_numpy), each(raw, lambda a: a.tolist())) if "a" not in raw else (raw,):
        if isinstance(given, list) and raw.dtype == np.uint8:
            continue  # a list of whole numbers is not known to be an image
        found = data.prepare(given)
        pairs = [(found[n], used[n]) for n in used] if isinstance(used, dict) else [(found, used)]
        for mine, theirs in pairs:
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


def test_images_of_another_kind_are_not_scaled_by_mistake():
    y = np.arange(20) % 2
    with pytest.raises(
        BadInput, match=r"The samples of arrays are images of bytes \(uint8\). Got float64 \(20, 3, 5, 6\)"
    ):
        from_arrays(IMAGES, y).prepare(IMAGES / 255)
    with pytest.raises(BadInput, match=r"The samples of arrays are float32 \(16, 3, 5, 6\). Got uint8"):
        from_arrays(IMAGES / 255, y).prepare(IMAGES)


@pytest.mark.parametrize("way", ["bytes", "numbers"])
def test_lazy_samples_are_prepared_as_they_are_read(way):
    import torch

    from fedweave.local.client_data import ClientData
    from fedweave.local.torch.samples import first_samples

    raw, given = (IMAGES, {"mean": (0.5,) * 3, "std": (0.2,) * 3}) if way == "bytes" else (IMAGES / np.float32(255), {})
    source = [(torch.from_numpy(image), n % 2) for n, image in enumerate(raw)]
    data = from_torch(source, source, lazy=True, **given)
    assert torch.equal(data.prepare(raw), first_samples(ClientData.of(data, []), 20).x)
