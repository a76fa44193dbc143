"""One label of several: cross-entropy on logits, accuracy over all samples and by class."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fedweave.tasks.task import Batch, Sums, Task, mean_square


class Classification(Task):
    """Outputs are logits (B, classes), labels are whole numbers (B,)."""

    primary = "accuracy"
    higher_is_better = True

    def describe(self) -> Any:
        return "classification" if type(self) is Classification else super().describe()

    def loss(self, output: Any, batch: Batch) -> Any:
        from torch.nn import functional as F

        return F.cross_entropy(output, batch.y, reduction="none")

    def reduced_loss(self, output: Any, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> Any:
        from torch.nn import functional as F

        if type(self).loss is not Classification.loss:
            return super().reduced_loss(output, batch, reduction)
        return F.cross_entropy(output, batch.y, reduction=reduction)

    def training_loss(self, output: Any, batch: Batch) -> tuple[Any, Any]:
        if type(self).loss is not Classification.loss:
            return super().training_loss(output, batch)
        return self.reduced_loss(output, batch), mean_square(self.loss(output.detach(), batch), batch.size)

    def measure(self, output: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
        """Return also the hits over all samples and those of each class (classes,)."""
        hit, classes = batch.y[output.argmax(1) == batch.y], output.shape[1]
        by_class = hit.bincount(minlength=classes), batch.y.bincount(minlength=classes)
        return super().measure(output, batch) | {"accuracy": (len(hit), len(output)), "class_accuracy": by_class}

    def finish(self, sums: Sums) -> dict[str, Any]:
        """Return the means; the accuracy of a class without test samples is nan."""
        correct, count = sums["class_accuracy"]
        by_class = np.divide(correct, count, out=np.full(len(count), np.nan), where=count > 0)
        rest = {name: pair for name, pair in sums.items() if name != "class_accuracy"}
        return super().finish(rest) | {"class_accuracy": by_class}
