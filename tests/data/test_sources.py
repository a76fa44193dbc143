"""Data sets from pandas, Hugging Face and Shakespeare's plays."""

import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.core.settings import BadInput
from fedweave.data import from_frame, from_huggingface, load

REAL = os.environ.get("FEDWEAVE_DATA", "")


def frame(n=20, **columns):
    """Return people: two features, a class, a number, and where they live."""
    plain = {
        "height": np.linspace(1.5, 2, n),
        "age": np.arange(n),
        "kind": ["dog", "cat"] * (n // 2),
        "income": np.linspace(0, 1, n),
        "town": np.repeat(["b", "a"], n // 2),
    }
    return pd.DataFrame(plain | columns)


def test_a_frame_of_classes_with_groups():
    data = from_frame(frame(), "kind", group="town", inputs=["age", "height"], test=frame(4))
    assert data.x.dtype == np.float32
    assert data.x[:3].tolist() == pytest.approx(frame()[["age", "height"]].to_numpy()[:3])
    assert data.y[:4].tolist() == [1, 0, 1, 0], "classes in the order of their names"
    assert data.classes == 2
    assert np.bincount(data.group).tolist() == [10, 10]
    assert (data.group[0], data.test_group.tolist()) == (1, [1, 1, 0, 0])
    assert (data.client_names, data.class_names) == (("a", "b"), ("cat", "dog"))


def test_clients_and_classes_keep_their_names_in_a_run(tmp_path):
    towns = frame(town=np.repeat(["oslo", "bonn\x1b[31m"], 10))
    data = from_frame(towns, "kind", group="town", inputs=["age", "height"])
    natural = fw.Experiment(fw.methods.fedavg(2), data, model="logistic", rounds=2, client_eval=1, workers=1)
    run = fw.run(natural, tmp_path / "run")
    found = fw.load_result(tmp_path / "run")
    assert found.manifest["client_names"] == ["bonn?[31m", "oslo"], "what a terminal would obey is replaced"
    assert found.manifest["class_names"] == ["cat", "dog"]
    assert found.manifest["partition"] == "Natural(clients=None)", "what auto chose"
    assert found.client_scores["name"].tolist() == ["bonn?[31m", "oslo"] * 2
    assert found.client_scores["test_samples"].tolist() == run.manifest["test_samples"] * 2 == [2, 2] * 2
    dealt = fw.run(replace(natural, partition=fw.partition.IID(2)))
    assert "client_names" not in dealt.manifest, "a mixture of towns is none of them"
    assert "name" not in dealt.client_scores


@pytest.mark.parametrize("kind", ["category", "string", "bool", object])
def test_classes_of_any_type(kind):
    values = np.arange(20) % 2 == 0
    column = pd.Series(values if kind in ("bool", object) else np.where(values, "yes", "no"), dtype=kind)
    data = from_frame(frame(kind=column)[["age", "kind"]], "kind")
    assert data.classes == 2
    again = from_frame(frame(kind=column)[["age", "kind"]], "kind", test=frame(kind=column)[["age", "kind"]])
    assert again.test_y.tolist() == values.astype(int).tolist()


def test_a_frame_of_numbers():
    one = from_frame(frame().drop(columns=["kind", "town"]), "income")
    assert (one.classes, one.y.dtype, one.y.ndim, one.shape) == (0, np.float32, 1, (2,))
    two = from_frame(frame().drop(columns=["kind"]), ["income", "height"], group="town")
    assert (two.y.shape, two.shape) == ((16, 2), (1,))


WRONG = {
    "no frame": (lambda: from_frame([1, 2], "kind"), "needs a pandas DataFrame"),
    "target": (lambda: from_frame(frame(), "kid"), "no column 'kid'. Did you mean 'kind'"),
    "group": (lambda: from_frame(frame(), "kind", group="twn"), "no column 'twn'"),
    "inputs": (lambda: from_frame(frame(), "kind", inputs=["aga"]), "no column 'aga'"),
    "test": (lambda: from_frame(frame(), "income", inputs=["age"], test=frame()[["income"]]), "no column 'age'"),
    "words": (lambda: from_frame(frame(), "kind"), "'town' is not numbers: encode it, or name the 'inputs'"),
    "nothing": (lambda: from_frame(frame()[["kind"]], "kind"), "No inputs"),
    "class": (
        lambda: from_frame(frame(), "kind", inputs=["age"], test=frame(kind=["dig", "cat"] * 10)),
        "The test frame: There is no class 'dig'. Did you mean 'dog'",
    ),
    "missing": (lambda: from_frame(frame(kind=[None, *["a", "b"] * 9, "a"]), "kind", inputs=["age"]), "'kind' .*empty"),
    "missing input": (
        lambda: from_frame(frame(age=[None, *range(19)]), "kind", inputs=["age"]),
        "'age' has empty cells",
    ),
    "missing test input": (
        lambda: from_frame(frame(), "kind", inputs=["age"], test=frame(age=[None, *range(19)])),
        "'age' has empty cells",
    ),
    "test without inputs": (
        lambda: from_frame(frame()[["age", "kind"]], "kind", test=frame()[["kind"]]),
        "no column 'age'",
    ),
    "path": (lambda: from_frame("people.csv", "kind"), r"Got str. Read a file with pd.read_csv\(path\) first."),
    "several words": (lambda: from_frame(frame(), ["kind", "town"], inputs=["age"]), "'kind' is not numbers"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_wrong_frames_are_refused(make, message):
    with pytest.raises(BadInput, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def datasets():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets")


def test_a_huggingface_data_set_of_images(datasets):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 3), dtype=np.uint8)
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1, 2] * 4, "writer": list("aabbccddeeff")}
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["x", "y", "z"]),
            "writer": datasets.Value("string"),
        }
    )
    rows = datasets.Dataset.from_dict(columns, features=features)
    data = from_huggingface(rows, "image", "label", group="writer", test=rows)
    assert np.array_equal(data.x, pixels.transpose(0, 3, 1, 2))
    assert (data.classes, data.group.tolist(), data.y.tolist()) == (
        3,
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
        [0, 1, 2] * 4,
    )


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_huggingface_data_set_of_tokens(datasets, form):
    columns = {
        "input_ids": [[1, 2, 3], [4, 0, 0], [2, 2, 0], [1, 1, 1]],
        "attention_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]],
        "label": [0, 1, 0, 1],
    }
    rows = datasets.Dataset.from_dict(columns).with_format(form)
    one = from_huggingface(rows, "input_ids", "label", test=rows)
    assert one.x.dtype == np.int64
    assert one.x.tolist() == columns["input_ids"]
    assert one.tokens == 5
    both = from_huggingface(rows, ["input_ids", "attention_mask"], "label", test=rows)
    assert {name: array.tolist() for name, array in both.x.items()} == {n: columns[n] for n in both.x}
    several = from_huggingface(rows, "input_ids", ["label", "attention_mask"], test=rows)
    assert set(several.y) == {"label", "attention_mask"}


