"""Numbers per sample: the squared error."""

from __future__ import annotations

from typing import Any

from fedweave.tasks.task import Batch, Task


class Regression(Task):
    """Targets are numbers (B,) or (B, outputs); outputs have as many. The loss is the mean squared error."""

    def describe(self) -> Any:
        return "regression" if type(self) is Regression else super().describe()

    def loss(self, output: Any, batch: Batch) -> Any:
        square = (output.reshape(batch.y.shape) - batch.y) ** 2
        return square if square.dim() == 1 else square.flatten(1).mean(1)

    def measure(self, output: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
        """Return also the sum of the absolute errors: ``mae`` is their mean."""
        error = (output.reshape(batch.y.shape) - batch.y).abs().sum()
        return super().measure(output, batch) | {"mae": (error, batch.y.numel())}
