"""The Dataset record: training and test samples as arrays, and how raw images become network input."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Dataset:
    """Samples of all clients together; a partition assigns them by index, so nothing is copied per client.

    Images stay bytes (uint8, channels first) until a batch needs them: input = (pixel / 255 − mean) / std.
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
    source: str | None = None  # the name given to fedweave.data.load, if any; lets a run be resumed from its folder

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