def test_wrong_huggingface_data_sets_are_refused(datasets):
    rows = datasets.Dataset.from_dict({"a": [[1, 2], [3]], "text": ["to be", "not"], "label": [0, 1]})
    for make, message in {
        lambda: from_huggingface(rows, "b", "label"): "no column 'b'",
        lambda: from_huggingface(rows, "a", "lable"): "no column 'lable'. Did you mean 'label'",
        lambda: from_huggingface(rows, "a", "label", group="who"): "no column 'who'",
        lambda: from_huggingface(rows, "a", "label"): r"Sample 1 of a has shape \(1,\)",
        lambda: from_huggingface(rows, "text", "label"): "x must be numbers",
        lambda: from_huggingface(datasets.DatasetDict(train=rows), "a", "label"): "DatasetDict: choose a split",
        lambda: from_huggingface([1], "a", "label"): "needs a datasets.Dataset. Got list",
    }.items():
        with pytest.raises(BadInput, match=message) as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.skipif(not REAL, reason="FEDWEAVE_DATA is not set: the real files are not here")
def test_the_roles_of_shakespeare():
    data = load("shakespeare")  # which checks its checksum
    assert np.unique(data.group).size == np.unique(data.test_group).size == 187
    assert data.x.shape[1:] == data.y.shape[1:] == (80,)
    for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
        assert np.array_equal(x[:, 1:], y[:, :-1]), "labels are the next characters"
        assert x.min() >= 0
        assert max(x.max(), y.max()) < data.classes
    for role in (0, 100, 186):  # windows follow each other, and the test set is what comes last
        x, y = (np.concatenate([a[data.group == role], b[data.test_group == role]]) for a, b in (
            (data.x, data.test_x), (data.y, data.test_y)))  # fmt: skip
        assert np.array_equal(x[1:, 0], y[:-1, -1])
        assert len(x) >= 5
        assert (data.test_group == role).sum() == max(1, round(0.2 * len(x)))
    assert (data.tokens, data.classes, data.source) == (data.classes, data.tokens, "shakespeare")


def test_a_damaged_archive_of_plays_is_refused(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "shakespeare.zip").write_bytes(b"to be or not")
    with pytest.raises(BadInput, match=r"shakespeare\.zip"):
        load("shakespeare", root=tmp_path)
