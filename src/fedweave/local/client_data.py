"""The samples of all clients, as a trainer takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedweave.core.records import Array


class ClientData(NamedTuple):
    """The data every worker needs: one copy of the samples, and each client's positions in them."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    classes: int  # 0: a regression
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parts: Sequence[Array]
