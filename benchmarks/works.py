"""The workloads of the benchmarks: one round of each in fedweave, and as a bare eager PyTorch loop.

W1: 100 clients × 200 images of 28×28, 10 sampled, 2 epochs of batch 20, a small CNN.
W2: 1000 clients × 20 samples, 50 sampled, 5 epochs of batch 5, logistic regression.
W3: 100 clients × 500 images of 3×32×32, 10 sampled, one epoch of batch 32, FedDD's CNN2.
W4: W1 with uneven work: 1 to 39 steps, spread evenly over the clients.
W6: 100 clients × 100 sequences of 80 characters, 10 sampled, one epoch of batch 10, an LSTM that predicts the next one.
W7: 100 clients × 600 images of 28×28, 10 sampled, one epoch of batch 64, an MLP 784-200-200-10.
W8: 10 clients × 64 images of 3×32×32, 2 sampled, one epoch of batch 32 (two steps), ResNet-18 with GroupNorm.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave import methods, models
from fedweave.core.determinism import deterministic
from fedweave.core.records import Array, Population
from fedweave.data.columns import Items
from fedweave.engine.machine import processor
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.torch_simulator import torch_simulator
from fedweave.local.client_data import ClientData
from fedweave.local.torch.flat_module import initial_vector
from fedweave.method import Method
from fedweave.models.layers import chain, dense
from fedweave.round import first_state, run_round

CHARACTERS = 80


class Work(NamedTuple):
    """One workload; ``aim``: seconds per round over those of the bare loop, at most."""

    clients: int
    samples: int
    sampled: int
    epochs: int
    batch: int
    model: str
    aim: float | None = None
    shape: tuple[int, ...] = (1, 28, 28)
    uneven: int = 0  # steps of the client with the most work, where they differ
    lr: float = 0.05

    @property
    def is_text(self) -> bool:
        """Whether the samples are sequences, with an answer at every position."""
        return len(self.shape) == 1

    @property
    def steps(self) -> Array:
        """Local steps of each client."""
        if self.uneven:
            return np.linspace(1, self.uneven, self.clients).round().astype(np.int64)
        return np.full(self.clients, self.epochs * -(-self.samples // self.batch))

    @property
    def factory(self) -> Callable[[], nn.Module]:
        """What builds the network; training processes need not import this module to call it."""
        if self.model == "200-200":
            layers = dense(self.shape, [200, 200, 10])
            return partial(chain, layers)
        if self.is_text:
            return partial(models.build, self.model, self.shape, CHARACTERS, tokens=CHARACTERS, each=True)
        return partial(models.build, self.model, self.shape, 10)


W1 = Work(100, 200, 10, 2, 20, "cnn_small", aim=0.25)
WORKS = {
    "W1": W1,
    "W2": Work(1000, 20, 50, 5, 5, "logistic", aim=0.04),
    "W3": Work(100, 500, 10, 1, 32, "cnn2", aim=0.6, shape=(3, 32, 32)),
    "W4": W1._replace(uneven=39, aim=0.3),
    "W6": Work(100, 100, 10, 1, 10, "lstm", shape=(80,)),
    "W7": Work(100, 600, 10, 1, 64, "200-200", aim=0.4),
    "W8": Work(10, 64, 2, 1, 32, "resnet18", aim=1.05, shape=(3, 32, 32)),
}


def made_data(work: Work) -> tuple[Array, Array]:
    """Return random samples and labels, (clients, samples, ...): the time does not depend on what they show."""
    rng, size = np.random.default_rng(0), (work.clients, work.samples)
    if work.is_text:
        text = rng.integers(0, CHARACTERS, (*size, work.shape[0] + 1))
        return text[..., :-1], text[..., 1:]
    return rng.standard_normal((*size, *work.shape), dtype=np.float32), rng.integers(0, 10, size)


def bare_loop(work: Work, x: Array, y: Array) -> Callable[[Array], None]:
    """Return one round of FedAvg with given clients, as anybody writes it in eager PyTorch."""
    inputs, labels, steps = torch.from_numpy(x), torch.from_numpy(y), work.steps
    model = work.factory()
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=work.lr)
    server = [w.detach().clone() for w in weights]

    def one_round(clients: Array) -> None:
        total = [torch.zeros_like(w) for w in server]
        for client in clients.tolist():
            with torch.no_grad():
                torch._foreach_copy_(weights, server)
            xs, ys, todo = inputs[client], labels[client], int(steps[client])
            while todo:
                for batch in torch.randperm(work.samples).split(work.batch)[:todo]:
                    optimizer.zero_grad()
                    _loss(model(xs[batch]), ys[batch]).backward()
                    optimizer.step()
                    todo -= 1
            with torch.no_grad():
                torch._foreach_add_(total, weights)
        for w, t in zip(server, total, strict=True):
            w.copy_(t / len(clients))

    return one_round


def _loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), labels.flatten())


class Stored:
    """A map-style data set that returns stored images, as people write them."""

    def __init__(self, x: Array, y: Array):
        self.x, self.y = torch.from_numpy(x), y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


def fedweave_round(
    work: Work,
    x: Array,
    y: Array,
    workers: Pool,
    method: Method | None = None,
    lazy: bool = False,
    latency: Array | None = None,
) -> Callable[[], Array]:
    """Return one round of a method, everything in it: sampling, training, admission, aggregation, step, learning.

    Each call returns the clients that trained.
    """
    n = work.clients
    parts = list(np.arange(n * work.samples).reshape(n, work.samples))
    flat_x, flat_y = x.reshape(-1, *work.shape), y.reshape(-1, *y.shape[2:])
    inputs: Any = Items(Stored(flat_x, flat_y)) if lazy else flat_x
    data = ClientData(x=inputs, y=flat_y, test_x=inputs[:1], test_y=flat_y[:1], mean=(), std=(), parts=parts)
    method = (method or methods.fedavg(work.sampled)).widened
    model = work.factory
    engine = torch_simulator(model, data, method.solver, 0, workers)
    one = np.ones(n)
    population = Population(
        weight=one / n,
        samples=one * work.samples,
        steps=work.steps,
        batch_size=np.full(n, work.batch),
        loss_rate=0 * one,
        latency=one if latency is None else latency,
        available=one > 0,
    )
    state = first_state(method, initial_vector(model()), population, engine.layout.parameters)

    blas = ThreadpoolController()

    def one_round() -> Array:
        nonlocal state
        with deterministic(blas):  # as every run does: the server's arithmetic has one thread, beside the workers
            state, done = run_round(method, state, population, engine, work.lr, 0)
        return done.cohort.ids

    return one_round


def seconds(function: Callable[..., object], threads: int, *arguments: Any) -> float:
    """Return how long one call takes with this many torch threads in the main process."""
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def environment() -> dict[str, Any]:
    """Return the processor, the versions and the load, which every figure depends on."""
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    load = [round(value, 2) for value in os.getloadavg()]
    return {"processor": processor(), "cores": os.cpu_count(), "versions": versions, "load_average": load}
