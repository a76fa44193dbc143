"""Server optimisers: how the server steps along the direction. The adaptive ones follow Reddi et al. (2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fedweave.core.records import Array, Layout, State
from fedweave.core.roles import ServerOptimizer
from fedweave.core.settings import NonNegativeFactor, PositiveFactor, settings

Share = Annotated[float, Field(ge=0, lt=1)]


Step = Callable[[State, Array, Array], tuple[Array, State]]  # ServerOptimizer.step


def advance(step: Step, state: State, x: Array, direction: Array, layout: Layout) -> tuple[Array, State]:
    """Step the parameters; buffers (running averages) only follow the direction, so that they never overshoot."""
    p, direction = layout.parameters, direction.astype(x.dtype, copy=False)  # an aggregator may compute in float64
    moved, state = step(state, x[:p], direction[:p])
    moved = moved.astype(x.dtype, copy=False)
    return np.concatenate([moved, x[p:] + direction[p:]]) if p < x.size else moved, state


@settings
class Descent(ServerOptimizer):
    """x + lr·d, the plain step (FedAvg with lr = 1)."""

    lr: PositiveFactor = 1.0

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        return x + np.float32(self.lr) * direction, state


@settings
class Momentum(ServerOptimizer):
    """v = β v + d, x + lr·v (FedAvgM, Hsu et al.; no dampening)."""

    lr: PositiveFactor = 1.0
    beta: Share = 0.9

    def init(self, dim: int) -> State:
        return {"v": np.zeros(dim, np.float32)}

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        v = np.float32(self.beta) * state["v"] + direction
        return x + np.float32(self.lr) * v, {"v": v}


def _adaptive_init(dim: int, v0: float) -> State:
    return {"m": np.zeros(dim, np.float32), "v": np.full(dim, v0, np.float32)}


def _adaptive_step(
    state: State, x: Array, d: Array, v: Array, lr: float, beta1: float, tau: float
) -> tuple[Array, State]:
    """m = β₁ m + (1 − β₁) d, then x + lr·m / (√v + τ), without bias correction; v is the method's own."""
    m = np.float32(beta1) * state["m"] + np.float32(1 - beta1) * d
    return x + np.float32(lr) * m / (np.sqrt(v) + np.float32(tau)), {"m": m, "v": v}


@settings
class Adagrad(ServerOptimizer):
    """v + d² (FedAdagrad)."""

    lr: PositiveFactor = 0.01
    beta1: Share = 0.0
    tau: PositiveFactor = 1e-3
    v0: NonNegativeFactor = 0.0  # Reddi et al. write τ², their code and most others start at 0

    def init(self, dim: int) -> State:
        return _adaptive_init(dim, self.v0)

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        v = state["v"] + direction**2
        return _adaptive_step(state, x, direction, v, self.lr, self.beta1, self.tau)


@settings
class Adam(ServerOptimizer):
    """β₂ v + (1 − β₂) d² (FedAdam)."""

    lr: PositiveFactor = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: PositiveFactor = 1e-3
    v0: NonNegativeFactor = 0.0

    def init(self, dim: int) -> State:
        return _adaptive_init(dim, self.v0)

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        v = np.float32(self.beta2) * state["v"] + np.float32(1 - self.beta2) * direction**2
        return _adaptive_step(state, x, direction, v, self.lr, self.beta1, self.tau)


@settings
class Yogi(ServerOptimizer):
    """v − (1 − β₂) d² sign(v − d²) (FedYogi): v changes by steps of d², so it forgets more slowly than Adam's."""

    lr: PositiveFactor = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: PositiveFactor = 1e-3
    v0: NonNegativeFactor = 0.0

    def init(self, dim: int) -> State:
        return _adaptive_init(dim, self.v0)

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        square = direction**2
        v = state["v"] - np.float32(1 - self.beta2) * square * np.sign(state["v"] - square)
        return _adaptive_step(state, x, direction, v, self.lr, self.beta1, self.tau)
