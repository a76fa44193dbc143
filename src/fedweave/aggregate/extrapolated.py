"""Extrapolation of any weighted sum of updates (FedExP)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.roles import Aggregator, Upload
from fedweave.core.settings import PositiveFactor, settings
from fedweave.core.spec import kinds
from fedweave.core.vectors import by_rows


@settings
class Extrapolated(Aggregator):
    """η_g times the inner direction d, η_g = max(1, Σ w_i ‖u_i‖² / (2 (‖d‖² + ε))) (FedExP, Jhunjhunwala et al. 2023).

    d = Σ w_i u_i; for the mean of M clients w_i = 1/M, the paper's rule. Where updates are nearly orthogonal, as those
    of an overparameterised model, ‖d‖² is far less than their mean square and the step is long; it is never shorter
    than d. For weights with another total W than one (lost answers, unequal laws) the rule is that of their mean: the
    numerator has W Σ w_i ‖u_i‖². Buffers follow d itself. The paper evaluates the mean of the last two models, because
    long steps make them oscillate; here, as everywhere, the last one is evaluated. The authors' code has M ε for ε
    (Divyansh03/FedExP).
    """

    aggregator: Aggregator
    epsilon: PositiveFactor = 1e-3  # the authors' for CIFAR; it has the unit of ‖u‖²

    def __post_init__(self) -> None:
        """Refuse aggregators that are no weighted sums; those that are go by masks."""
        if not self.aggregator.masks:
            sums = " or ".join(f"{name}()" for name, cls in kinds(Aggregator).items() if cls.masks is True)
            name = type(self.aggregator).__name__
            raise ValueError(f"Extrapolated needs a weighted sum of the updates, which {name} is not. Use {sums}.")

    @property
    def needs_law(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner aggregator reads Cohort.expected."""
        return self.aggregator.needs_law

    def misfit(self, upload: Upload) -> str:
        if upload.contraction() != upload:
            return (
                f"{type(upload).__name__} is right on average but makes updates longer, which Extrapolated would take "
                "for clients that disagree. Use a codec that does not, such as TopK(), or error feedback around it."
            )
        return self.aggregator.misfit(upload)

    def init(self, population: Population, dim: int) -> State:
        return {**self.aggregator.init(population, dim), "extrapolation": np.ones(1)}

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        parameters = view.layout.parameters
        direction, after = self.aggregator.combine(state, view, cohort, replies)
        square = by_rows(lambda some: (some[:, :parameters].astype(np.float64) ** 2).sum(1), replies.updates)
        pair = np.stack([square, np.ones_like(square)], axis=1)  # weighed as the updates are: Σ w ‖u‖² and Σ w
        mean, total = self.aggregator.combine(state, view, cohort, replies._replace(updates=pair, mask=None))[0]
        length = float((direction[:parameters].astype(np.float64) ** 2).sum())
        step = max(1.0, float(total * mean / (2 * (length + self.epsilon))))
        longer = direction * direction.dtype.type(step)
        longer[parameters:] = direction[parameters:]
        return longer, {**after, "extrapolation": np.full(1, step)}

    def measure(self, state: State, view: View) -> Mapping[str, float]:
        return {**self.aggregator.measure(state, view), "extrapolation": float(state["extrapolation"][0])}
