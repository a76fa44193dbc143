"""Parameter counts of the networks, by hand from the papers' tables."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedweave import models

GREY, RGB, CELEBA = (1, 28, 28), (3, 32, 32), (3, 84, 84)


def size(name: str, shape: tuple[int, ...], classes: int = 10) -> int:
    return sum(p.numel() for p in models.build(name, shape, classes).parameters())


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * kernel * kernel * outputs + outputs


def fc(*widths: int) -> int:
    return sum(a * b + b for a, b in pairwise(widths))


def test_feddd_table_2():
    assert size("mlp", (784,)) == size("mlp", GREY) == fc(784, 100, 64, 10) == 85_614
    assert size("cnn_small", GREY) == conv(1, 10, 5) + conv(10, 20, 5) + fc(320, 50, 10) == 21_840
    cnn2 = conv(3, 16, 3) + conv(16, 32, 3) + conv(32, 64, 3) + fc(1024, 500, 100, 10)
    assert size("cnn2", RGB) == cnn2 == 587_194


@pytest.mark.parametrize(
    ("name", "channels", "hidden"),
    [
        ("feddd_a1", (64, 128, 256, 512, 512), (100, 100)),
        ("feddd_a2", (64, 128, 256, 256, 512), (100, 100)),
        ("feddd_a3", (64, 128, 256, 256, 512), (80, 100)),
        ("feddd_a4", (32, 128, 256, 256, 512), (80, 100)),
        ("feddd_a5", (32, 96, 256, 256, 512), (80, 100)),
        ("feddd_b1", (64, 128, 256, 512, 512), (100, 100)),
        ("feddd_b2", (64, 128, 256, 512, 256), (100, 100)),
        ("feddd_b3", (64, 128, 256, 256, 256), (80, 80)),
        ("feddd_b4", (32, 96, 256, 256, 256), (80, 80)),
        ("feddd_b5", (32, 96, 128, 128, 256), (80, 80)),
    ],
)
def test_feddd_tables_3_and_6(name: str, channels: tuple[int, ...], hidden: tuple[int, ...]):
    convs = sum(conv(a, b, 3) for a, b in pairwise((3, *channels)))
    assert size(name, RGB) == convs + fc(channels[-1], *hidden, 10)


def test_feddd_full_model():
    assert size("feddd_a1", RGB) == size("feddd_b1", RGB) == 3_973_194


def test_fedaware():
    """The sizes of the authors' networks: 784-200-200-10, and 32-64-64 channels before 1024-64-10."""
    assert size("mlp_fedaware", GREY) == fc(784, 200, 200, 10) == 199_210
    assert size("cnn_fedaware", RGB) == conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + fc(1024, 64, 10)


def test_fedacs_table_3():
    mnist = conv(1, 10, 3) + conv(10, 20, 3) + fc(20 * 7 * 7, 50, 10)
    convs = conv(3, 32, 3) + conv(32, 32, 3)
    assert size("cnn_fedacs_mnist", GREY) == mnist == 51_480
    assert size("cnn_fedacs_cifar10", RGB) == convs + fc(32 * 8 * 8, 256, 64, 10) == 551_786
    assert size("cnn_fedacs_cinic10", RGB) == convs + fc(32 * 8 * 8, 512, 256, 10) == 1_193_130


def test_lenet5():
    count = conv(1, 6, 5) + conv(6, 16, 5) + fc(400, 120, 84, 10)
    assert size("lenet5", GREY) == size("lenet5", (1, 32, 32)) == count == 61_706


def test_leaf():
    femnist = conv(1, 32, 5) + conv(32, 64, 5) + fc(64 * 7 * 7, 2048, 62)
    assert size("cnn_leaf", GREY, 62) == femnist == 6_603_710
    celeba = conv(3, 32, 3) + 3 * conv(32, 32, 3) + 4 * 2 * 32 + fc(32 * 6 * 6, 2)
    assert size("cnn_leaf_celeba", CELEBA, 2) == celeba == 31_202


def test_resnet18():
    def block(a: int, b: int) -> int:
        return 9 * a * b + 9 * b * b + 4 * b + (a * b + 2 * b if a != b else 0)

    pairs = [(64, 64), (64, 128), (128, 256), (256, 512)]
    blocks = sum(block(a, b) + block(b, b) for a, b in pairs)
    count = 9 * 3 * 64 + 2 * 64 + blocks + fc(512, 10)
    assert size("resnet18", RGB) == size("resnet18_bn", RGB) == count == 11_173_962


def test_small():
    assert size("logistic", (64,)) == size("logistic", (1, 8, 8)) == 650
    assert size("linear_regression", (5,), 0) == 6
    assert size("log_quadratic", (1,), 0) == 2


@pytest.mark.parametrize("family", ["feddd_a", "feddd_b"])
def test_submodels_get_smaller(family: str):
    sizes = [size(f"{family}{i}", RGB) for i in range(1, 6)]
    assert sizes == sorted(set(sizes), reverse=True)
