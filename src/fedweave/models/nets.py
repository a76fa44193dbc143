"""The functions that build the models, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from fedweave.models import SUBMODELS, Shape, conv, feddd, flat, resnet, text

FACTORIES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "logistic": flat.logistic,
    "mlp": flat.mlp,
    "mlp_fedaware": flat.mlp_fedaware,
    "cnn_small": conv.cnn_small,
    "cnn2": conv.cnn2,
    **{
        f"{family}{i}": partial(feddd.submodel, family, i)
        for family, members in SUBMODELS.items()
        for i, _ in enumerate(members, 1)
    },
    "cnn_fedacs_mnist": conv.cnn_fedacs_mnist,
    "cnn_fedacs_cifar10": conv.cnn_fedacs_cifar10,
    "cnn_fedacs_cinic10": conv.cnn_fedacs_cinic10,
    "cnn_fedaware": conv.cnn_fedaware,
    "lenet5": conv.lenet5,
    "cnn_leaf": conv.cnn_leaf,
    "cnn_leaf_celeba": conv.cnn_leaf_celeba,
    "resnet18": resnet.resnet18,
    "resnet18_bn": resnet.resnet18_bn,
    "linear_regression": flat.linear_regression,
    "log_quadratic": flat.log_quadratic,
    "quadratic": flat.quadratic,
}

TEXT: dict[str, Callable[[Shape, int, int, bool], nn.Module]] = {  # also told how many tokens, and where to answer
    "lstm": text.lstm,
    "lstm_leaf": text.lstm_leaf,
    "transformer": text.transformer,
}
