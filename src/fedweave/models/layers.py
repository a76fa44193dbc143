"""Building blocks of the networks: named chains, convolution stages and dense layers."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn

from fedweave.models import Shape

_KIND: dict[type[nn.Module], str] = {
    nn.Conv2d: "conv",
    nn.Linear: "fc",
    nn.ReLU: "relu",
    nn.MaxPool2d: "pool",
    nn.BatchNorm2d: "norm",
    nn.Dropout: "dropout",
    nn.Flatten: "flatten",
}


def chain(layers: Sequence[nn.Module]) -> nn.Sequential:
    """Chain layers under readable names: conv1, pool1, relu1, ..., fc2."""
    seen: Counter[str] = Counter()
    named: OrderedDict[str, nn.Module] = OrderedDict()
    for layer in layers:
        kind = _KIND.get(type(layer), type(layer).__name__.lower())
        seen[kind] += 1
        named[f"{kind}{seen[kind]}"] = layer
    return nn.Sequential(named)


def stages(
    shape: Shape, widths: Sequence[int], kernel: int, padding: int, *, norm: bool = False, ceil: bool = False
) -> tuple[list[nn.Module], Shape]:
    """Return convolution (– batch norm) – 2×2 max-pool – ReLU for each width, and the output shape.

    ReLU and max-pool commute, so pooling first computes the papers' functions whichever order they print.
    """
    channels, *sides = shape
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(nn.Conv2d(channels, width, kernel, padding=padding))
        if norm:  # statistics of the batch, also when evaluating
            layers.append(nn.BatchNorm2d(width, track_running_stats=False))
        layers += [nn.MaxPool2d(2, ceil_mode=ceil), nn.ReLU()]
        sides = [(side + 2 * padding - kernel + 1 + ceil) // 2 for side in sides]
        channels = width
    return layers, (channels, *sides)


def dense(shape: Shape, widths: Sequence[int], dropout: float = 0.0) -> list[nn.Module]:
    """Return Flatten and linear layers of these widths, ReLU between them, dropout before each if asked."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = prod(shape)
    for width in widths:
        layers += [nn.Dropout(dropout)] if dropout else []
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return layers[:-1]
