"""Jobs for the tests of trainers."""

import numpy as np

from fedweave.local.trainer import Jobs


def jobs_of(*each, dispatch=1, lr=0.1, **more):
    """Return jobs from (client, steps, batch size) of each client, all of one dispatch and learning rate."""
    client, steps, batch_size = np.array(each, np.int64).reshape(-1, 3).T
    n = client.size
    return Jobs(client, steps, batch_size, np.full(n, dispatch), np.full(n, lr), **more)
