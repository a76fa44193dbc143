"""ResNet-18 for small images: 3×3 stem, no max-pool (He et al. 2016, as usual for CIFAR)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fedweave.models import Shape

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    """Two groups, as is common in federated learning; they divide any even width."""
    return nn.GroupNorm(2, channels)


def batch_norm(channels: int) -> nn.Module:
    """Batch statistics in training and in evaluation: no running averages to exchange."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected when the size changes."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = norm(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != width:
            projection = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=norm(width)))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def resnet18(shape: Shape, classes: int, norm: Norm = group_norm) -> nn.Module:
    """ResNet-18 (DELTA's CIFAR-10 network) with GroupNorm, which does not mix the samples of a batch."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), norm1=norm(64), relu1=nn.ReLU()
    )
    inputs = 64
    for i, width in enumerate([64, 128, 256, 512], 1):
        for j, stride in enumerate([1 if i == 1 else 2, 1], 1):
            layers[f"block{i}_{j}"] = Block(inputs, width, stride, norm)
            inputs = width
    layers.update(pool1=nn.AdaptiveAvgPool2d(1), flatten1=nn.Flatten(), fc1=nn.Linear(512, classes))
    return nn.Sequential(layers)


def resnet18_bn(shape: Shape, classes: int) -> nn.Module:
    """The same with BatchNorm, as He et al. print it."""
    return resnet18(shape, classes, batch_norm)
