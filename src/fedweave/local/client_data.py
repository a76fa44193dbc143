"""The samples of all clients, as a trainer takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedweave.core.records import Array
from fedweave.data.augment import Transform
from fedweave.data.columns import Column
from fedweave.data.dataset import Dataset


class ClientData(NamedTuple):
    """The data every worker needs: one copy of the samples, and each client's positions in them."""

    x: Column
    y: Column
    test_x: Column
    test_y: Column
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parts: Sequence[Array]  # Ragged where clients are many
    test_parts: Sequence[Array] = ()  # each client's positions in the test samples
    transform: Transform | None = None

    @classmethod
    def of(cls, data: Dataset, parts: Sequence[Array], test_parts: Sequence[Array] = ()) -> ClientData:
        """Return the samples of a data set that is dealt to clients."""
        return cls(
            x=data.x,
            y=data.y,
            test_x=data.test_x,
            test_y=data.test_y,
            mean=data.mean,
            std=data.std,
            parts=parts,
            test_parts=test_parts,
            transform=data.transform,
        )
