"""The pieces into which a round's clients are cut, to train together and in parallel: from jobs and network alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedweave.core.records import Array
from fedweave.local.torch.chain import whole
from fedweave.local.trainer import Jobs

PIECES = 8  # of a round's clients, so that the cores of a machine are busy
WORTHWHILE = 2**23  # multiplications of a step of a piece: longer than its Python, so worth a worker


def cut_into_pieces(jobs: Jobs, work: int, fits: Callable[[int], int]) -> list[Array]:
    """Return the rows that train together, the longest first: of one batch size and learning rate, in equal shares.

    ``work``: multiplications of a sample; ``fits(samples)``: how many clients with batches of this size fit into one
    piece. Equal batches mean that no row is padded for another's sake, so a client's bits do not depend on its company.
    A group too large for its pieces is cut by length first, so that long jobs train with their like. Up to ``PIECES``
    keep the cores of a machine busy where there is enough work; a power of two, so that two or four workers get equal
    shares. Two pieces have two rows or more, more pieces four or more: smaller stacks take longer per client.
    """
    order = np.lexsort((-jobs.steps, jobs.lr, jobs.batch_size))
    size, lr = jobs.batch_size[order], jobs.lr[order]
    found = list[Array]()
    for rows in np.split(order, np.flatnonzero((size[1:] != size[:-1]) | (lr[1:] != lr[:-1])) + 1):
        n, samples = rows.size, whole(int(jobs.batch_size[rows[0]]))
        worth = min(-(-PIECES * n // order.size), n * samples * work // WORTHWHILE)
        wanted = max(1, min(worth, max(n // 4, min(n // 2, 2))))
        count = 1 << wanted.bit_length() - 1
        for some in np.array_split(rows, -(-n // (fits(samples) * count))):
            found += [some[i::count] for i in range(min(count, some.size))]
    return found
