"""Several clients in lockstep: their models are the rows of one matrix, and one batched product serves them all.

For small networks the cost of a step is Python, autograd and library calls, not arithmetic; stacking shares it. Chains
of the usual layers have their gradient written out (``chain``), other dense modules go through ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.local.batches import Batches
from fedweave.local.torch.chain import Layer, aligned, layers, whole
from fedweave.local.torch.threads import one_thread
from fedweave.local.torch.variance import Spread
from fedweave.local.trainer import Jobs
from fedweave.tasks import Classification, Regression, Task
from fedweave.tasks.task import Batch

if TYPE_CHECKING:
    from fedweave.local.torch.trainer import Samples

ELIGIBLE = (
    nn.Sequential,
    nn.Flatten,
    nn.Linear,
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
)
ENTRIES = 2**18  # parameters of one chunk: 1 MB of float32 stays in a core's cache
ROOM = 2**21  # numbers in the patches of one chunk: 8 MB, beyond which memory is fetched anew at every step
CONVOLUTIONS = 2**20  # multiplications of a sample in these, beyond which the library's kernels are faster
PIECES = 8  # of a round's clients, so that the cores of a machine are busy
WORTHWHILE = 2**23  # multiplications of a step of a piece: longer than its Python, so worth a worker

Gradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, y, weight) -> (G, loss) at the bound rows
Begin = Callable[[Tensor], tuple[Tensor, ...]]
Bind = Callable[[Tensor], Gradient]  # takes the rows (c, D); later changes of their values are seen


class Stack:
    """Trains chunks of clients in lockstep."""

    def __init__(self, bind: Bind, dim: int, work: int, room: int = 0):
        """Train by ``bind`` with so much work and room for each sample (see ``chain``)."""
        self.bind, self.work, self.room = bind, work, room
        self.most = max(4, min(64, ENTRIES // dim))

    @classmethod
    @one_thread()  # a few samples are not worth waking the others, which would change bits besides
    def of(cls, model: nn.Module, layout: Layout, sample: Batch, task: Task) -> Stack | None:
        """Return a stack for ``model``; None where one by one is faster (large convolutions) or needed (dropout).

        ``sample`` is one sample, without the axis of a batch.
        """
        uses = sum(p.requires_grad for _, p in model.named_parameters(remove_duplicate=False))
        if layout.parameters != layout.dim or uses != len(layout.names):  # running averages, or shared parameters
            return None
        if any(getattr(p, "_backward_hooks", None) for p in model.parameters()):  # which only autograd calls
            return None
        classify = type(task) is Classification
        known = classify or type(task) is Regression  # whose heads are written out below
        chain = (layers(model, sample.x, 0 if classify else 1) or []) if known else []
        if tuple(n for layer in chain for n in layer.names) == layout.names:
            room, convolved = sum(layer.room for layer in chain), sum(layer.work for layer in chain if layer.room)
            if convolved > (CONVOLUTIONS if sample.x.device.type == "cpu" else 0):
                return None
            return cls(written_out(chain, layout, classify), layout.dim, sum(layer.work for layer in chain), room)
        dense = all(isinstance(m, ELIGIBLE) for m in model.modules() if m is not model)
        bind = _general(model, layout, task, sample) if dense else None
        return cls(bind, layout.dim, layout.dim) if bind else None

    def suits(self, batch_size: int) -> bool:
        """Return whether batches of this size leave room in a chunk; the library does larger ones better."""
        return whole(batch_size) * self.room <= ROOM

    def pieces(self, jobs: Jobs) -> list[Array]:
        """Return the rows that train together: of one batch size and learning rate, and of similar length.

        Equal batches mean that no row is padded for another's sake, so a client's bits do not depend on its company.
        About ``PIECES`` keep the cores of a machine busy where there is enough work; a power of two, so that two or
        four workers get equal shares, and of two rows at least (see ``train``).
        """
        order = np.lexsort((-jobs.steps, jobs.lr, jobs.batch_size))
        size, lr = jobs.batch_size[order], jobs.lr[order]
        found = list[Array]()
        for rows in np.split(order, np.flatnonzero((size[1:] != size[:-1]) | (lr[1:] != lr[:-1])) + 1):
            n, samples = rows.size, whole(int(jobs.batch_size[rows[0]]))
            share = min(-(-PIECES * n // order.size), n // 2, n * samples * self.work // WORTHWHILE)
            most = min(self.most, ROOM // (samples * self.room)) if self.room else self.most
            found += np.array_split(rows, max(1 << max(share, 1).bit_length() - 1, -(-n // max(most, 1))))
        return found

    @torch.no_grad()
    def train(
        self,
        start: Tensor,
        plans: Sequence[Batches],
        samples: Samples,
        solver: Solver,
        begin: Begin,
        lr: float,
        spread: Spread,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the trained rows (c, D), mean losses and norms of the first gradient (c,); ``spread`` sees them all.

        ``plans`` are longest first, so that the active clients are a prefix; ``start`` is where all begin (D,), or each
        of them (c, D); ``begin`` makes the solver's first state.
        """
        index, weight = (torch.from_numpy(a).to(start.device) for a in _pad(plans))
        steps = np.array([p.size.size for p in plans])
        rows = aligned(len(plans), start.shape[-1:], start.device).copy_(start)
        total = torch.zeros(len(plans), device=start.device)
        state, y, gradient, first = begin(rows), rows, self.bind(rows), total
        for t in range(steps.max()):
            active = int(np.count_nonzero(steps > t))
            if active < len(y):
                y, state = rows[:active], tuple(s[:active] for s in state)
                start = start if start.dim() == 1 else start[:active]
                gradient = self.bind(y)
            g, loss = gradient(*samples.take(index[:active, t]), weight[:active, t])
            first = g.norm(dim=1) if t == 0 else first
            spread.add(g, t)
            d, state = solver.direction(state, g, y, start, lr, t)
            y.sub_(d, alpha=lr)
            total[:active] += loss
        return rows, total / torch.from_numpy(steps).to(total), first


