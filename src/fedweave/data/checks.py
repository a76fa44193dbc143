"""What the arrays of a data set must be: the one gate through which all samples go."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.data.columns import Array, Column, Items, arrays

MOST_CLASSES = 1_000_000  # a larger label is an id, not a class
PADDING = -100  # in the place of a token that does not count, as in torch
CONVERT = "fedweave.data.from_arrays converts and checks arrays."


def check_inputs(column: Column, what: str) -> None:
    """Refuse inputs that training could not use."""
    if isinstance(column, Items):
        return
    found = list(arrays(column))
    if not found:
        raise BadInput(f"{what} has no arrays. Give at least one.")
    for name, array in found:
        which = _named(what, name)
        if not isinstance(array, np.ndarray) or array.ndim < (1 if name else 2):
            raise BadInput(f"{which} must be an array of samples, with 2 axes or more. Got {kind(array)}. {CONVERT}")
        if array.dtype not in (np.uint8, np.float32, np.int64):
            raise BadInput(
                f"{which} must be float32 features, int64 tokens or uint8 images. Got {kind(array)}. {CONVERT}"
            )
        check_finite(array, which)
        check_length(len(found[0][1]), _named(what, found[0][0]), len(array), which)


def check_answers(column: Column, what: str, classes: int, data: str) -> None:
    """Refuse labels that are not classes 0.. or tokens, and targets that are not numbers."""
    if isinstance(column, Items) or not isinstance(column, np.ndarray):
        for name, array in [] if isinstance(column, Items) else arrays(column):
            if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.int64):
                raise BadInput(f"{_named(what, name)} must be float32 or int64. Got {kind(array)}. {CONVERT}")
            check_finite(array, _named(what, name))
        return
    wanted = np.dtype(np.int64 if classes else np.float32)
    if column.ndim < 1 or column.dtype != wanted:
        means = "labels" if classes else "targets, where there are no classes"
        raise BadInput(f"{what} must be {wanted} {means}. Got {kind(column)}. {CONVERT}")
    if not classes:
        check_finite(column, what)
        return
    real = column if column.ndim == 1 else column[column != PADDING]
    if real.size and not 0 <= real.min() <= real.max() < classes:
        wrong = real.min() if real.min() < 0 else real.max()
        raise BadInput(f"{data} has the label {wrong}, but {classes} classes (0..{classes - 1}). Labels count from 0.")


def check_alike(x: Column, other: Column) -> None:
    """Refuse training and test samples of different kinds."""
    if isinstance(x, Items) or isinstance(other, Items):
        if not (isinstance(x, Items) and isinstance(other, Items)):
            raise BadInput("Training and test samples must both be lazy, or neither.")
        return
    ours, theirs = ({n: f"{a.dtype} {a.shape[1:]}" for n, a in arrays(c)} for c in (x, other))
    if ours != theirs:
        a, b = (", ".join(f"{n} {v}".strip() for n, v in found.items()) for found in (ours, theirs))
        raise BadInput(f"Training and test samples differ: {a} and {b}.")


def check_pixels(x: Column, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Refuse images of bytes without mean and standard deviation, and features with them."""
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
        if (mean or std) and not isinstance(x, Items):
            raise BadInput(f"mean and std are for images of bytes. x is {kind(x)}.")
        return
    given = np.array([mean, std], float) if len(mean) == len(std) else np.zeros((2, 0))
    if given.shape[1] != x.shape[1] or not np.isfinite(given).all() or not (given[1] > 0).all():
        raise BadInput(
            f"uint8 images need mean and std of each of {x.shape[1]} channels, finite and std above 0. "
            f"Got {brief(mean)} and {brief(std)}. {CONVERT}"
        )


def check_group(group: Any, what: str, samples: int, x: str) -> None:
    """Refuse groups that are not one whole number per sample."""
    if group is None:
        return
    if not isinstance(group, np.ndarray) or group.dtype.kind not in "iu":
        raise BadInput(f"{what} must be whole numbers, one per sample. Got {kind(group)}. {CONVERT}")
    check_length(samples, x, len(group), what)


def check_finite(values: Array, what: str) -> None:
    """Refuse values that are not finite in the type in which they are used."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        first = int(np.argwhere(~np.isfinite(values))[0][0])
        means = "values" if values.ndim > 1 else "targets"
        raise BadInput(
            f"{what} has {means} that are not finite as {values.dtype}, first in sample {first}. Remove or replace "
            "them."
        )


def check_length(n: int, a: str, m: int, b: str) -> None:
    """Refuse two arrays that do not belong together."""
    if n != m:
        raise BadInput(f"{a} has {n} samples but {b} has {m}. Give one of each per sample.")


def check_class_count(classes: Any, least: int = 1) -> None:
    """Refuse what cannot be a number of classes."""
    whole = isinstance(classes, int | np.integer) and not isinstance(classes, bool)
    if not whole or not least <= classes <= MOST_CLASSES:
        raise BadInput(f"classes must be a whole number from {least} to {MOST_CLASSES}. Got {brief(classes)}.")


def kind(value: Any) -> str:
    """Return what an array is, in words."""
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else brief(value)


def _named(what: str, name: str) -> str:
    return f"{what}[{name!r}]" if name else what
