"""Several clients in lockstep: their models are the rows of one matrix, and one batched product serves them all.

For small networks the cost of a step is Python, autograd and library calls, not arithmetic; stacking shares it. So
chains of the usual layers have their gradient written out (``chain``). ``torch.func.vmap`` would do it for any module,
but lays out each client's tensors where a product may round otherwise: there a client's bits depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.local.batches import Batches
from fedweave.local.torch.chain import Layer, aligned, layers, whole
from fedweave.local.torch.pieces import cut_into_pieces
from fedweave.local.torch.variance import Spread
from fedweave.local.trainer import Jobs
from fedweave.tasks import Batch, Classification, Regression, Task

if TYPE_CHECKING:
    from fedweave.local.torch.trainer import Samples

ENTRIES = 2**18  # parameters of one piece: 1 MB of float32 stays in a core's cache
ROOM = 2**21  # numbers in the patches of one piece: 8 MB, beyond which memory is fetched again at every step
CONVOLUTIONS = 2**20  # multiplications of a sample in these, beyond which the library's kernels are faster

Gradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (x, y, weight) -> (G, loss) at the bound rows
Begin = Callable[[Tensor], tuple[Tensor, ...]]
Bind = Callable[[Tensor], Gradient]  # takes the rows (c, D); later changes of their values are seen


class Stack:
    """Trains pieces of clients in lockstep."""

    def __init__(self, chain: Sequence[Layer], layout: Layout, classify: bool):
        self.bind = written_out(chain, layout, classify)
        self.work, self.room = sum(layer.work for layer in chain), sum(layer.room for layer in chain)
        self.most = max(4, min(64, ENTRIES // layout.dim))

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, batch: Batch, task: Task) -> Stack | None:
        """Return a stack for ``model``; None where one by one is faster (large convolutions) or needed.

        It is needed for modules with other layers than those of ``chain``, or with shared parameters, running averages
        or hooks, for several inputs or outputs, and for tasks with another loss than the two that are written out here.
        """
        classify, sample = type(task) is Classification, batch.x
        if not classify and type(task) is not Regression:
            return None
        if not all(isinstance(part, Tensor) for part in batch) or not sample.is_floating_point() or batch.y.dim() != 1:
            return None
        sample = sample[0]
        uses = sum(p.requires_grad for _, p in model.named_parameters(remove_duplicate=False))
        if layout.parameters != layout.dim or uses != len(layout.names):
            return None
        if any(getattr(p, "_backward_hooks", None) for p in model.parameters()):
            return None
        chain = layers(model, sample, 0 if classify else 1) or []
        if tuple(n for layer in chain for n in layer.names) != layout.names:
            return None
        convolved = sum(layer.work for layer in chain if layer.room)
        if convolved > (CONVOLUTIONS if sample.device.type == "cpu" else 0):
            return None
        return cls(chain, layout, classify)

    def suits(self, batch_size: int) -> bool:
        """Return whether batches of this size leave room for two clients; the library does larger ones better."""
        return 2 * whole(batch_size) * self.room <= ROOM

    def pieces(self, jobs: Jobs) -> list[Array]:
        """Return the rows that train together."""
        return cut_into_pieces(jobs, self.work, self._fits)

    def _fits(self, samples: int) -> int:
        """Return how many clients with batches of this size fit into one piece."""
        if not self.suits(samples):
            return 1
        return min(self.most, ROOM // (samples * self.room)) if self.room else self.most

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

        Libraries have other ways for products and sums of one row, which round otherwise. So a client that is alone, or
        whose companions have finished, trains beside a copy of itself: its bits do not depend on its company.
        """
        index, weight = (torch.from_numpy(a).to(start.device) for a in _pad(plans))
        steps, active = np.array([p.size.size for p in plans]), 0
        rows = aligned(len(plans), start.shape[-1:], start.device).copy_(start)
        y, gradient, state = rows, self.bind(rows), begin(rows)
        total = first = torch.zeros(len(plans), device=start.device)
        for t in range(steps.max()):
            before, active = active, int(np.count_nonzero(steps > t))
            if active != before:
                some = slice(active) if active > 1 else [0, 0]
                y = rows[:active] if active > 1 else aligned(2, rows.shape[1:], rows.device).copy_(rows[0])
                index, weight, *state = (s[some] for s in (index, weight, *state))
                start = start if start.dim() == 1 else start[some]
                gradient = self.bind(y)
            g, loss = gradient(*samples.take(index[:, t]), weight[:, t])
            first = g.norm(dim=1)[:active] if t == 0 else first
            spread.add(g, t, active)
            d, state = solver.direction(tuple(state), g, y, start, lr, t)
            y.sub_(d, alpha=lr)
            total[:active] += loss[:active]
        if active == 1:
            rows[0] = y[0]
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
