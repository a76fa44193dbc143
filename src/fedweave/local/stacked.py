"""Several clients in lockstep: their models are the rows of one matrix, and one batched product serves them all.

For small dense networks the cost of a step is Python and autograd, not arithmetic; stacking shares it. Networks of
Linear and ReLU layers have their gradient written out here, any other eligible module goes through ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedweave.local.batches import Batches, Job
from fedweave.local.spread import Spread
from fedweave.records import Layout
from fedweave.roles import Solver

if TYPE_CHECKING:
    from fedweave.local.torch_trainer import Samples

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

Gradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, y, weight) -> (G, loss) at the bound rows
Begin = Callable[[Tensor], tuple[Tensor, ...]]
Bind = Callable[[Tensor], Gradient]  # takes the rows (c, D); later changes of their values are seen


class Stack:
    """Trains chunks of clients in lockstep."""

    def __init__(self, bind: Bind, dim: int):
        self.bind = bind
        self.limit = max(4, min(64, ENTRIES // dim))

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, sample: Tensor, classify: bool) -> Stack | None:
        """Return a stack for ``model``; None where one by one is faster (convolutions) or needed (dropout)."""
        below = [m for m in model.modules() if m is not model]
        if layout.parameters != layout.dim or not all(isinstance(m, ELIGIBLE) for m in below):
            return None
        bind = _dense(model, layout, classify, sample.numel()) or _general(model, layout, classify, sample)
        return cls(bind, layout.dim) if bind else None

    def chunks(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Group jobs of the same batch size and cut each group evenly, the longest jobs first.

        Equal batches mean that no row is padded for another's sake, so a client's bits do not depend on its company.
        """
        order = sorted(range(len(jobs)), key=lambda i: (jobs[i].batch_size, -jobs[i].steps, i))
        groups = [list(g) for _, g in groupby(order, key=lambda i: jobs[i].batch_size)]
        return [c.tolist() for g in groups for c in np.array_split(g, -(-len(g) // self.limit))]

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
        rows = start.repeat(len(plans), 1) if start.dim() == 1 else start.clone()
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
    """Return sample positions and weights (c, steps, batch): 1/size for real samples, 0 for padding."""
    shape = (len(plans), *np.max([p.where.shape for p in plans], axis=0))
    index, weight = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for i, plan in enumerate(plans):
        steps, size = plan.where.shape
        index[i, :steps, :size] = plan.where
        weight[i, :steps, :size] = (np.arange(size) < plan.size[:, None]) / plan.size[:, None]
    return index, weight


def _dense(model: nn.Module, layout: Layout, classify: bool, width: int) -> Bind | None:
    """Return the written-out gradient of Linear (ReLU Linear)*, or None for any other model."""
    kinds = [type(m) for m in model.modules() if type(m) not in (nn.Sequential, nn.Flatten, nn.Identity)]
    depth = kinds.count(nn.Linear)
    pattern = [nn.Linear, *[nn.ReLU, nn.Linear] * (depth - 1)]
    if kinds != pattern or len(layout.names) != 2 * depth:  # a layer without bias goes the general way
        return None
    for rows, columns in layout.shapes[::2]:  # and so does one that works on a part of each sample
        if columns != width:
            return None
        width = rows

    def bind(P: Tensor) -> Gradient:
        tensors = _split(P, layout)
        W, b = tensors[::2], [b[:, None] for b in tensors[1::2]]

        def gradient(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            inputs = [x.flatten(2)]  # of each layer; after a ReLU they also say where it let through
            for i in range(depth - 1):
                inputs.append(torch.baddbmm(b[i], inputs[i], W[i].mT).relu_())
            loss, d = _head(torch.baddbmm(b[-1], inputs[-1], W[-1].mT), y, weight, classify)
            G = torch.empty_like(P)
            slots = _split(G, layout)
            for i in range(depth - 1, -1, -1):
                slots[2 * i].baddbmm_(d.mT, inputs[i], beta=0)
                torch.sum(d, 1, out=slots[2 * i + 1])
                if i:
                    d = torch.bmm(d, W[i]).mul_(inputs[i] > 0)
            return G, loss

        return gradient

    return bind


def _split(P: Tensor, layout: Layout) -> list[Tensor]:
    """Return the layers' tensors (c, …) as views of the rows (c, D)."""
    return [p.unflatten(1, s) for p, s in zip(P.split(layout.sizes, 1), layout.shapes, strict=True)]


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


def _general(model: nn.Module, layout: Layout, classify: bool, sample: Tensor) -> Bind | None:
    """Return the gradient by ``vmap(grad)``, or None when the module does not allow it (random numbers, branches)."""

    def loss(p: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        tensors = {n: t.view(s) for n, s, t in zip(layout.names, layout.shapes, p.split(layout.sizes), strict=True)}
        out = functional_call(model, tensors, (x,))
        each = F.cross_entropy(out, y, reduction="none") if classify else (out.reshape(y.shape) - y) ** 2
        return (weight * each).sum()

    gradient = vmap(grad_and_value(loss))
    x = sample.expand(1, 2, *sample.shape)
    y = torch.zeros(1, 2, dtype=torch.int64 if classify else torch.float32, device=sample.device)
    try:
        gradient(torch.zeros(1, layout.dim, device=sample.device), x, y, torch.ones(1, 2, device=sample.device))
    except Exception:  # whatever vmap cannot follow, the plain loop can
        return None
    return lambda P: partial(gradient, P)