def _pad(plans: Sequence[Batches]) -> tuple[np.ndarray, np.ndarray]:
    """Return sample positions and weights (c, steps, batch): 1/size for real samples, 0 for padding.

    Padding repeats the batch's own first sample: that of another client could be one at which this model is not finite.
    """
    steps, size = np.max([p.where.shape for p in plans], axis=0)
    shape = (len(plans), steps, whole(size))
    index, weight = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for i, plan in enumerate(plans):
        steps, size = plan.where.shape
        real = np.arange(size) < plan.size[:, None]
        index[i, :steps] = plan.where[:, :1]
        index[i, :steps, :size][real] = plan.where[real]
        weight[i, :steps, :size] = real / plan.size[:, None]
    return index, weight


def written_out(layers: Sequence[Layer], layout: Layout, classify: bool) -> Bind:
    """Return the gradient of a chain, layer by layer."""
    first = next(i for i, layer in enumerate(layers) if layer.names)  # what is before it needs no derivative

    def bind(P: Tensor) -> Gradient:
        chain, has = [copy(layer) for layer in layers], _split(P, layout)  # what they keep goes when the rows go

        def gradient(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            out = x.movedim(1, -1)
            for layer in chain:
                out = layer.forward(out, has)
            loss, d = _head(out.mT, y, weight, classify)
            d, G = d.mT, aligned(len(P), P.shape[1:], P.device)
            g = _split(G, layout)
            for i in range(len(chain) - 1, first - 1, -1):
                d = chain[i].backward(d, has, g, wanted=i > first)
            return G, loss

        return gradient

    return bind


def _split(P: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Return the layers' tensors (c, …) as views of the rows (c, D)."""
    pieces = zip(layout.names, P.split(layout.sizes, 1), layout.shapes, strict=True)
    return {name: piece.unflatten(1, shape) for name, piece, shape in pieces}


def _head(out: Tensor, y: Tensor, weight: Tensor, classify: bool) -> tuple[Tensor, Tensor]:
    """Return each client's loss (c,) and its derivative by the network's output (c, B, outputs)."""
    if classify:
        log_p = F.log_softmax(out, -1)
        loss = -(weight * log_p.gather(2, y[..., None])[..., 0]).sum(1)
        d = log_p.exp_()
        d.scatter_add_(2, y[..., None], -torch.ones_like(weight)[..., None])
        return loss, d.mul_(weight[..., None])
    error = out[..., 0] - y
    return (weight * error**2).sum(1), (2 * weight * error)[..., None]


def _general(model: nn.Module, layout: Layout, task: Task, sample: Batch) -> Bind | None:
    """Return the gradient by ``vmap(grad)``, or None when the module does not allow it (random numbers, branches)."""

    def loss(p: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        tensors = {n: t.view(s) for n, s, t in zip(layout.names, layout.shapes, p.split(layout.sizes), strict=True)}
        return (weight * task.loss(functional_call(model, tensors, (x,)), Batch(x, y))).sum()

    gradient = vmap(grad_and_value(loss))
    x, y = (t.expand(1, 2, *t.shape) for t in sample)
    device = x.device
    try:
        gradient(torch.zeros(1, layout.dim, device=device), x, y, torch.ones(1, 2, device=device))
    except Exception:  # whatever vmap cannot follow, the plain loop can
        return None
    return lambda P: partial(gradient, P)
