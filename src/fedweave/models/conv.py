"""Convolutional networks of FedDD Table 2, FedACS Table 3, LeNet-5 (LatencySel) and LEAF (DELTA)."""

from __future__ import annotations

from torch import nn

from fedweave.models import Shape
from fedweave.models.layers import chain, dense, stages


def cnn_small(shape: Shape, classes: int) -> nn.Module:
    """FedDD Table 2, CNN1: 5×5 convolutions without padding (28-24-12-8-4).

    Below 16×16 these do not fit; there the convolutions are padded by 2 (digits: 8-8-4-4-2, 80 flat inputs).
    """
    padding = 0 if min(shape[1:]) >= 16 else 2
    layers, out = stages(shape, [10, 20], kernel=5, padding=padding)
    return chain([*layers, *dense(out, [50, classes])])


def cnn2(shape: Shape, classes: int) -> nn.Module:
    """FedDD Table 2, CNN2: padding 1, the only one that gives the 1024 flat inputs printed."""
    layers, out = stages(shape, [16, 32, 64], kernel=3, padding=1)
    return chain([*layers, *dense(out, [500, 100, classes])])


def cnn_fedacs_mnist(shape: Shape, classes: int) -> nn.Module:
    """FedACS Table 3, MNIST: C(1,10) - C(10,20) - D - L(50) - L(10).

    Taken literally, this is an affine map apart from the dropout. As in the other two columns, each convolution
    is followed by ReLU and max-pool, and the hidden layer by ReLU.
    """
    layers, out = stages(shape, [10, 20], kernel=3, padding=1)
    return chain([*layers, nn.Dropout(0.2), *dense(out, [50, classes])])


def cnn_fedacs_cifar10(shape: Shape, classes: int) -> nn.Module:
    """FedACS Table 3, CIFAR-10."""
    layers, out = stages(shape, [32, 32], kernel=3, padding=1)
    return chain([*layers, *dense(out, [256, 64, classes])])


def cnn_fedacs_cinic10(shape: Shape, classes: int) -> nn.Module:
    """FedACS Table 3, CINIC-10: dropout before each linear layer."""
    layers, out = stages(shape, [32, 32], kernel=3, padding=1)
    return chain([*layers, *dense(out, [512, 256, classes], dropout=0.2)])


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 as used today, with ReLU and max-pool.

    LeCun et al. (1998) pad 28×28 digits to 32×32; so does the first convolution for anything below 32×32.
    """
    padding = 2 if min(shape[1:]) < 32 else 0
    first, middle = stages(shape, [6], kernel=5, padding=padding)
    second, out = stages(middle, [16], kernel=5, padding=0)
    return chain([*first, *second, *dense(out, [120, 84, classes])])


def cnn_leaf(shape: Shape, classes: int) -> nn.Module:
    """LEAF's FEMNIST network: 5×5 convolutions that keep the size, 2048 hidden units."""
    layers, out = stages(shape, [32, 64], kernel=5, padding=2)
    return chain([*layers, *dense(out, [2048, classes])])


def cnn_leaf_celeba(shape: Shape, classes: int) -> nn.Module:
    """LEAF's CelebA network: pooling rounds up (84-42-21-11-6).

    As in LEAF, batch norm uses the statistics of the current batch, in training and in evaluation.
    """
    layers, out = stages(shape, [32] * 4, kernel=3, padding=1, norm=True, ceil=True)
    return chain([*layers, *dense(out, [classes])])


def cnn_fedaware(shape: Shape, classes: int) -> nn.Module:
    """FedAWARE's network for CIFAR-10, as in its authors' code: 3×3 convolutions 32-64-64 without padding, 64 hidden.

    The first two are pooled. Convolutions start Kaiming-normal (fan out), linear weights N(0, 0.01²), biases at zero.
    """
    layers, (channels, *sides) = stages(shape, [32, 64], kernel=3, padding=0)
    layers += [nn.Conv2d(channels, 64, 3), nn.ReLU()]
    net = chain([*layers, *dense((64, *(side - 2 for side in sides)), [64, classes])])
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net
