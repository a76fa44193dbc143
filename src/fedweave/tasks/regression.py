"""One number per sample: the squared error."""

from __future__ import annotations

from typing import Any

from fedweave.tasks.task import Batch, Task


class Regression(Task):
    """Outputs are one number per sample, (B,) or (B, 1), targets are (B,)."""

    def loss(self, output: Any, batch: Batch) -> Any:
        return (output.reshape(batch.y.shape) - batch.y) ** 2
