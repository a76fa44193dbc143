"""Local training in PyTorch: clients one by one (any module), or several in lockstep (small modules)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.local.batches import Job, batches
from fedweave.local.torch.flat_module import FlatModule
from fedweave.local.torch.stacked import Stack
from fedweave.local.torch.variance import Spread
from fedweave.local.trainer import Piece, Recalled, Trained, Trainer

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
EVALUATION_BATCH = 500  # fixed, so that the sums over the test set do not depend on who computes them


class ClientData(NamedTuple):
    """The data every worker needs: one copy of the samples, and each client's positions in them."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parts: Sequence[Array]


class Score(NamedTuple):
    """Sums over a slice of the test set."""

    loss: float
    correct: Array  # (classes,)
    total: Array  # (classes,)


class Samples:
    """A set of samples that hands out batches ready for the network."""

    def __init__(self, x: Array, y: Array, mean: Sequence[float], std: Sequence[float], device: torch.device):
        self.x = torch.from_numpy(np.asarray(x)).to(device)
        self.y = torch.from_numpy(np.asarray(y)).to(device)
        one = (-1,) + (1,) * (self.x.dim() - 2)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float32))).reshape(one).to(device) if std else None
        self.shift = (
            (-torch.tensor(mean, dtype=torch.float32) / torch.tensor(std, dtype=torch.float32)).reshape(one).to(device)
            if std
            else None
        )

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels at ``index``, of any shape."""
        flat = index.reshape(-1)
        x = self.x.index_select(0, flat)
        if self.scale is not None and self.shift is not None:
            x = x.to(torch.float32).mul_(self.scale).add_(self.shift)
        return x.reshape(*index.shape, *x.shape[1:]), self.y.index_select(0, flat).reshape(index.shape)


class TorchTrainer(Trainer):
    """Trains clients from a given model and measures models; the same object in the main process and in workers."""

    def __init__(self, model: nn.Module, data: ClientData, solver: Solver, seed: int, device: str = "cpu"):
        self.device = torch.device(device)
        if device != "cpu":  # same seed, same bits: no algorithm that is chosen by timing or adds up in any order
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
            torch.backends.cudnn.allow_tf32 = False
        self.data, self.solver, self.seed = data, solver, seed
        self.train_set = Samples(data.x, data.y, data.mean, data.std, self.device)
        self.test_set = Samples(data.test_x, data.test_y, data.mean, data.std, self.device)
        self.flat = FlatModule(model.to(self.device))
        self.batch_norm = any(isinstance(m, BATCH_NORMS) for m in model.modules())
        sample, _ = self.train_set.take(torch.zeros((), dtype=torch.int64, device=self.device))
        self.stack = Stack.of(model, self.flat.layout, sample, bool(data.classes))

    @property
    def layout(self) -> Layout:
        """The model's tensors in the flat vector."""
        return self.flat.layout

    def chunks(self, jobs: Sequence[Job], hands: int) -> list[list[int]]:
        """Split jobs into pieces that train together, for as many ``hands``; no client's bits depend on its company."""
        if self.stack is None:
            return [[i] for i in range(len(jobs))]
        return self.stack.chunks([job._replace(batch_size=self._width(job)) for job in jobs], hands)

    def _width(self, job: Job) -> int:
        """Return how many samples a client's batches have: no more than it owns."""
        return min(job.batch_size, self.data.parts[job.client].size)

    def train(self, x: Array, piece: Piece) -> Trained:
        round, jobs, lr, recalled, measure, starts = piece
        self.flat.module.train()
        if self.stack is None or not self.stack.suits(max(map(self._width, jobs))):
            rows = [
                self._train_one(x if starts is None else starts[i], round, job, lr, recalled, measure, i)
                for i, job in enumerate(jobs)
            ]
            y, loss, first, variance = (np.stack(column) for column in zip(*rows, strict=True))
            return Trained(y - x, loss, first, variance)
        start = torch.from_numpy(x if starts is None else starts).to(self.device)
        plans = list(batches(self.seed, round, jobs, self.data.parts))
        begin, spread = partial(self._begin, recalled=recalled), Spread(measure)
        y, loss, first = self.stack.train(start, plans, self.train_set, self.solver, begin, lr, spread)
        variance = spread.variance([job.steps for job in jobs])
        if starts is not None:
            start = torch.from_numpy(x).to(self.device)
        return Trained((y - start).cpu().numpy(), loss.cpu().numpy(), first.cpu().numpy(), variance)

    def _begin(self, y: Tensor, recalled: Recalled | None, only: int | None = None) -> tuple[Tensor, ...]:
        """Return the solver's state at the start: of all rows in lockstep, or of the ``only`` client that trains."""
        if recalled is None:
            return self.solver.begin(y)
        memory, sent, share = recalled
        if only is not None:
            control = None if sent is None else self.flat.inner(sent)
            return self.solver.begin_with_memory(y, self.flat.inner(memory[only]), control, float(share[only]))
        control = None if sent is None else torch.from_numpy(sent).to(y)
        share = torch.from_numpy(share).to(y)[:, None]
        return self.solver.begin_with_memory(y, torch.from_numpy(memory).to(y), control, share)

    def _train_one(
        self, x: Array, round: int, job: Job, lr: float, recalled: Recalled | None, measure: bool, i: int
    ) -> tuple[Array, float, float, float]:
        (plan,) = batches(self.seed, round, [job], self.data.parts)
        index = torch.from_numpy(plan.where).to(self.device)
        flat, solver = self.flat, self.solver
        flat.load(x)
        y = flat.parameters
        first, spread = float("nan"), Spread(measure)
        start, state = y.clone(), self._begin(y, recalled, i)
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        with torch.random.fork_rng(devices=[]):  # layers with randomness draw at the client's own address
            torch.manual_seed(int(rng_for(self.seed, round, Stream.NOISE, job.client).integers(2**63)))
            for t in range(job.steps):
                if self.batch_norm:  # one sample has no spread: such a batch uses the running averages
                    flat.module.train(bool(plan.size[t] > 1))
                xb, yb = self.train_set.take(index[t, : int(plan.size[t])])
                loss = self._loss(flat.module(flat.fit(xb)), yb)
                g = flat.gradient(loss)
                first = float(g.norm()) if t == 0 else first
                with torch.no_grad():
                    spread.add(g[None], t)
                    d, state = solver.direction(state, g, y, start, lr, t)
                    y.sub_(d, alpha=lr)
                    total += loss
        return flat.read(), float(total) / job.steps, first, float(spread.variance([job.steps])[0])

    def gradient(self, x: Array, client: int) -> Array:
        """Return the gradient (D,) of a client's whole loss at ``x``, layers as when measuring; buffers have none."""
        self.flat.load(x)
        self.flat.module.eval()
        part = torch.from_numpy(np.asarray(self.data.parts[client])).to(self.device)
        total = torch.zeros_like(self.flat.parameters)
        for index in part.split(EVALUATION_BATCH):
            xb, yb = self.train_set.take(index)
            total += self.flat.gradient(self._loss(self.flat.module(self.flat.fit(xb)), yb, "sum"))
        return self.flat.outer(total / len(part))

    def variance(self, x: Array, round: int, client: int, batch_size: int) -> float:
        """Return the variance at ``x`` of the gradients of one pass over a client's batches, as when measuring."""
        self.flat.load(x)
        self.flat.module.eval()
        part = self.data.parts[client]
        (plan,) = batches(self.seed, round, [Job(client, -(-part.size // batch_size), batch_size)], self.data.parts)
        spread = Spread(True)
        for t, (row, size) in enumerate(zip(torch.from_numpy(plan.where).to(self.device), plan.size, strict=True)):
            xb, yb = self.train_set.take(row[: int(size)])
            g = self.flat.gradient(self._loss(self.flat.module(self.flat.fit(xb)), yb))
            spread.add(g[None], t)
        return float(spread.variance([plan.size.size])[0])

    @torch.no_grad()
    def loss(self, x: Array, client: int) -> float:
        """Return the mean loss of ``x`` on a client's data, layers as when measuring."""
        self.flat.load(x)
        self.flat.module.eval()
        part = torch.from_numpy(np.asarray(self.data.parts[client])).to(self.device)
        pieces = (self.train_set.take(index) for index in part.split(EVALUATION_BATCH))
        total = sum(float(self._loss(self.flat.module(self.flat.fit(xb)), yb, "sum")) for xb, yb in pieces)
        return total / len(part)

    def _loss(self, out: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        if self.data.classes:
            return F.cross_entropy(out, y, reduction=reduction)
        return F.mse_loss(out.reshape(y.shape), y, reduction=reduction)

    @torch.no_grad()
    def evaluate(self, x: Array, begin: int, end: int) -> Score:
        """Return the sums over test samples [begin, end)."""
        self.flat.load(x)
        self.flat.module.eval()
        xb, yb = self.test_set.take(torch.arange(begin, end, device=self.device))
        out = self.flat.module(self.flat.fit(xb))
        loss, classes = float(self._loss(out, yb, "sum")), self.data.classes
        if not classes:
            return Score(loss, np.zeros(0, np.int64), np.zeros(0, np.int64))
        hit = yb[out.argmax(1) == yb]
        return Score(loss, *(torch.bincount(v, minlength=classes).cpu().numpy() for v in (hit, yb)))
