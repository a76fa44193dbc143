"""A local step of several clients in lockstep, its gradient written out, against the same steps one by one by autograd.

Both sides in one process with one thread, alternating; a turn is one step of all clients. The figure is the median over
turns of the ratio, for the networks around the border at which fedweave changes from one way to the other
(``fedweave.local.torch.stacked.CONVOLUTIONS``). Use: python benchmarks/steps.py [--turns 40] [--clients 5] [--batch 20]

--glue: what one call of torch's convolution costs that has next to nothing to compute, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fedweave import models
from fedweave.local.torch.chain import aligned, layers, whole
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.local.torch.stacked import CONVOLUTIONS, written_out

NETWORKS = [
    ("mlp", (1, 28, 28)),
    ("cnn_small", (1, 8, 8)),
    ("cnn_small", (1, 28, 28)),
    ("lenet5", (1, 28, 28)),
    ("cnn2", (3, 32, 32)),
    ("cnn_fedacs_cifar10", (3, 32, 32)),
]


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(name: str, shape: tuple[int, ...], clients: int, batch: int, turns: int) -> dict[str, Any]:
    """Return milliseconds per client and step of both ways, and their ratio."""
    model = models.build(name, shape, 10)
    start, flat, chain = torch.from_numpy(initial_vector(model)), FlatModule(model), layers(model, torch.zeros(shape))
    assert chain, "every network here is a chain"
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(clients, whole(batch), *shape, generator=draw)
    y = torch.randint(0, 10, x.shape[:2], generator=draw)
    weight = torch.zeros(x.shape[:2])
    weight[:, :batch] = 1 / batch
    rows = aligned(clients, start.shape, start.device).copy_(start)
    gradient = written_out(chain, flat.layout, True)(rows)

    @torch.no_grad()
    def lockstep() -> None:
        rows.sub_(gradient(x.clone(), y, weight)[0], alpha=1e-4)

    def one_by_one() -> None:
        for i in range(clients):
            g = flat.gradient(F.cross_entropy(model(flat.fit(x[i, :batch])), y[i, :batch]))
            with torch.no_grad():
                flat.parameters.sub_(g, alpha=1e-4)

    taken = np.array([(seconds(lockstep), seconds(one_by_one)) for _ in range(turns + 5)])[5:] / clients
    convolved = sum(layer.work for layer in chain if layer.room)
    return {
        "network": name,
        "shape": shape,
        "clients": clients,
        "batch": batch,
        "multiplications in convolutions": convolved,
        "fedweave trains it": "in lockstep" if convolved <= CONVOLUTIONS else "one by one",
        "lockstep_ms": round(1e3 * float(np.median(taken[:, 0])), 3),
        "one_by_one_ms": round(1e3 * float(np.median(taken[:, 1])), 3),
        "ratio": round(float(np.median(taken[:, 0] / taken[:, 1])), 2),
    }


def glue(turns: int) -> dict[str, float]:
    """Return microseconds of calls on one image of 5×5 and 10 channels: 5,000 multiplications."""
    last = torch.channels_last
    x, w = (torch.randn(n, 10, 5, 5).contiguous(memory_format=last) for n in (1, 20))
    b = torch.randn(20)
    d = torch.ones_like(F.conv2d(x, w, b))

    def backward(*wanted: bool) -> None:
        torch.ops.aten.convolution_backward(d, x, w, [20], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, list(wanted))

    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: F.conv2d(x, w, b),
        "by inputs": lambda: backward(True, False, False),
        "by weights": lambda: backward(False, True, True),
    }
    return {
        name: round(1e6 * float(np.median([seconds(c) for _ in range(20 * turns)])), 1) for name, c in calls.items()
    }


def main() -> None:
    """Measure and print one JSON object per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--glue", action="store_true", help="only the cost of a call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.glue:
        print(json.dumps(glue(options.turns)), flush=True)
        return
    for name, shape in NETWORKS:
        print(json.dumps(measure(name, shape, options.clients, options.batch, options.turns)), flush=True)


if __name__ == "__main__":
    main()
