"""Several clients in lockstep: their models are the rows of one matrix, and one batched product serves them all.

For small networks the cost of a step is Python, autograd and library calls, not arithmetic; stacking shares it. Chains
of the usual layers have their gradient written out (``chain``), other dense modules go through ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedweave.core.records import Layout
from fedweave.core.roles import Solver
from fedweave.local.batches import Batches, Job
from fedweave.local.torch.chain import Layer, aligned, layers, whole
from fedweave.local.torch.threads import one_thread
from fedweave.local.torch.variance import Spread

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
PLACELESS: dict[Hashable, bool] = {}  # by kind of network: trying it takes as long as a few rounds of a small one
WORTHWHILE = 2**22  # multiplications of a step of a chunk: about as long as its Python, so worth a worker

Gradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, y, weight) -> (G, loss) at the bound rows
Begin = Callable[[Tensor], tuple[Tensor, ...]]
Bind = Callable[[Tensor], Gradient]  # takes the rows (c, D); later changes of their values are seen


class Stack:
    """Trains chunks of clients in lockstep."""

    def __init__(self, bind: Bind, dim: int, work: int = 0, room: int = 0, placeless: bool = False):
        """Train by ``bind`` with so much work and room for each sample (see ``chain``).

        ``placeless``: a client's bits are the same whoever stands beside it, so that chunks may suit the workers.
        """
        self.bind, self.work, self.room, self.placeless = bind, work, room, placeless
        self.most = max(4, min(64, ENTRIES // dim))

    @classmethod
    @one_thread()  # a few samples are not worth waking the others, which would change bits besides
    def of(cls, model: nn.Module, layout: Layout, sample: Tensor, classify: bool) -> Stack | None:
        """Return a stack for ``model``; None where one by one is faster (large convolutions) or needed (dropout)."""
        uses = sum(p.requires_grad for _, p in model.named_parameters(remove_duplicate=False))
        if layout.parameters != layout.dim or uses != len(layout.names):  # running averages, or shared parameters
            return None
        if any(getattr(p, "_backward_hooks", None) for p in model.parameters()):  # which only autograd calls
            return None
        chain = layers(model, sample, 0 if classify else 1) or []
        if tuple(n for layer in chain for n in layer.names) == layout.names:
            room, convolved = sum(layer.room for layer in chain), sum(layer.work for layer in chain if layer.room)
            if convolved > (CONVOLUTIONS if sample.device.type == "cpu" else 0):
                return None
            bind = written_out(chain, layout, classify)
            kind = repr([(type(layer), vars(layer)) for layer in chain]), layout, sample.shape, sample.device, classify
            if kind not in PLACELESS:
                PLACELESS[kind] = _placeless(bind, layout.dim, sample, classify)
            return cls(bind, layout.dim, sum(layer.work for layer in chain), room, PLACELESS[kind])
        dense = all(isinstance(m, ELIGIBLE) for m in model.modules() if m is not model)
        bind = _general(model, layout, classify, sample) if dense else None
        return cls(bind, layout.dim) if bind else None

    def suits(self, batch_size: int) -> bool:
        """Return whether batches of this size leave room in a chunk; the library does larger ones better."""
        return whole(batch_size) * self.room <= ROOM

    def chunks(self, jobs: Sequence[Job], hands: int) -> list[list[int]]:
        """Group jobs of the same batch size and cut each group into equal shares for the ``hands`` that train.

        Equal batches mean that no row is padded for another's sake, so a client's bits do not depend on its company.
        A group too large for one chunk per hand is cut by length first, so that long jobs train with their like.
        """
        order = sorted(range(len(jobs)), key=lambda i: (jobs[i].batch_size, -jobs[i].steps, i))
        found = list[list[int]]()
        for size, group in groupby(order, key=lambda i: jobs[i].batch_size):
            mine = list(group)
            share = -(-hands * len(mine) // len(jobs))  # of the hands, for this group
            share = max(1, min(share, len(mine) * whole(size) * self.work // WORTHWHILE)) if self.placeless else 1
            fits = ROOM // (whole(size) * self.room) if self.room else self.most
            most = max(1, min(self.most, fits))  # one by one what does not ``suit``
            for some in np.array_split(mine, -(-len(mine) // (most * share))):
                found += [some[i::share].tolist() for i in range(min(share, some.size))]
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


@torch.no_grad()
def _placeless(bind: Bind, dim: int, sample: Tensor, classify: bool) -> bool:
    """Return whether three equal clients get equal bits, which one alone gets too: with this network, on this machine.

    Where a library's products differ by place in yet another way than ``chain`` provides for, this finds out.
    """
    draw, device = torch.Generator().manual_seed(0), sample.device
    row = 0.1 * torch.randn(dim, generator=draw)
    for size in (4, 20):
        x = torch.randn(size, *sample.shape, generator=draw).to(device)
        found = list[Tensor]()
        for count in (1, 3):
            rows = aligned(count, (dim,), device).copy_(row)
            y = torch.zeros(count, size, dtype=torch.int64 if classify else torch.float32, device=device)
            weight = torch.full((count, size), 0.1, device=device)
            found += bind(rows)(x.repeat(count, *[1] * x.dim()), y, weight)[0]
        if not all(torch.equal(g, found[0]) for g in found):
            return False
    return True


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
