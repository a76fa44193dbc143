"""Local steps by the compiled kernels against the same steps by torch.optim and autograd, one thread each.

Both sides in one process, alternating, in processor time; a turn is a few steps of one client. The figure is the median
over turns of the ratio, for networks from the smallest up to the border beyond which fedweave leaves a network to torch
(``fedweave.local.compiled.network.WORK``). Use: python benchmarks/steps.py [--turns 15] [--steps 5]

--compile: seconds until the kernels are ready, compiled for the first time and as an earlier program has kept them.
--cores: billions of floating-point operations a second of the kernels' matrix product, in one process and in as many at
the same time as there are cores: whether virtual cores have multipliers of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedweave import models
from fedweave.engine.machine import processor
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.local.trainer import Jobs


def vgg() -> nn.Module:
    """Return a network of wide convolutions, near the border."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2048, 10),
    )  # fmt: skip


NETWORKS: list[tuple[str, tuple[int, ...], int]] = [
    ("logistic", (1, 28, 28), 5),
    ("mlp", (1, 28, 28), 20),
    ("cnn_small", (1, 8, 8), 20),
    ("cnn_small", (1, 28, 28), 20),
    ("lenet5", (1, 28, 28), 20),
    ("cnn2", (3, 32, 32), 32),
    ("cnn_fedacs_mnist", (1, 28, 28), 50),
    ("cnn_fedacs_cifar10", (3, 32, 32), 50),
    ("vgg", (3, 32, 32), 32),
]


def measure(name: str, shape: tuple[int, ...], batch: int, steps: int, turns: int) -> dict[str, Any]:
    """Return milliseconds per step of both sides, and their ratio."""
    torch.manual_seed(0)
    model = vgg() if name == "vgg" else models.build(name, shape, 10)
    rng, n = np.random.default_rng(0), batch * steps
    x, y = rng.standard_normal((n, *shape), dtype=np.float32), rng.integers(0, 10, n)
    data = ClientData(x=x, y=y, test_x=x[:1], test_y=y[:1], mean=(), std=(), parts=[np.arange(n)])
    start, plain = initial_vector(model), models.build(name, shape, 10) if name != "vgg" else vgg()
    trainer, weights = TorchTrainer(model, data, SGD(), 0), list(plain.parameters())
    one = np.ones(1, np.int64)
    jobs = Jobs(client=0 * one, steps=steps * one, batch_size=batch * one, dispatch=one, lr=np.full(1, 1e-3))
    optimizer, images, labels = torch.optim.SGD(weights, 1e-3), torch.from_numpy(x), torch.from_numpy(y)

    def ours() -> None:
        trainer.train(start, jobs)

    def theirs() -> None:
        for some in torch.randperm(n).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(plain(images[some]), labels[some]).backward()
            optimizer.step()

    def seconds(work: Any) -> float:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin

    taken = np.array([(seconds(ours), seconds(theirs)) for _ in range(turns + 2)])[2:] / steps
    return {
        "network": name,
        "shape": shape,
        "batch": batch,
        "trainer": trainer.name,
        "multiplications of a sample": trainer.network.plan.work if trainer.network else None,
        "fedweave_ms": round(1e3 * float(np.median(taken[:, 0])), 4),
        "torch_ms": round(1e3 * float(np.median(taken[:, 1])), 4),
        "ratio": round(float(np.median(taken[:, 0] / taken[:, 1])), 3),
    }


def compiling() -> dict[str, float]:
    """Return processor seconds until the kernels can be called, in new programs with an empty and a full cache."""
    program = (
        "import time; t = time.process_time(); from fedweave.local.compiled import kernels; kernels.load();"
        "print(time.process_time() - t)"
    )
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        runs = [subprocess.check_output([sys.executable, "-c", program], env=environment) for _ in range(2)]
    return {f"{kind}_s": round(float(found), 2) for kind, found in zip(("compiled", "kept"), runs, strict=True)}


PRODUCT = """
import time
import numpy as np
from fedweave.local.compiled.layers import product
rows, count, taps = (np.int64(n) for n in (200, 784, 64))
x, w, y = (np.ones(n, np.float32) for n in (taps * count, rows * taps, rows * count))
zero, one, offset, calls = np.int64(0), np.int64(1), np.arange(taps) * count, 0
def call():
    product(y, zero, count, rows, count, w, zero, taps, one, x, zero, offset, taps, zero, np.float32(0))
call()
begin = time.perf_counter()
while time.perf_counter() - begin < 3:
    call()
    calls += 1
print(2e-9 * rows * count * taps * calls / (time.perf_counter() - begin))
"""


def cores() -> dict[str, Any]:
    """Return billions of operations a second, of one process and of all that run at the same time."""

    def together(count: int) -> list[float]:
        pipe = {"stdout": subprocess.PIPE, "text": True}
        running = [subprocess.Popen([sys.executable, "-c", PRODUCT], **pipe) for _ in range(count)]
        return [round(float(process.communicate()[0]), 1) for process in running]

    return {"alone": together(1), "together": together(os.cpu_count() or 1)}


def main() -> None:
    """Measure and print one JSON object per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cores", action="store_true", help="only the speed of one core and of all")
    parser.add_argument("--compile", action="store_true", help="only the time to compile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"processor": processor(), "load": os.getloadavg()[0]}), flush=True)
    if options.compile or options.cores:
        print(json.dumps(compiling() if options.compile else cores()), flush=True)
        return
    for name, shape, batch in NETWORKS:
        print(json.dumps(measure(name, shape, batch, options.steps, options.turns)), flush=True)


if __name__ == "__main__":
    main()
