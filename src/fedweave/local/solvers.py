"""How a client walks: SGD with its usual extras, Adam, and the proximal pull around either."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedweave.roles import Solver
from fedweave.settings import settings

Share = Annotated[float, Field(ge=0, lt=1)]


@settings
class SGD(Solver):
    """v = ρ v + (g + λ y), d = v; Nesterov: d = g + ρ v; the step length shrinks by (1 − decay) each local step."""

    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = 0.0
    decay: Share = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("The 'nesterov' parameter of SGD needs momentum > 0. Got momentum=0.0.")

    def begin(self, y: Any) -> tuple[Any, ...]:
        return (0 * y,) if self.momentum else ()

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        if self.weight_decay:
            g = g + self.weight_decay * y
        if self.momentum:
            v = self.momentum * state[0] + g
            state, g = (v,), g + self.momentum * v if self.nesterov else v
        return (1 - self.decay) ** t * g if self.decay else g, state


@settings
class Adam(Solver):
    """d = m̂ / (√v̂ + ε) with bias correction, started afresh at each participation."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0

    def begin(self, y: Any) -> tuple[Any, ...]:
        return (0 * y, 0 * y)

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        if self.weight_decay:
            g = g + self.weight_decay * y
        m = self.beta1 * state[0] + (1 - self.beta1) * g
        v = self.beta2 * state[1] + (1 - self.beta2) * g**2
        m_hat, v_hat = m / (1 - self.beta1 ** (t + 1)), v / (1 - self.beta2 ** (t + 1))
        return m_hat / (v_hat**0.5 + self.epsilon), (m, v)


@settings
class Prox(Solver):
    """The inner solver on f_i(y) + μ/2 ‖y − x‖² (FedProx): the pull towards x is part of the gradient."""

    mu: NonNegativeFloat = 0.01
    inner: Solver = Field(default_factory=SGD)

    def begin(self, y: Any) -> tuple[Any, ...]:
        return self.inner.begin(y)

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        return self.inner.direction(state, g + self.mu * (y - x), y, x, lr, t)
