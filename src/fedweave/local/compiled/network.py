"""A chain of layers as the table that the compiled kernels read, and the training of one client by them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from ctypes import addressof, c_char, c_int64
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput, is_foreign
from fedweave.local.batches import Batches
from fedweave.local.compiled.table import (
    ACTIVATIONS,
    BATCHES,
    BLOCK,
    CLASSIFY,
    DIM,
    FACTORS,
    FEATURES,
    GRADIENT,
    LABELS,
)
from fedweave.local.compiled.table import LARGEST, LAYERS, MODEL, MOVE, NET, NUMBERS, OF_BYTES, OFFSETS, ONES, OUTCOME
from fedweave.local.compiled.table import OUTCOMES, OUTPUTS, SAMPLES, SCALE, SHIFT, SIZES, STEPS, VALUES, WIDTH
from fedweave.local.compiled.table import Plan, chain_of, lay_out
from fedweave.local.solvers import SGD
from fedweave.local.torch.samples import Samples
from fedweave.local.torch.variance import Spread
from fedweave.tasks import Classification, Regression, Task

WORK = 2**25  # multiplications of a sample, beyond which the library's kernels are as fast
PLAIN = SGD()
REAL, WHOLE, ANY = np.dtype(np.float32), np.dtype(np.int64), c_char * 0
NO_LABELS = np.zeros(0, np.int64)
NOTHING, NO_ROWS = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)

Begin = Callable[[Tensor], tuple[Tensor, ...]]
Data = tuple[Array, Array, Array]  # samples, labels, values
Numbers = tuple[float, float, float, float]  # sum of losses, length of the first gradient, first loss, squared losses


class CompiledNetwork:
    """Trains one client after another, each in one call."""

    def __init__(self, plan: Plan, samples: Samples, dim: int, shape: tuple[int, ...]):
        from fedweave.local.compiled.kernels import load  # LLVM is loaded where it is used

        self.plan, self._samples, self._kernels, self._shape, self._dim = plan, samples, load(), shape, dim
        self._x, self._scaling = None, (NOTHING, NOTHING)
        kind = torch.float32 if samples.scale is None else torch.uint8
        if isinstance(samples.x, Tensor) and samples.x.dtype == kind:
            self._x, each = samples.x.flatten(1).contiguous().numpy(), samples.x.shape[1:]
            if samples.scale is not None:
                scale, shift = (np.ascontiguousarray(t.expand(each).reshape(-1).numpy()) for t in samples.scale)
                self._scaling = scale, shift
        labels, classify = samples.y.numpy(), bool(plan.numbers[CLASSIFY])
        labels = np.ascontiguousarray(labels, np.int64 if classify else np.float32)
        rows = NO_ROWS if self._x is None else self._x
        self._data = (rows, labels, NOTHING) if classify else (rows, NO_LABELS, labels)
        self._take_room()

    def _take_room(self) -> None:
        """Take the memory that calls write to."""
        plan, (scale, shift) = self.plan, self._scaling
        self._gradient, room = np.zeros(self._dim, np.float32), np.zeros(plan.room, np.float32)
        offset, where = np.zeros(plan.offsets, np.int64), np.zeros(plan.where, np.float32)
        room[plan.numbers[ONES] :] = 1  # nothing lies behind the ones, and nobody writes there
        self._block, self._now, self._factors = (c_int64 * BLOCK)(), None, NOTHING
        self._fixed = {NET: plan.net, NUMBERS: plan.numbers, OFFSETS: offset, LARGEST: where, ACTIVATIONS: room}
        self._fixed |= {GRADIENT: self._gradient, SCALE: scale, SHIFT: shift}  # kept: the block has addresses
        for slot, array in self._fixed.items():
            self._block[slot] = _address(array, array.dtype)
        self._block[LAYERS], self._block[DIM] = len(plan.net), self._dim

    def another(self) -> CompiledNetwork:
        """Return the same network with memory of its own, for another thread."""
        network = copy(self)
        network._take_room()
        return network

    @classmethod
    def of(cls, model: nn.Module, layout: Layout, samples: Samples, task: Task) -> CompiledNetwork | None:
        """Return the compiled form of ``model``; None where the library is faster (large convolutions) or needed.

        It is needed for other layers than those of ``chain_of``, shared or frozen parameters, running averages, several
        inputs or outputs, and for tasks with another loss than the two that are written out.
        """
        classify = type(task) is Classification
        if not classify and type(task) is not Regression:
            return None
        if samples.device.type != "cpu" or not isinstance(samples.y, Tensor) or samples.y.dim() != 1:
            return None
        first = samples.take(torch.zeros(1, dtype=torch.int64))
        if not isinstance(first.y, Tensor) or first.y.dim() != 1 or first.y.is_floating_point() == classify:
            return None  # collated samples have targets of their own
        if not isinstance(first.x, Tensor) or first.x.dtype != torch.float32:
            return None
        uses = sum(p.requires_grad for _, p in model.named_parameters(remove_duplicate=False))
        if layout.parameters != layout.dim or uses != len(layout.names):
            return None
        if any(getattr(p, "_backward_hooks", None) for p in model.parameters()):
            return None
        shape = tuple(first.x.shape[1:])
        found = chain_of(model, shape)
        if found is None or tuple(n for layer in found[0] for n in layer.names) != layout.names:
            return None
        chain, outputs = found
        if not layout.names or len(outputs) != 1:
            return None
        if not (_labels_fit(samples.y, outputs[0]) if classify else outputs == (1,)):
            return None
        plan = lay_out(chain, shape, classify)
        return cls(plan, samples, layout.dim, shape) if plan.work <= WORK else None

    def draws_nothing(self, solver: Solver) -> bool:
        """Return whether nothing that may draw takes part: stored samples, a solver of the library, no dropout."""
        return self._x is not None and not self.plan.dropouts and not is_foreign(solver)

    def in_one_call(self, solver: Solver, measure: bool) -> bool:
        """Return whether one call trains a client: plain steps on stored samples, without dropout."""
        return solver == PLAIN and not measure and self._x is not None and not self.plan.dropouts

    def train_in_one_call(self, y: Array, batches: Batches, lr: float) -> Numbers:
        """Train the parameters ``y`` in place, by plain steps; other threads go on meanwhile."""
        return self._call(y, batches.where, batches.size, self._data, lr)

    def train(self, y: Array, batches: Batches, solver: Solver, begin: Begin, lr: float, spread: Spread) -> Numbers:
        """Train the parameters ``y`` in place; return what is known of the losses and of the first gradient."""
        plain = solver == PLAIN and not spread.wanted
        parameters, start = torch.from_numpy(y), torch.from_numpy(y.copy())
        state, total, squares, first, first_loss = begin(parameters), 0.0, 0.0, 0.0, 0.0
        for t, (row, size) in enumerate(zip(batches.where, batches.size, strict=True)):
            loss, length, _, squared = self._gradient_at(y, row[:size], lr if plain else None)
            total, squares = total + loss, squares + squared
            first, first_loss = (length, loss) if t == 0 else (first, first_loss)
            if plain:
                continue
            g = torch.from_numpy(self._gradient.copy())
            spread.add(g[None], t)
            d, state = solver.direction(state, g, parameters, start, lr, t)
            if solver.sends_last_step and t == len(batches.size) - 1:
                y[:] = start.numpy()
            y -= np.float32(lr) * d.numpy()  # as the kernel does it: multiplied, rounded, subtracted
        return total, first, first_loss, squares

    def _gradient_at(self, y: Array, index: Array, lr: float | None = None) -> Numbers:
        """Compute the gradient on these samples, with ``lr`` also the step; return the loss and so on."""
        if self._x is not None:
            self._draw(index.size)
            return self._call(y, index[None], np.array([index.size]), self._data, lr)
        batch = self._samples.take(torch.from_numpy(index))  # lazy; collated ones have their own labels
        rows = self._rows(batch.x)
        data = rows, *self._answers(batch.y, len(rows))
        self._draw(len(rows))
        return self._call(y, np.arange(len(rows))[None], np.array([len(rows)]), data, lr)

    def _draw(self, count: int) -> None:
        """Draw the factors of dropout layers for a batch: from torch's generator, as the layers would one by one."""
        if self._factors.size < count * self.plan.factors:
            self._factors = np.empty(count * self.plan.factors, np.float32)
            self._block[FACTORS] = _address(self._factors, REAL)
        for p, shape, place, channels_last, samples_last in self.plan.dropouts:
            order = torch.channels_last if channels_last else torch.contiguous_format
            ones = torch.empty(count, *shape, dtype=torch.float32, memory_format=order).fill_(1)
            drawn = F.dropout(ones, p)
            drawn = (drawn.movedim(0, -1) if samples_last else drawn).numpy()
            to = self._factors[count * place : count * (place + prod(shape))]
            np.copyto(to.reshape(drawn.shape), drawn)

    def outputs(self, y: Array, x: Tensor) -> Tensor:
        """Return what the network with parameters ``y`` says of samples (n, outputs)."""
        data, every = (self._rows(x), NO_LABELS, NOTHING), np.arange(len(x))
        out = np.empty((len(x), int(self.plan.numbers[OUTPUTS])), np.float32)
        self._call(np.ascontiguousarray(y), every[None], np.array([len(x)]), data, out=out)
        return torch.from_numpy(out)

    def _rows(self, x: Tensor) -> Array:
        """Return samples as the kernels read them, after making sure that they are what the table was made for."""
        if x.shape[1:] != self._shape or x.dtype != torch.float32:
            got, wanted = f"{tuple(x.shape[1:])} of {x.dtype}", f"{self._shape} of torch.float32"
            raise BadInput(f"All samples must have the shape and type of the first, {wanted}. Got {got}.")
        return x.flatten(1).contiguous().numpy()

    def _answers(self, y: Tensor, count: int) -> tuple[Array, Array]:
        """Return the labels and values of lazy samples, after making sure that there is a fitting one for each."""
        classify, outputs = bool(self.plan.numbers[CLASSIFY]), int(self.plan.numbers[OUTPUTS])
        if y.shape != (count,) or (classify and not _labels_fit(y, outputs)):
            wanted = f"{count} whole numbers from 0 to {outputs - 1}" if classify else f"{count} numbers"
            raise BadInput(f"A batch of {count} samples needs {wanted} as targets. Got {y.dtype}{tuple(y.shape)}.")
        if classify:
            return np.ascontiguousarray(y.numpy(), np.int64), NOTHING
        return NO_LABELS, np.ascontiguousarray(y.numpy(), np.float32)

    def _call(
        self, y: Array, batches: Array, sizes: Array, data: Data, lr: float | None = None, out: Array = NOTHING
    ) -> Numbers:
        """Call the kernel: write what it asks for into the block, and with ``lr`` move ``y``."""
        block = self._block
        if data is not self._now:
            x, labels, values = self._now = data
            block[SAMPLES], block[FEATURES], block[OF_BYTES] = _address(x, x.dtype), x.shape[1], x.dtype == np.uint8
            block[LABELS], block[VALUES] = _address(labels, WHOLE), _address(values, REAL)
        block[MODEL], block[MOVE] = _address(y, REAL), lr is not None
        block[BATCHES], block[SIZES] = _address(batches, WHOLE), _address(sizes, WHOLE)
        block[STEPS], block[WIDTH] = batches.shape
        block[OUTCOME], block[OUTCOMES] = _address(out, REAL) if out.size else 0, out.size
        return self._kernels(block, lr or 0.0)


def _address(array: Any, kind: np.dtype[Any]) -> int:
    """Return where numbers lie, after making sure that they are of this kind and lie one after another."""
    flags = array.flags
    if array.dtype != kind or not flags.c_contiguous:
        raise TypeError(f"The compiled kernels read {kind} that lie one after another. Got {array.dtype}.")
    return addressof(ANY.from_buffer(array)) if flags.writeable else array.ctypes.data  # three times as fast


def _labels_fit(y: Any, outputs: int) -> bool:
    return not y.dtype.is_floating_point and (not y.numel() or 0 <= int(y.min()) <= int(y.max()) < outputs)
