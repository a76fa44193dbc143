"""How much of a published experiment is run, and data made small enough for a laptop."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.data import Dataset, load

Scale = Literal["smoke", "laptop", "paper"]


SHAPES = {  # shape, classes, natural clients of the data sets that smoke runs imitate where they are missing
    "mnist": ((1, 28, 28), 10, 0),
    "fashion_mnist": ((1, 28, 28), 10, 0),
    "emnist_letters": ((1, 28, 28), 26, 0),
    "cifar10": ((3, 32, 32), 10, 0),
    "cinic10": ((3, 32, 32), 10, 0),
    "femnist": ((1, 28, 28), 62, 40),
    "celeba": ((3, 84, 84), 2, 40),
}


def load_data(name: str, scale: Scale) -> Dataset:
    """Load a data set; if its files are missing, the error says how to get them, but smoke runs take a stand-in."""
    if scale != "smoke":
        return load(name)
    try:
        return load("mnist5k" if name == "mnist" else name)
    except BadInput:
        return stand_in(name)


def stand_in(name: str, train: int = 2000, test: int = 500) -> Dataset:
    """Return images of the shape and classes of a data set: a noisy pattern for each class, to try the code with."""
    (shape, classes, clients), rng = SHAPES[name], np.random.default_rng(0)
    patterns = rng.integers(0, 200, (classes, *shape))
    y = np.arange(train + test) % classes
    x = np.clip(patterns[y] + rng.integers(-60, 60, (train + test, *shape)), 0, 255).astype(np.uint8)
    channels = shape[0]
    return Dataset(
        name=f"{name} (stand-in)",
        x=x[:train],
        y=y[:train],
        test_x=x[train:],
        test_y=y[train:],
        classes=classes,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        group=rng.integers(0, clients, train) if clients else None,
        test_group=rng.integers(0, clients, test) if clients else None,
    )


def reduce_data(data: Dataset, train: int, test: int, pool: int = 1) -> Dataset:
    """Return ``train`` and ``test`` samples, as many of each class, images averaged over ``pool`` × ``pool`` pixels."""
    x, y = _first_of_each_class(data.x, data.y, train // data.classes)
    test_x, test_y = _first_of_each_class(data.test_x, data.test_y, test // data.classes)
    x, test_x = pool_images(x, pool), pool_images(test_x, pool)
    return replace(data, x=x, y=y, test_x=test_x, test_y=test_y, group=None, loaded=None)  # not the whole beside it


def _first_of_each_class(x: Array, y: Array, count: int) -> tuple[Array, Array]:
    chosen = np.sort(np.concatenate([np.flatnonzero(y == c)[:count] for c in np.unique(y)]))
    return x[chosen], y[chosen]


def pool_images(x: Array, pool: int) -> Array:
    """Return images averaged over ``pool`` × ``pool`` pixels; pixels that do not fill a block are cut off."""
    if pool == 1:
        return x
    n, channels, height, width = x.shape
    x = x[:, :, : height // pool * pool, : width // pool * pool]
    blocks = x.reshape(n, channels, height // pool, pool, width // pool, pool)
    return np.rint(blocks.mean((3, 5))).astype(x.dtype)


def caution(scale: str, fidelity: str) -> str:
    """Return what a run must say of itself: tiny data and few seeds show nothing, but arithmetic is always the same."""
    if scale != "smoke" or fidelity == "exact":
        return ""
    return "A smoke run shows that the code works; its numbers and verdicts mean nothing beyond that."
