"""The gradient of a chain of layers, written out for several clients at once.

Samples lie last: images are (clients, channels, height, width, batch). So a shift of all images of a batch is one view
with long runs, and a convolution is a few matrix products with shifted copies.
Written out, a step has neither the price of autograd nor that of a library call for each client and convolution.

A product's last bits depend on where its operands lie modulo 16 bytes (MKL, AVX2). So batches are multiples of four
samples, and what else a client owns begins at such a place (``aligned``): then its position in the stack is all one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LANES = 4  # numbers in 16 bytes
FEW_ROWS = 32  # a product over fewer rows of patches than this is slow, so all shifts go into one product

Tensors = Mapping[str, Tensor]  # parameters, or their gradients: (clients, *shape) by name
Shape = tuple[int, ...]


def whole(count: int) -> int:
    """Return ``count``, or the next number that fills all lanes."""
    return -(-count // LANES) * LANES


def aligned(clients: int, shape: Shape, device: torch.device) -> Tensor:
    """Return room (clients, *shape) in which each client's part begins at a multiple of 16 bytes."""
    size = prod(shape)
    return torch.empty(clients, whole(size), dtype=torch.float32, device=device)[:, :size].unflatten(1, shape)


class Layer(ABC):
    """One layer of several clients. ``forward`` keeps what ``backward`` needs, until the next ``forward``."""

    names: tuple[str, ...] = ()  # its parameters
    work: int = 0  # multiplications for one sample
    room: int = 0  # numbers in the patches of one sample, if it has patches

    @abstractmethod
    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        """Return the outputs (clients, …, batch) at the parameters ``has``; the inputs may be overwritten."""

    @abstractmethod
    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        """Write the gradients ``g``, given the derivative by the outputs; return that by the inputs if ``wanted``."""


class Linear(Layer):
    """y = W x + b.

    Small batches are multiplied faster with samples as rows in memory, last to the eye only; where that makes products
    with rows of an odd length, their bits would depend on place.
    """

    def __init__(self, name: str, linear: nn.Linear):
        self.names = self.weight, self.bias = _names(name)
        self.work = linear.weight.numel()

    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        self.x = x
        W, b = has[self.weight], has[self.bias]
        if W.shape[1] % LANES:
            return torch.baddbmm(b[:, :, None], W, x)
        return torch.baddbmm(b[:, None], x.mT, W.mT).mT

    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        g[self.weight].baddbmm_(d, self.x.mT, beta=0)
        torch.sum(d, 2, out=g[self.bias])
        if not wanted:
            return d
        W = has[self.weight]
        return torch.bmm(W.mT, d) if W.shape[2] % LANES else torch.bmm(d.mT, W).mT


class ReLU(Layer):
    """y = max(x, 0)."""

    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        self.y = x.relu_()
        return self.y

    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        return torch.ops.aten.threshold_backward(d, self.y, 0)


class Flatten(Layer):
    """All features of a sample in one axis."""

    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        self.shape = x.shape
        return x.flatten(1, -2)

    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        return d.contiguous().view(self.shape)


class MaxPool(Layer):
    """The largest of each window, the first of equals. To torch, the batch is the channels of channels-last images."""

    def __init__(self, pool: nn.MaxPool2d):
        self.how = [_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]
        self.ceil = pool.ceil_mode

    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        self.x = x.flatten(0, 1).permute(0, 3, 1, 2)
        y, self.where = torch.ops.aten.max_pool2d_with_indices(self.x, *self.how, self.ceil)
        return y.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])

    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        flat = d.flatten(0, 1).permute(0, 3, 1, 2)
        back = torch.ops.aten.max_pool2d_with_indices_backward(flat, self.x, *self.how, self.ceil, self.where)
        return back.permute(0, 2, 3, 1).unflatten(0, d.shape[:2])


