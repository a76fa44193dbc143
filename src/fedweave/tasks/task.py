"""The role of a task: the loss that clients minimise, and the metrics by which a model is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

Sums = Mapping[str, tuple[Any, Any]]  # by metric: a sum over samples and the sum of their weights, numbers or arrays


class Batch(NamedTuple):
    """Samples as a model takes them, and what it should answer."""

    x: Any  # (B, …) tensor
    y: Any  # (B, …) tensor


class Task(ABC):
    """Loss and metrics, on torch tensors. Importing a task does not import torch."""

    primary: ClassVar[str] = "loss"  # the metric by which models are compared
    higher_is_better: ClassVar[bool] = False  # whether a larger value of it is better

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> Any:
        """Return the loss (B,) of each sample, given the model's output for the batch."""

    def reduced_loss(self, output: Any, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> Any:
        """Return the mean or the sum of ``loss``; override it where one call of a library does both."""
        return getattr(self.loss(output, batch), reduction)()

    def measure(self, output: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
        """Return a sum and a weight for each metric; slices of the test set are added up before ``finish``."""
        return {"loss": (self.reduced_loss(output, batch, "sum"), len(output))}

    def finish(self, sums: Sums) -> dict[str, Any]:
        """Return the metrics from sums over the whole test set: means, unless a task needs something else."""
        return {name: total / weight for name, (total, weight) in sums.items()}


def add_up(slices: Sequence[Sums]) -> Sums:
    """Return the sums over several slices, added in the order given."""
    first, *others = slices
    total = dict(first)
    for sums in others:
        total = {name: (total[name][0] + s, total[name][1] + w) for name, (s, w) in sums.items()}
    return total
