"""The Dataset record: training and test samples of all clients together, and how they become network input."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.core.spec import describe
from fedweave.data import checks
from fedweave.data.columns import Array, Items, arrays, as_array, each, length, rows

if TYPE_CHECKING:
    from torch import Tensor


class Loaded(NamedTuple):
    """A data set as ``fedweave.data.load`` returned it."""

    name: str
    columns: tuple[Any, ...]


@dataclass(frozen=True)
class Dataset:
    """Samples of all clients together; a partition assigns them by index, so nothing is copied per client.

    A column is an array with one row per sample, several arrays by name (``x`` is then given to the model by keyword),
    or lazy items. Images stay bytes (uint8, channels first) until a batch needs them: input = (pixel / 255 − mean) /
    std. Whatever is made into a data set, by a loader or by hand, is checked here.
    """

    name: str
    x: Any  # a Column: (n, C, H, W) uint8 images, (n, …) float32 features, (n, T) int64 tokens
    y: Any  # a Column: (n,) int64 class labels, (n, T) int64 tokens, or float32 targets when classes == 0
    test_x: Any
    test_y: Any
    classes: int  # or tokens; 0: neither
    mean: tuple[float, ...] = ()  # per channel, only for uint8 images
    std: tuple[float, ...] = ()
    group: Array | None = None  # (n,) int64 natural client (writer, celebrity) of each training sample
    test_group: Array | None = None
    transform: Callable[..., Any] | None = None  # a Transform, which changes training batches at random
    vocabulary: int = 0  # how many tokens the inputs may have, where not all occur
    loaded: Loaded | None = None  # the name given to fedweave.data.load, and the columns that it stands for
    client_names: tuple[str, ...] = ()  # of the natural clients, by their numbers in ``group``; () without names
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse columns that training could not use."""
        checks.check_class_count(self.classes, least=0)
        for x, y, group in (("x", "y", "group"), ("test_x", "test_y", "test_group")):
            checks.check_inputs(getattr(self, x), x)
            checks.check_answers(getattr(self, y), y, self.classes, self.name)
            checks.check_length(length(getattr(self, x)), x, length(getattr(self, y)), y)
            checks.check_group(getattr(self, group), group, length(getattr(self, x)), x)
        checks.check_alike(self.x, self.test_x)
        checks.check_alike(self.y, self.test_y)
        checks.check_pixels(self.x, self.mean, self.std)

    def __len__(self) -> int:
        """Number of training samples."""
        return length(self.x)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample; of lazy items, that of the first."""
        return next((array.shape[1:] for _, array in arrays(self._peek(0) if self._lazy else self.x)), ())

    @property
    def _lazy(self) -> bool:
        return isinstance(self.x, Items) and len(self.x) > 0

    def _peek(self, row: int) -> Any:
        try:
            return self.x.peek(row)
        except Exception as e:  # the user's own code: its traceback is worth keeping
            raise BadInput(f"Sample {row} of {self.name} cannot be read: {type(e).__name__}: {brief(str(e))}.") from e

    @property
    def labels(self) -> Array | None:
        """(n,) the classes of the training samples; None where they have none: numbers, tokens, several answers."""
        return self.y if self.classes and isinstance(self.y, np.ndarray) and self.y.ndim == 1 else None

    @cached_property
    def tokens(self) -> int:
        """How many tokens the inputs have, where they are whole numbers; else 0. Tokens that are answered count too."""
        if not isinstance(self.x, np.ndarray) or self.x.dtype != np.int64:
            return 0
        answered = self.classes if isinstance(self.y, np.ndarray) and self.y.ndim > 1 else 0
        seen = max(int(np.max(x, initial=0)) for _, x in (*arrays(self.x), *arrays(self.test_x))) + 1
        return max(seen, answered, self.vocabulary)

    @property
    def sample(self) -> tuple[tuple[int, ...], int, int, bool, int]:
        """What a model must take and answer, as ``fedweave.models.build`` is told.

        Shape of a sample, classes, tokens of the inputs, whether each position is answered, and numbers to answer.
        """
        several = isinstance(self.y, np.ndarray) and self.y.ndim > 1
        outputs = math.prod(self.y.shape[1:]) if several and not self.classes else 1
        return self.shape, self.classes, self.tokens, several and bool(self.classes), outputs

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all samples and labels; compared when a run is resumed.

        Lazy items are not all read: their number, their labels and three of them stand for them.
        """
        sha = hashlib.sha256()
        for column in (self.x, self.y, self.test_x, self.test_y):
            seen = [column]
            if isinstance(column, Items):
                sha.update(f"items{len(column)}".encode())
                some = {0, len(column) // 2, len(column) - 1} if len(column) else set[int]()
                seen = [column.peek(row) for row in sorted(some)]
            for name, array in (pair for part in seen for pair in arrays(part)):
                sha.update(f"{name}{array.dtype}{array.shape}".encode())
                sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()

    def describe(self) -> Any:
        """Return how a run folder refers to this data."""
        if self.source:
            return self.source
        return {"type": "arrays", **self.facts}

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same when a run is resumed: its name, its samples, how they are changed at random."""
        changed = {"transform": describe(self.transform)} if self.transform else {}
        return {"name": self.name, "digest": self.digest, **changed}

    @property
    def source(self) -> str | None:
        """The name it was loaded by, which lets a run be resumed from its folder; None if it was changed since."""
        same = self.loaded and all(a is b for a, b in zip(self.loaded.columns, self._columns, strict=True))
        return self.loaded.name if self.loaded and same else None

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.x, self.y, self.test_x, self.test_y, self.group, self.transform

    def named(self, name: str) -> Dataset:
        """Return this data set as the one that ``fedweave.data.load(name)`` returns; changes of it are not."""
        return replace(self, loaded=Loaded(name, self._columns))

    def take(self, index: Any) -> Dataset:
        """Return the data set with these training samples only; the test set stays."""
        group = None if self.group is None else self.group[index]
        return replace(self, x=rows(self.x, index), y=rows(self.y, index), group=group, vocabulary=self.tokens)

    def split(self, validation: float = 0.1, seed: int = 0) -> Dataset:
        """Return the training samples with a share of them in the place of the test set: to tune without looking at it.

        The share is the same in every group, or in every class. All runs of a sweep are given the same object.
        """
        if not 0 < validation < 1:
            raise BadInput(f"The 'validation' parameter of split must lie between 0 and 1. Got {validation!r} instead.")
        if (validation, seed) not in self._splits:
            self._splits[validation, seed] = self._split(validation, seed)
        return self._splits[validation, seed]

    @cached_property
    def _splits(self) -> dict[tuple[float, int], Dataset]:
        return {}

    def _split(self, validation: float, seed: int) -> Dataset:
        from fedweave.data.deal import stratified_split

        strata = self.group if self.group is not None else self.labels
        strata = np.zeros(len(self), np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
        kept, held = stratified_split(strata, validation, np.random.default_rng(seed))
        group = None if self.group is None else self.group[held]
        return replace(self.take(kept), test_x=rows(self.x, held), test_y=rows(self.y, held), test_group=group)

    def prepare(self, x: Any) -> Any:
        """Return raw samples (n, …) as the model takes them, a tensor or tensors by name.

        They are treated as this data set's own samples were: images of bytes are scaled by its mean and std.
        """
        import torch

        from fedweave.data.arrays import inputs

        lazy = isinstance(self.x, Items)
        samples = as_array(x) if lazy else inputs(x, "x")
        if (self.std or not lazy) and bool(self.std) != (getattr(samples, "dtype", None) == np.uint8):
            kind = "images of bytes (uint8)" if self.std else checks.kind(self.x)
            raise BadInput(f"The samples of {self.name} are {kind}. Got {checks.kind(x)}.")
        batch = each(samples, torch.from_numpy)
        if not self.std:
            return numbers(batch) if lazy else batch
        scale, shift = scaling(self.mean, self.std, batch.dim())
        return batch.to(torch.float32).mul_(scale).add_(shift)

    def as_features(self) -> Dataset:
        """Return the data set with tokens as plain numbers, for models that take features."""
        if not self.tokens:
            return self
        x, test_x = (each(column, lambda a: a.astype(np.float32)) for column in (self.x, self.test_x))
        changed = replace(self, x=x, test_x=test_x)
        return changed.named(self.source) if self.source else changed

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        sizes = f"{length(self.x)} train + {length(self.test_x)} test"
        return f"Dataset({self.name}, {sizes} of {shape}, {self.classes} {'tokens' if self.tokens else 'classes'})"


def numbers(batch: Tensor) -> Tensor:
    """Return samples in the types of a data set: whole numbers as int64, everything else as float32."""
    import torch

    whole = not batch.is_floating_point() and batch.dtype not in (torch.bool, torch.uint8)
    return batch.to(torch.int64 if whole else torch.float32)


def scaling(mean: tuple[float, ...], std: tuple[float, ...], axes: int) -> tuple[Tensor, Tensor]:
    """Return scale and shift of bytes, to be broadcast over images with this many axes."""
    import torch

    center, spread = (torch.tensor(values, dtype=torch.float32) for values in (mean, std))
    one = (-1,) + (1,) * (axes - 2)
    return (1 / (255 * spread)).reshape(one), (-center / spread).reshape(one)
