"""How a client walks: SGD with its usual extras, Adam, and what bends the gradient of either.

The proximal pull (FedProx) forgets everything after a participation; control variates (SCAFFOLD), dynamic
regularisation (FedDyn) and tracked gradients (FOCUS) keep a vector at each client.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedweave.core.records import Array
from fedweave.core.roles import Solver
from fedweave.core.settings import NonNegativeFactor, PositiveFactor, settings

Share = Annotated[float, Field(ge=0, lt=1)]


@settings
class SGD(Solver):
    """v = ρ v + (g + λ y), d = v; Nesterov: d = g + ρ v; the step length shrinks by (1 − decay) each local step."""

    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFactor = 0.0
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
    epsilon: PositiveFactor = 1e-8
    weight_decay: NonNegativeFactor = 0.0

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


def refuse_memory(outer: Any) -> None:
    """Refuse an inner solver that remembers: the engine asks only the outermost one."""
    inner = type(outer.inner).__name__
    if outer.inner.memory_kind:
        raise ValueError(f"{inner} remembers, so it must be outermost: {inner}(inner={type(outer).__name__}(…)).")


@settings
class Prox(Solver):
    """The inner solver on f_i(y) + μ/2 ‖y − x‖² (FedProx): the pull towards x is part of the gradient."""

    mu: NonNegativeFactor = 0.01
    inner: Solver = Field(default_factory=SGD)

    def __post_init__(self) -> None:
        refuse_memory(self)

    def begin(self, y: Any) -> tuple[Any, ...]:
        return self.inner.begin(y)

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        return self.inner.direction(state, g + self.mu * (y - x), y, x, lr, t)


@settings
class ControlVariate(Solver):
    """The inner solver on g − c_i + c (SCAFFOLD, Karimireddy et al.), c from the server and c_i kept by the client.

    Afterwards c_i ← c_i − c + (x − y)/(η ‖a‖₁), their option II: for plain SGD ‖a‖₁ is the number of steps, and c_i is
    the mean gradient that the client met, however often c_i was wrong before.
    """

    inner: Solver = Field(default_factory=SGD)
    memory_kind: ClassVar[str] = "control variates"
    uploads_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_memory(self)

    def begin(self, y: Any) -> tuple[Any, ...]:
        return (0 * y, *self.inner.begin(y))

    def begin_with_memory(self, y: Any, memory: Any, sent: Any, share: Any) -> tuple[Any, ...]:
        return (sent - memory, *self.inner.begin(y))

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        d, inner = self.inner.direction(state[1:], g + state[0], y, x, lr, t)
        return d, (state[0], *inner)

    def memory_change(self, u: Any, sent: Any, reach: Any, share: Any) -> Any:
        return -sent - u / reach


@settings
class Dyn(Solver):
    """The inner solver on f_i(y) − ⟨L_i, y⟩ + α_i/2 ‖y − x‖², then L_i ← L_i − α_i (y − x) (FedDyn, Acar et al.).

    L_i is kept by the client; after exact minimisation it is ∇f_i(y). With weights "equal", the paper, every α_i is α.
    FedDyn rests where all that the clients ever moved adds up to zero, Σ L_i/α_i = 0: at the minimum of the plain mean
    of the f_i. "data", the authors' code for unequal amounts of data, has α_i = α/(N ω_i), so that it rests at the
    minimum of Σ ω_i f_i.
    """

    alpha: PositiveFactor = 0.01
    weights: Literal["equal", "data"] = "equal"
    inner: Solver = Field(default_factory=SGD)
    memory_kind: ClassVar[str] = "local gradients"

    def __post_init__(self) -> None:
        refuse_memory(self)

    def _alpha(self, share: Any) -> Any:
        return self.alpha / share if self.weights == "data" else self.alpha + 0 * share

    def begin(self, y: Any) -> tuple[Any, ...]:
        return (0 * y, self.alpha + 0 * y, *self.inner.begin(y))

    def begin_with_memory(self, y: Any, memory: Any, sent: Any, share: Any) -> tuple[Any, ...]:
        return (memory, self._alpha(share), *self.inner.begin(y))

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        L, alpha = state[:2]
        d, inner = self.inner.direction(state[2:], g - L + alpha * (y - x), y, x, lr, t)
        return d, (L, alpha, *inner)

    def memory_change(self, u: Any, sent: Any, reach: Any, share: Any) -> Any:
        return -self._alpha(share) * u


@settings
class Tracking(Solver):
    """y ← y − η (g − m_i), and the last g − m_i is sent; then m_i ← that last g (FOCUS, Ying et al. 2025).

    The paper starts with y_i = 0, adds ∇f_i(x_k) − ∇f_i(x_{k−1}) in every local step k and moves by −η y_i before the
    next one, where ∇f_i(x_{−1}) is the last gradient of the client's last participation. The sum telescopes to g − m_i.
    So T local steps move T − 1 times, and the gradient of the T-th is sent as the displacement −η (g − m_i) from x. At
    the optimum m_i = ∇f_i and clients stand still, however many steps they do. On quadratics only (I − ηH)^(T−1) of the
    gap between m_i and ∇f_i(x) is closed: long walks slow FOCUS down. (The formulas are those of the authors' code,
    BichengYing/FedASL; the paper's own listing was not at hand.)
    """

    memory_kind: ClassVar[str] = "tracked gradients"
    sends_last_step: ClassVar[bool] = True

    def begin(self, y: Any) -> tuple[Any, ...]:
        return (0 * y,)

    def begin_with_memory(self, y: Any, memory: Any, sent: Any, share: Any) -> tuple[Any, ...]:
        return (memory,)

    def direction(
        self, state: tuple[Any, ...], g: Any, y: Any, x: Any, lr: float, t: int
    ) -> tuple[Any, tuple[Any, ...]]:
        return g - state[0], state

    def memory_change(self, u: Any, sent: Any, reach: Any, share: Any) -> Any:
        return -u / reach

    def effort(self, steps: Array, lr: float) -> Array:
        """Return ones: only one gradient is sent."""
        return np.ones(steps.shape)
