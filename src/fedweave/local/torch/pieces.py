"""The pieces into which a round's clients are cut, to train in parallel: from jobs and network alone."""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array

PIECES = 16  # of a round's small clients: cores are busy, and none waits long for the last one


def cut_into_pieces(work: Array, lr: Array, most: int) -> list[Array]:
    """Return rows in pieces with similar shares of the work (c,), the largest first: about ``most``, of one lr each."""
    pieces = list[Array]()
    for value in np.unique(lr):
        rows = np.flatnonzero(lr == value)
        order = rows[np.argsort(-work[rows], kind="stable")]
        count = max(1, min(most, order.size))
        pieces += [order[i::count] for i in range(count)]
    return sorted(pieces, key=lambda rows: -int(work[rows].sum()))
