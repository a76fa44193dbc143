"""A chain of layers as a table that the compiled kernels read: what each layer does, and where its numbers lie."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedweave.core.records import Array

LINEAR, CONVOLUTION, POOL, RELU, SAMPLES_FIRST, DROPOUT = range(6)  # kinds of layers, those with weights first
# Columns of the table, one row per layer: the places of inputs, outputs, weights and biases; the shapes of inputs and
# outputs (features are channels); size, padding and stride of windows; the places of padded inputs and of the positions
# of largest ones, or of a dropout's factors; whether samples lie last there.
KIND, X, Y, W, B, C, H, V, O, P, Q, K, L, PAD_H, PAD_V, STEP_H, STEP_V, PADDED, WHERE, LAST = range(20)  # noqa: E741
COLUMNS = 20
# Numbers of a network: its first layer with weights; samples that fit into the room; the place of the outputs, and how
# many there are; the places of two rooms for derivatives, of one for padded ones and of ones; whether it classifies;
# whether it begins with images.
FIRST, FIT, OUT, OUTPUTS, D, OTHER, ROOM, ONES, CLASSIFY, IMAGES = range(10)
# The block of a call: first the addresses of its arrays, then sizes and whether samples are bytes and the model moves.
NET, NUMBERS, MODEL, GRADIENT, ACTIVATIONS, OFFSETS, LARGEST, SAMPLES, LABELS, VALUES, SCALE, SHIFT = range(12)
BATCHES, SIZES, OUTCOME, FACTORS, LAYERS, DIM, FEATURES, OF_BYTES, STEPS, WIDTH, MOVE, OUTCOMES = range(12, 24)
BLOCK = 24

CACHED = 2**18  # numbers of a step's activations and derivatives: 1 MB of float32 stays in a core's cache
LEAST = 4  # samples that go through the layers together even if they need more room

Shape = tuple[int, ...]


class Layer(NamedTuple):
    """One layer: what its row of the table says, and what it needs."""

    row: dict[int, int]  # column -> value
    outputs: int  # numbers of a sample
    names: tuple[str, ...] = ()  # its parameters
    parameters: int = 0
    work: int = 0  # multiplications of a sample
    padded: int = 0  # numbers of a padded sample
    run: int = 0  # pixels of a line of outputs
    p: float = 0.0  # share that a dropout drops
    shape: Shape = ()  # of its samples


def chain_of(model: nn.Module, shape: Shape) -> tuple[list[Layer], Shape] | None:
    """Return the layers of ``model`` for such samples and the shape of its outputs; None for a layer not known here.

    Known are Linear, Conv2d (stride 1), MaxPool2d, ReLU, Dropout, Flatten and Identity in nested Sequentials, and no
    class of a user's nor anything that is watched by hooks.
    """
    found = list[Layer]()
    for name, module in model.named_modules(remove_duplicate=False):  # of nested sequences, in the order of their work
        if _is_watched(module):
            return None
        if type(module) in (nn.Sequential, nn.Identity):
            continue
        step = _layer(name, module, shape)
        if step is None:
            return None
        layer, shape = step
        found += [layer] if layer else []
    return found, shape


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_watched(module: nn.Module) -> bool:
    """Return whether somebody sees, or changes, what passes through a module."""
    return any(vars(module)[hooks] for hooks in HOOKS) or "forward" in vars(module)


def _layer(name: str, module: nn.Module, shape: Shape) -> tuple[Layer | None, Shape] | None:
    """Return the layer (None for one that does nothing) and the shape of its outputs; None if it is not known."""
    size = prod(shape)
    names = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")  # a model that is one layer has no name
    if type(module) is nn.ReLU:
        return Layer({KIND: RELU, C: size}, size), shape
    if type(module) is nn.Dropout:
        return Layer({KIND: DROPOUT, C: size}, size, p=module.p, shape=shape), shape
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        turn = Layer({KIND: SAMPLES_FIRST, C: size}, size) if len(shape) == 3 else None
        return turn, (size,)
    if type(module) is nn.Linear and module.bias is not None and shape == (module.in_features,):
        row, out = {KIND: LINEAR, C: size, O: module.out_features}, module.out_features
        return Layer(row, out, names, (size + 1) * out, size * out), (out,)
    if type(module) is nn.MaxPool2d and len(shape) == 3:
        return _pool(module, shape)
    if type(module) is nn.Conv2d and len(shape) == 3:
        return _convolution(names, module, shape)
    return None


def _pool(module: nn.MaxPool2d, shape: Shape) -> tuple[Layer, Shape] | None:
    c, h, v = shape
    size, step, pad, dilation = (_pair(s) for s in (module.kernel_size, module.stride, module.padding, module.dilation))
    if module.return_indices or dilation != (1, 1):
        return None
    p, q = module(torch.zeros(1, *shape)).shape[-2:]
    row = {KIND: POOL, C: c, H: h, V: v, O: c, P: p, Q: q, K: size[0], L: size[1]}
    row |= {PAD_H: pad[0], PAD_V: pad[1], STEP_H: step[0], STEP_V: step[1]}
    return Layer(row, c * p * q), (c, p, q)


def _convolution(names: tuple[str, str], module: nn.Conv2d, shape: Shape) -> tuple[Layer, Shape] | None:
    usual = module.stride == module.dilation == (1, 1) and module.groups == 1 and module.padding_mode == "zeros"
    if not usual or module.bias is None or isinstance(module.padding, str):
        return None
    (c, h, v), o, (rows, columns), (high, wide) = shape, module.out_channels, module.kernel_size, module.padding
    p, q = h + 2 * high - rows + 1, v + 2 * wide - columns + 1
    row = {KIND: CONVOLUTION, C: c, H: h, V: v, O: o, P: p, Q: q, K: rows, L: columns}
    row |= {PAD_H: high, PAD_V: wide}
    padded = c * (h + 2 * high) * (v + 2 * wide) if high or wide else 0
    count = module.weight.numel()
    return Layer(row, o * p * q, names, count + o, count * p * q, padded, q), (o, p, q)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


class Dropout(NamedTuple):
    """What is drawn for a dropout layer."""

    p: float  # share that is dropped
    shape: Shape  # of a sample
    place: int  # of its factors, for each sample of a batch
    channels_last: bool  # how torch keeps such samples: it draws in the order of its memory
    samples_last: bool  # how the kernels keep them


class Plan(NamedTuple):
    """A network laid out for the kernels."""

    net: Array  # (layers, columns)
    numbers: Array
    room: int  # numbers of the room that a step takes
    where: int  # of the positions of largest ones
    offsets: int
    work: int  # multiplications of a sample
    dropouts: tuple[Dropout, ...]
    factors: int  # numbers that they draw for a sample


def lay_out(chain: list[Layer], shape: Shape, classify: bool) -> Plan:
    """Return a table in which every layer knows its places, for as many samples as fit into the room."""
    inputs, images = prod(shape), any(layer.row[KIND] in (CONVOLUTION, POOL) for layer in chain)
    chain = [layer for layer in chain if images or layer.row[KIND] != SAMPLES_FIRST]
    own = [0 if layer.row[KIND] in (RELU, DROPOUT) else layer.outputs for layer in chain]  # over their inputs
    largest, padded = max(inputs, *(layer.outputs for layer in chain)), max(layer.padded for layer in chain)
    line = max(layer.run for layer in chain)
    sample = inputs + sum(own) + sum(layer.padded for layer in chain) + 2 * largest + padded + line
    fit = max(LEAST, CACHED // sample)
    net, end = np.zeros((len(chain), COLUMNS), np.int64), 0

    def take(count: int) -> int:
        nonlocal end
        end += fit * count
        return end - fit * count

    x, parameters, where, factors, last = take(inputs), 0, 0, 0, images
    # Torch keeps images channels last if a convolution's weights are seen to be.
    channels_last = shape[0] > 1 and any(layer.row[KIND] == CONVOLUTION for layer in chain)
    dropouts = list[Dropout]()
    for row, layer, size in zip(net, chain, own, strict=True):
        for column, value in layer.row.items():
            row[column] = value
        row[X], row[PADDED] = x, take(layer.padded) if layer.padded else x
        x = row[Y] = take(size) if size else x
        row[W], row[B], row[WHERE] = parameters, parameters + layer.parameters - layer.row.get(O, 0), where
        parameters += layer.parameters
        where += fit * layer.outputs if row[KIND] == POOL else 0
        last = last and row[KIND] != SAMPLES_FIRST
        if row[KIND] == CONVOLUTION:  # a single channel is in no such order, nor is what a 1 × 1 kernel makes of it
            channels_last = prod(row[[C, K, L]].tolist()) > 1
        if row[KIND] == DROPOUT:
            row[WHERE], row[LAST] = factors, last
            dropouts.append(Dropout(layer.p, layer.shape, factors, channels_last and len(layer.shape) == 3, last))
            factors += layer.outputs
    numbers = np.zeros(10, np.int64)
    numbers[FIRST] = next(i for i, layer in enumerate(chain) if layer.names)  # what is before needs no derivative
    numbers[FIT], numbers[OUT], numbers[OUTPUTS] = fit, x, chain[-1].outputs
    numbers[D], numbers[OTHER], numbers[ROOM], numbers[ONES] = map(take, (largest, largest, padded, line))
    numbers[CLASSIFY], numbers[IMAGES] = classify, images
    taps = max(int(row[C] * max(row[K] * row[L], 1)) for row in net)
    offsets = max(fit, taps, int(net[:, O].max()))
    work = sum(layer.work for layer in chain)
    return Plan(net, numbers, end, where, offsets, work, tuple(dropouts), factors)
