"""The role of a task: the loss that clients minimise, and the metrics by which a model is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple

from fedweave.core.returned import kind_of
from fedweave.core.settings import BadInput, brief, choice, shown
from fedweave.core.spec import name_of

Sums = Mapping[str, tuple[Any, Any]]  # by metric: a sum over samples and the sum of their weights, numbers or arrays

# Columns that runs have beside their metrics: of every run, and measures of the methods.
RESERVED = {
    "round", "clock", "seconds", "device_seconds", "wall_seconds", "train_loss", "asked", "received", "refused",
    "bytes_up", "bytes_down", "class_accuracy", "abandoned", "objective",
    "client_mean", "client_std", "client_worst", "client_worst_decile",
    "diversity", "direction_length", "step_length", "memory_diversity", "surrogate_diversity", "chi_square",
    "shortening", "stalled", "sent_share", "dropout_influence", "epsilon",
    "true_diversity", "true_surrogate_diversity", "gradient_length",
}  # fmt: skip


class Batch(NamedTuple):
    """Samples as a model takes them, and what it should answer; each a tensor, or tensors by name."""

    x: Any  # (B, …)
    y: Any  # (B, …)

    @property
    def size(self) -> int:
        """Number of samples B."""
        return len(next(iter(self.y.values())) if isinstance(self.y, Mapping) else self.y)


Loss = Callable[[Any, Batch], Any]  # of the model's output and the batch: a loss for each sample (B,), or their mean
Metric = Callable[[Any, Batch], Any]  # likewise; or a pair of a sum and a weight, whose ratio is the metric


class Task:
    """Loss and metrics, on torch tensors. Importing a task does not import torch.

    ``Task(loss=f, metrics={"iou": g}, primary="iou")`` is a task of your own: ``f(output, batch)`` and ``g`` see the
    model's output and the batch as they are. Where a metric is a ratio of sums, such as the intersection over the union
    of all images, let ``g`` return both: (intersection, union).
    """

    primary: str = "loss"  # the metric by which models are compared
    higher_is_better: bool = False  # whether a larger value of it is better
    metrics: Mapping[str, Metric] = {}
    _loss: Loss | None = None
    _source: str = ""  # the plug-in by which a run folder names it

    def __init__(
        self,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        primary: str = "loss",
        higher_is_better: bool | None = None,
    ):
        """Judge models by ``primary``: lower is better for the loss, higher for a metric, unless you say otherwise.

        A subclass has its loss and metrics as methods instead, and ``primary`` as an attribute.
        """
        if loss is None and type(self) is not Task:
            return
        if not isinstance(metrics or {}, Mapping):
            raise BadInput(f"The 'metrics' of a Task must be functions by name. Got {brief(metrics)}.")
        metrics = dict(metrics or {})
        wrong = [name for name, function in (("loss", loss), *metrics.items()) if not callable(function)]
        if wrong:
            raise BadInput(f"The {wrong[0]!r} of a Task must be a function of the model's output and the batch.")
        check_names(["loss", *metrics])
        if primary not in ("loss", *metrics):
            raise BadInput("The 'primary' parameter of Task: " + choice("metric", primary, ["loss", *metrics]))
        self._loss, self.metrics, self.primary = loss, metrics, primary
        self.higher_is_better = primary != "loss" if higher_is_better is None else bool(higher_is_better)

    def loss(self, output: Any, batch: Batch) -> Any:
        """Return the loss (B,) of each sample, given the model's output for the batch."""
        if self._loss is None:
            raise TypeError(f"{type(self).__name__} needs a method 'loss'.")
        return self._loss(output, batch)

    def reduced_loss(self, output: Any, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> Any:
        """Return the mean over the samples of ``loss``, or that times their number."""
        loss = self._checked_loss(output, batch)
        return loss.mean() if reduction == "mean" else _sum(loss, batch.size)

    def training_loss(self, output: Any, batch: Batch) -> tuple[Any, Any]:
        """Return ``reduced_loss``, and the mean squared loss of the samples; nan where ``loss`` is a mean itself."""
        if type(self).reduced_loss is not Task.reduced_loss:
            return self.reduced_loss(output, batch), float("nan")
        loss = self._checked_loss(output, batch)
        return loss.mean(), mean_square(loss, batch.size)

    def _checked_loss(self, output: Any, batch: Batch) -> Any:
        """Return the loss; a mean over anything but the samples would hide that outputs and labels do not fit."""
        loss = self.loss(output, batch)
        if not hasattr(loss, "shape") or tuple(loss.shape) not in ((), (batch.size,)):
            wanted = f"a number for each of {batch.size} samples, or their mean"
            raise BadInput(f"The loss of {self} must be {wanted}. Got {kind_of(loss)}.")
        return loss

    def measure(self, output: Any, batch: Batch) -> dict[str, tuple[Any, Any]]:
        """Return a sum and a weight for each metric; slices of the test set are added up before ``finish``."""
        sums = {"loss": (self.reduced_loss(output, batch, "sum"), batch.size)}
        for name, metric in self.metrics.items():
            found = metric(output, batch)
            pair = isinstance(found, tuple) and len(found) == 2
            if not all(map(_fits, found) if pair else [_fits(found, batch.size)]):
                got = ", ".join(map(kind_of, found)) if pair else kind_of(found)
                raise BadInput(
                    f"The metric {name!r} of {self} must return a value for each of {batch.size} samples, their mean, "
                    f"or a pair of a sum and a weight. It returned {got}."
                )
            sums[name] = found if pair else (_sum(found, batch.size), batch.size)
        return sums

    def finish(self, sums: Sums) -> dict[str, Any]:
        """Return the metrics from sums over the whole test set: means, unless a task needs something else."""
        return {name: total / weight if weight else float("nan") for name, (total, weight) in sums.items()}

    def describe(self) -> Any:
        """Return how a run folder refers to this task; one that is no plug-in can only be given in Python again."""
        return self._source or {"type": "python", "name": self.name}

    def named(self, plugin: str) -> Task:
        """Return this task as the plug-in ``module:name``."""
        task = copy(self)
        task._source = plugin
        return task

    @property
    def name(self) -> str:
        """What this task is called in reports."""
        return name_of(self._loss) if type(self) is Task else type(self).__name__

    def __repr__(self) -> str:
        return f"Task({self.name})" if type(self) is Task else f"{self.name}()"


def mean_square(loss: Any, samples: int) -> Any:
    """Return the mean squared loss of samples, without a gradient; nan if it is not a loss for each of them."""
    return loss.detach().double().square().mean() if tuple(loss.shape) == (samples,) else float("nan")


def _fits(value: Any, samples: int = -1) -> bool:
    """Return whether a value is a number, or an array with one or several for each of so many samples."""
    shape = () if isinstance(value, int | float) else getattr(value, "shape", (-2,))
    return tuple(shape[:1]) in ((), (samples,))


def _sum(value: Any, samples: int) -> Any:
    """Return the sum over the samples of a value for each of them, or of their mean; Python's numbers are means too."""
    if isinstance(value, int | float):
        return value * samples
    if tuple(value.shape) == (samples,):
        return value.sum()
    whole = hasattr(value, "double") and not value.is_floating_point()  # torch has no mean of whole numbers and truths
    return (value.double() if whole else value).mean() * samples


def check_names(names: Sequence[Any]) -> None:
    """Refuse names of metrics that cannot be columns of a run."""
    for i, name in enumerate(names):
        if name in RESERVED or name in names[:i] or not str(name).isidentifier():
            raise BadInput(f"A metric cannot be called {shown(name)}: it is a column that runs have, or not a word.")


def add_up(slices: Sequence[Sums]) -> Sums:
    """Return the sums over several slices, added in the order given."""
    first, *others = slices
    total = dict(first)
    for sums in others:
        total = {name: (total[name][0] + s, total[name][1] + w) for name, (s, w) in sums.items()}
    return total