class Convolution(Layer):
    """y[o, r, s] = b[o] + Σ over c, i, j of W[o, c, i, j] x[c, r + i, s + j], with x padded by zeros.

    Patches hold the shifts along the width; those along the height are slices of them, one product for each. Few
    channels would make these products too thin: then patches hold the shifts along the height as well.
    """

    def __init__(self, name: str, conv: nn.Conv2d, shape: Shape):
        self.names = self.weight, self.bias = _names(name)
        self.kernel, self.padding = conv.kernel_size, tuple(map(int, conv.padding))
        (K, L), (channels, height, width) = self.kernel, shape
        self.rows = K if channels * L < FEW_ROWS else 1  # of a kernel, in the patches
        self.shifts = range(K - self.rows + 1)
        line = width + 2 * self.padding[1] - L + 1
        self.room = channels * self.rows * L * (height + 2 * self.padding[0] - self.rows + 1) * line
        self.work = conv.weight.numel() * (height + 2 * self.padding[0] - K + 1) * line

    def forward(self, x: Tensor, has: Tensors) -> Tensor:
        high, wide = self.padding
        x = (F.pad(x, (0, 0, wide, wide, high, high)) if high or wide else x).contiguous()
        self.shape = clients, channels, height, width, batch = x.shape
        (K, L), line = self.kernel, width * batch
        self.tall, self.run = height - self.rows + 1, line - (L - 1) * batch  # rows of patches, and their length
        shape = (clients, channels, self.rows, L, self.tall, self.run)
        patches = x.as_strided(shape, (channels * height * line, height * line, line, batch, line, 1))
        self.patches = patches.reshape(clients, -1, self.tall * self.run)
        self.kernels = [self._kernel(has[self.weight], i) for i in self.shifts]
        y = torch.baddbmm(has[self.bias][:, :, None], self.kernels[0], self._shifted(self.patches, 0))
        for i in self.shifts[1:]:
            y.baddbmm_(self.kernels[i], self._shifted(self.patches, i))
        return y.view(clients, -1, height - K + 1, width - L + 1, batch)

    def backward(self, d: Tensor, has: Tensors, g: Tensors, wanted: bool) -> Tensor:
        d = d.flatten(2)
        for i in self.shifts:
            part = self._room(g[self.weight], i)
            part.baddbmm_(d, self._shifted(self.patches, i).mT, beta=0)
            if len(self.shifts) > 1:
                g[self.weight][:, :, :, i] = part.unflatten(2, (-1, self.kernel[1]))
        torch.sum(d, 2, out=g[self.bias])
        return self._back(d) if wanted else d

    def _back(self, d: Tensor) -> Tensor:
        """Return the derivative by the inputs: that by the patches, each shift brought back to where it came from."""
        q = torch.zeros_like(self.patches)
        for i in self.shifts:
            self._shifted(q, i).baddbmm_(self.kernels[i].mT, d)
        clients, channels, height, width, batch = self.shape
        q = q.view(clients, channels, self.rows, -1, self.tall, self.run)
        x = d.new_zeros(clients, channels, height, width * batch)
        for i in range(self.rows):
            for j in range(self.kernel[1]):
                x[:, :, i : i + self.tall, j * batch : j * batch + self.run] += q[:, :, i, j]
        high, wide = self.padding
        return x.view(self.shape)[:, :, high : height - high, wide : width - wide].contiguous()

    def _kernel(self, W: Tensor, i: int) -> Tensor:
        """Return the kernels' rows from i on as matrices (clients, outputs, …)."""
        return W.flatten(2) if len(self.shifts) == 1 else self._room(W, i).copy_(W[:, :, :, i].flatten(2))

    def _room(self, W: Tensor, i: int) -> Tensor:
        """Return where such matrices can be written: ``W`` itself if there is one for each client, else new room."""
        return W.flatten(2) if len(self.shifts) == 1 else aligned(len(W), W[0, :, :, i].flatten(1).shape, W.device)

    def _shifted(self, patches: Tensor, i: int) -> Tensor:
        """Return the patches from row i on, as many as there are rows of outputs."""
        return patches[:, :, i * self.run : (i + self.tall - len(self.shifts) + 1) * self.run]


WRITTEN_OUT = (nn.Identity, nn.ReLU, nn.Flatten, nn.Linear, nn.MaxPool2d, nn.Conv2d)  # these, and no class of a user's


@torch.no_grad()
def layers(model: nn.Module, sample: Tensor, outputs: int = 0) -> list[Layer] | None:
    """Return the layers of ``model`` for such samples; None if it is no chain of those above, to so many outputs."""
    found, x = list[Layer](), sample[None]
    for name, module in model.named_modules(remove_duplicate=False):  # of nested sequences, in the order of their work
        if _watched(module):
            return None
        if type(module) is nn.Sequential:
            continue
        step = _layer(name, module, tuple(x.shape[1:])) if type(module) in WRITTEN_OUT else None
        if step is None:
            return None
        found += step
        x = module(x)
    return found if x.dim() == 2 and x.shape[1] == (outputs or x.shape[1]) else None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _watched(module: nn.Module) -> bool:
    """Return whether somebody wants to see, or to change, what passes through a module."""
    return any(vars(module)[hooks] for hooks in HOOKS) or "forward" in vars(module)


def _layer(name: str, module: nn.Module, shape: Shape) -> list[Layer] | None:
    """Return the layer, nothing for one that does nothing, or None for one that is not written out here."""
    match module:
        case nn.Identity():
            return []
        case nn.ReLU():
            return [ReLU()]
        case nn.Flatten(start_dim=1, end_dim=-1):
            return [Flatten()]
        case nn.Linear(bias=nn.Parameter()) if shape == (module.in_features,):
            return [Linear(name, module)]
        case nn.MaxPool2d(return_indices=False) if len(shape) == 3:
            return [MaxPool(module)]
        case nn.Conv2d(bias=nn.Parameter(), stride=(1, 1), dilation=(1, 1), groups=1, padding=(int(), int())) if (
            len(shape) == 3 and module.padding_mode == "zeros"
        ):
            return [Convolution(name, module, shape)]
        case _:
            return None


def _names(name: str) -> tuple[str, str]:
    return f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")  # a model that is one layer has no name


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
