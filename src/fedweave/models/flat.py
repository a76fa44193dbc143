"""Models on flattened samples: logistic regression, the MLP, and the two regressions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedweave.models import Shape
from fedweave.models.layers import chain, dense


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression (DELTA Fig. 2)."""
    return chain(dense(shape, [classes]))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """FedDD Table 2, MLP: inputs-100-64-classes."""
    return chain(dense(shape, [100, 64, classes]))


def mlp_fedaware(shape: Shape, classes: int) -> nn.Module:
    """FedAWARE's network for MNIST and Fashion-MNIST, as in its authors' code: inputs-200-200-classes."""
    return chain(dense(shape, [200, 200, classes]))


class Scalar(nn.Module):
    """Turn outputs (n, 1) into (n,), so that a loss against targets (n,) cannot broadcast to (n, n)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def linear_regression(shape: Shape, outputs: int) -> nn.Module:
    """Predict w·x + c, or as many such numbers as there are targets."""
    return chain([*dense(shape, [1]), Scalar()] if outputs == 1 else dense(shape, [outputs]))


class Quadratic(nn.Module):
    """A point x in sample space; its output for sample e is ‖x − e‖/√2, so the squared error to 0 is ½ ‖x − e‖²."""

    def __init__(self, dim: int):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dim))

    def forward(self, e: Tensor) -> Tensor:
        return ((e - self.x) ** 2).sum(-1).div(2).clamp_min(1e-20).sqrt()


def quadratic(shape: Shape, classes: int) -> nn.Module:
    """FedACS's toy example."""
    return Quadratic(shape[0])


class LogQuadratic(nn.Module):
    """DELTA's synthetic regression: y = log((a·x − b)²/2), with trainable θ = (a, b).

    DELTA does not give the initial values. a ~ U(1, 2) and b ~ U(0, 1) keep a·x − b positive for x > 1,
    on the same side of the singularity as the paper's (10, 1) and (8, 2).
    """

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.rand(2) + torch.tensor([1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.theta
        return torch.log((a * x.squeeze(-1) - b) ** 2 / 2 + 1e-12)


def log_quadratic(shape: Shape, classes: int) -> nn.Module:
    """DELTA's two-parameter regression."""
    return LogQuadratic()
