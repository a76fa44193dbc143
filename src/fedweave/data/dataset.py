"""The Dataset record: training and test samples as arrays, and how raw images become network input."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedweave.core.settings import BadInput, brief

Array = NDArray[Any]
MOST_CLASSES = 1_000_000  # a larger label is an id, not a class
CONVERT = "fedweave.data.from_arrays converts and checks arrays."


@dataclass(frozen=True)
class Dataset:
    """Samples of all clients together; a partition assigns them by index, so nothing is copied per client.

    Images stay bytes (uint8, channels first) until a batch needs them: input = (pixel / 255 − mean) / std. Whatever is
    made into a data set, by a loader or by hand, is checked here.
    """

    name: str
    x: Array  # (n, C, H, W) uint8 images, or (n, ...) float32 features
    y: Array  # (n,) int64 class labels; float32 targets when classes == 0
    test_x: Array
    test_y: Array
    classes: int  # 0: regression
    mean: tuple[float, ...] = ()  # per channel, only for uint8 images
    std: tuple[float, ...] = ()
    group: Array | None = None  # (n,) int64 natural client (writer, celebrity) of each training sample
    test_group: Array | None = None
    # The name given to fedweave.data.load, which lets a run be resumed from its folder; dataclasses.replace drops it.
    source: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse arrays that training could not use."""
        check_class_count(self.classes, least=0)
        for x, y in (("x", "y"), ("test_x", "test_y")):
            self._check_samples(x)
            self._check_labels(y)
            check_length(len(getattr(self, x)), x, len(getattr(self, y)), y)
        if self.x.shape[1:] != self.test_x.shape[1:] or self.x.dtype != self.test_x.dtype:
            ours, theirs = (f"{x.dtype} {x.shape[1:]}" for x in (self.x, self.test_x))
            raise BadInput(f"Training and test samples differ: {ours} and {theirs}.")
        self._check_pixels()
        for group, x in ((self.group, "x"), (self.test_group, "test_x")):
            name = x.replace("x", "group")
            if group is not None and (not isinstance(group, np.ndarray) or group.dtype.kind not in "iu"):
                raise BadInput(f"{name} must be whole numbers, one per sample. Got {_kind(group)}. {CONVERT}")
            if group is not None:
                check_length(len(getattr(self, x)), x, len(group), name)

    def _check_samples(self, name: str) -> None:
        x = getattr(self, name)
        if not isinstance(x, np.ndarray) or x.ndim < 2:
            raise BadInput(f"{name} must be an array of samples, with 2 axes or more. Got {_kind(x)}. {CONVERT}")
        if x.dtype not in (np.uint8, np.float32):
            raise BadInput(f"{name} must be float32 features or uint8 images. Got {_kind(x)}. {CONVERT}")
        check_finite(x, name)

    def _check_labels(self, name: str) -> None:
        y, wanted = getattr(self, name), np.dtype(np.int64 if self.classes else np.float32)
        if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype != wanted:
            what = "labels" if self.classes else "targets, where there are no classes"
            raise BadInput(f"{name} must be {wanted} {what}. Got {_kind(y)}. {CONVERT}")
        if not self.classes:
            check_finite(y, name)
        elif y.size and not 0 <= y.min() <= y.max() < self.classes:
            wrong = y.min() if y.min() < 0 else y.max()
            raise BadInput(
                f"{self.name} has the label {wrong}, but {self.classes} classes (0..{self.classes - 1}). "
                "Labels count from 0."
            )

    def _check_pixels(self) -> None:
        """Refuse images of bytes without mean and standard deviation, and features with them."""
        if self.x.dtype != np.uint8:
            if self.mean or self.std:
                raise BadInput(f"mean and std are for images of bytes. x is {_kind(self.x)}.")
            return
        given = np.array([self.mean, self.std], float) if len(self.mean) == len(self.std) else np.zeros((2, 0))
        if given.shape[1] != self.x.shape[1] or not np.isfinite(given).all() or not (given[1] > 0).all():
            raise BadInput(
                f"uint8 images need mean and std of each of {self.x.shape[1]} channels, finite and std above 0. "
                f"Got {brief(self.mean)} and {brief(self.std)}. {CONVERT}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x.shape[1:]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all samples and labels; compared when a run is resumed."""
        sha = hashlib.sha256()
        for array in (self.x, self.y, self.test_x, self.test_y):
            sha.update(f"{array.dtype}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()

    def describe(self) -> Any:
        """Return how a run folder refers to this data."""
        return self.source or {"type": "arrays", "name": self.name, "digest": self.digest}

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return f"Dataset({self.name}, {len(self.x)} train + {len(self.test_x)} test of {shape}, {self.classes} classes)"


def _kind(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else brief(value)


def check_finite(values: Array, what: str) -> None:
    """Refuse values that are not finite in the type in which they are used."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        first = int(np.argwhere(~np.isfinite(values))[0][0])
        kind = "values" if values.ndim > 1 else "targets"
        raise BadInput(
            f"{what} has {kind} that are not finite as {values.dtype}, first in sample {first}. Remove or replace them."
        )


def check_length(n: int, a: str, m: int, b: str) -> None:
    """Refuse two arrays that do not belong together."""
    if n != m:
        raise BadInput(f"{a} has {n} samples but {b} has {m}. Give one of each per sample.")


def check_class_count(classes: Any, least: int = 1) -> None:
    """Refuse what cannot be a number of classes."""
    whole = isinstance(classes, int | np.integer) and not isinstance(classes, bool)
    if not whole or not least <= classes <= MOST_CLASSES:
        raise BadInput(f"classes must be a whole number from {least} to {MOST_CLASSES}. Got {brief(classes)}.")
