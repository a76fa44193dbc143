"""Data sets from NumPy arrays: checked once, then a plain ``Dataset``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.data.augment import Transform
from fedweave.data.checks import MOST_CLASSES, PADDING, check_class_count, check_finite, check_length
from fedweave.data.columns import Array, Column, as_array, length, rows
from fedweave.data.dataset import Dataset
from fedweave.data.deal import deal, stratified_split

TEST_SHARE = 0.2  # of data without a test set
SPLIT_SEED = 0  # for splits that belong to a data set, so that they are the same everywhere


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any = None,
    test_y: Any = None,
    name: str = "arrays",
    group: Any = None,
    test_group: Any = None,
    classes: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    transform: Transform | None = None,
    class_names: Sequence[str] = (),
) -> Dataset:
    """Build a data set from NumPy arrays (or anything ``np.asarray`` takes), one row per sample.

    uint8 x of (n, H, W) or (n, C, H, W) are images, scaled by ``mean`` and ``std`` of their channels, or by those of
    the training images. Whole numbers stay whole (tokens), everything else becomes float32, and shapes stay as they
    are. A dict of arrays is several inputs: the model gets them by keyword. Integer y are class labels 0.. or, as
    (n, T), tokens; float y are targets of any shape (classes 0). ``classes`` is needed only where some of them do not
    occur. ``group`` names each sample's natural client. Without a test set a fixed fifth is set aside, in proportion
    in every group, or in every class when there are no groups. ``transform`` changes training batches at random.
    """
    if (test_x is None) != (test_y is None):
        raise BadInput("Give both test_x and test_y, or neither.")
    x, y = inputs(x, "x"), answers(y, "y")
    check_length(length(x), "x", length(y), "y")
    if test_x is None:
        group, _, clients = codes(group, None, length(x), 0)
        parts = set_aside(name, x, y, group)
        found = build(name, *parts, class_count([y], classes), mean, std)
    else:
        test_x, test_y = inputs(test_x, "test_x"), answers(test_y, "test_y")
        group, test_group, clients = codes(group, test_group, length(x), length(test_x))
        _check_kinds(y, test_y)
        classes = class_count([y, test_y], classes)
        found = build(name, (x, y, group), (test_x, test_y, test_group), classes, mean, std)
    if transform is None and not clients and not class_names:
        return found
    names = tuple(map(_printable, class_names))
    return dataclasses.replace(found, transform=transform, client_names=clients, class_names=names)


def from_pair(x: Any, y: Any, name: str) -> Dataset:
    """Return training samples without a test set: those of one client, whose inputs are ready for the network."""
    x, y = as_array(x), answers(y, "y")
    ready = {"x": x if x.dtype in (np.uint8, np.int64) else _as_float32(x, "x")}
    none = np.zeros(0, np.int64)
    classes = 0 if not isinstance(y, np.ndarray) or y.dtype != np.int64 else int(y.max(initial=0)) + 1
    return Dataset(name, ready["x"], y, ready["x"][none], rows(y, none), classes)


Part = tuple[Column, Column, Array | None]


def build(
    name: str, train: Part, test: Part, classes: int, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> Dataset:
    """Combine (x, y, group) of training and test; mean and std are computed when not given."""
    (x, y, group), (test_x, test_y, test_group) = train, test
    if length(x) == 0 or length(test_x) == 0:
        raise BadInput(f"{name} has {length(x)} training and {length(test_x)} test samples. Both must have some.")
    if isinstance(x, np.ndarray) and x.dtype == np.uint8 and not mean:
        mean, std = pixel_stats(x)
    return Dataset(name, x, y, test_x, test_y, classes, tuple(mean), tuple(std), group, test_group)


def pixel_stats(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std of each channel of (n, C, H, W) bytes, of pixel / 255, exact to 6 decimals."""
    counts = np.zeros((x.shape[1], 256), np.int64)
    for start in range(0, len(x), 1000):  # in blocks, because counting takes eight bytes per pixel
        for c, row in enumerate(counts):
            row += np.bincount(x[start : start + 1000, c].ravel(), minlength=256)
    value = np.arange(256) / 255
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ value
    std = np.sqrt((share * (value - mean[:, None]) ** 2).sum(1))
    std[std == 0] = 1  # a constant channel stays as it is
    return tuple(mean.round(6).tolist()), tuple(std.round(6).tolist())


def imbalance(
    data: Dataset, rare: Sequence[int] = (0, 1, 2), keep: float = 0.4, *, rng: np.random.Generator
) -> Dataset:
    """Thin the classes ``rare`` to the share ``keep`` of their training samples (FedDD); test data stays."""
    wrong = [c for c in rare if not 0 <= c < data.classes]
    if data.labels is None or wrong or not 0 < keep <= 1:
        raise BadInput(f"imbalance needs classes of {data.name} and 0 < keep <= 1. Got {tuple(rare)} and {keep}.")
    sizes = np.bincount(data.labels, minlength=data.classes)
    left = [max(1, round(keep * n)) if c in rare and n else n for c, n in enumerate(sizes)]
    (kept,) = deal(data.labels, np.array([left]), rng)
    return dataclasses.replace(data.take(kept), name=f"{data.name}-imbalanced")


def set_aside(name: str, x: Column, y: Column, group: Array | None) -> tuple[Part, Part]:
    """Return training and test parts: a fixed fifth of every group or class is for testing."""
    n = length(y)
    if n < 2:
        raise BadInput(f"{name} has {n} samples; at least 2 are needed to set some aside. Give test_x, test_y.")
    by_class = isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype == np.int64
    strata = group if group is not None else y if by_class else np.zeros(n, np.int64)
    train, test = stratified_split(np.asarray(strata), TEST_SHARE, np.random.default_rng(SPLIT_SEED))
    a, b = ((rows(x, i), rows(y, i), None if group is None else group[i]) for i in (train, test))
    return a, b


def inputs(x: Any, what: str) -> Column:
    """Return inputs as the arrays that a data set keeps."""
    if isinstance(x, Mapping):
        found = {str(name): _input(values, f"{what}[{name!r}]", least=1) for name, values in x.items()}
        _check_lengths(found, what)
        return found
    return _input(x, what, least=2)


def _input(values: Any, what: str, least: int) -> Array:
    x = _as_numbers(values, what)
    if x.ndim < least:
        raise BadInput(f"{what} must be numbers of shape (samples, ...) with 2 axes or more. Got {x.dtype} {x.shape}.")
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise BadInput(f"{what} {x.shape} has its channels last. Give {what}.transpose(0, 3, 1, 2) instead.")
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    return x.astype(np.int64) if x.dtype.kind in "iu" and x.dtype != np.uint8 else _as_float32(x, what)


def answers(y: Any, what: str) -> Column:
    """Return labels or targets as the arrays that a data set keeps."""
    if isinstance(y, Mapping):
        found = {str(name): _answer(values, f"{what}[{name!r}]") for name, values in y.items()}
        _check_lengths(found, what)
        return found
    return _answer(y, what)


def _answer(values: Any, what: str) -> Array:
    y = _as_numbers(values, what)
    if y.ndim < 1:
        raise BadInput(f"{what} must have a label or a target for each sample. Got {y.dtype} {y.shape}.")
    if y.dtype.kind in "fb" and not (y.dtype.kind == "b" and y.ndim == 1):
        return _as_float32(y, what)
    wrong = y[(y < 0) & ((y != PADDING) | (y.ndim == 1)) | (y >= MOST_CLASSES)]
    if len(wrong):
        hint = "use np.unique's inverse" if y.ndim == 1 else f"put {PADDING} in the place of padding"
        raise BadInput(f"{what} has the label {wrong[0]}. Labels count from 0: {hint}.")
    return y.astype(np.int64)


def _check_lengths(columns: Mapping[str, Array], what: str) -> None:
    if not columns:
        raise BadInput(f"{what} has no arrays. Give at least one.")
    (first, values), *others = columns.items()
    for name, other in others:
        check_length(len(values), f"{what}[{first!r}]", len(other), f"{what}[{name!r}]")


def _as_array(values: Any, what: str) -> Array:
    try:
        return as_array(values)
    except ValueError as e:  # rows of different lengths
        raise BadInput(f"{what} cannot be read as an array: {brief(str(e), 200)}") from None


def _as_numbers(values: Any, what: str) -> Array:
    found = _as_array(values, what)
    if found.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be numbers, one row per sample. Got {found.dtype} {found.shape}.")
    return found


def _as_float32(values: Array, what: str) -> Array:
    with np.errstate(over="ignore"):  # what does not fit is infinite, which is refused
        cast = values.astype(np.float32)
    check_finite(cast, what)
    return cast


def _check_kinds(y: Column, test_y: Column) -> None:
    ours, theirs = (getattr(column, "dtype", None) for column in (y, test_y))
    if ours != theirs:
        raise BadInput(f"Training and test samples differ: {ours} labels and {theirs} labels.")


def codes(group: Any, test_group: Any, n: int, m: int) -> tuple[Array | None, Array | None, tuple[str, ...]]:
    """Number the groups 0.. in sorted order, consistently for training and test; return their names too, if any."""
    if group is None:
        return None, None, ()
    group = _as_array(group, "group").ravel()
    other = group[:0] if test_group is None else _as_array(test_group, "test_group").ravel()
    check_length(n, "x", len(group), "group")
    if test_group is not None:
        check_length(m, "test_x", len(other), "test_group")
    found, numbers = np.unique(np.concatenate([group, other]), return_inverse=True)
    numbers, same = numbers.astype(np.int64), np.array_equal(found, np.arange(found.size))
    names = () if same else tuple(map(_printable, found.tolist()))
    return numbers[:n], numbers[n:] if test_group is not None else None, names


def _printable(name: Any) -> str:
    """Return a name as text that can be shown anywhere."""
    return "".join(c if c.isprintable() else "?" for c in str(name))


def class_count(columns: Sequence[Column], classes: int | None) -> int:
    """Return the number of classes or tokens; labels that are probably not classes 0.. need it to be given."""
    if classes is not None:
        check_class_count(classes)
    if not isinstance(columns[0], np.ndarray) or columns[0].dtype != np.int64:
        if classes is not None:
            kind = getattr(columns[0], "dtype", "several")
            raise BadInput(f"classes={classes} is for whole numbers as labels, but y has {kind} targets.")
        return 0
    y = np.concatenate([np.asarray(column).ravel() for column in columns])
    y = y[y != PADDING]
    if classes is not None or not y.size:
        return int(classes or 1)
    found = int(y.max()) + 1
    if y.min() > 0 and columns[0].ndim == 1:
        raise BadInput(
            f"The labels begin at {y.min()}, but classes count from 0. Give y - {y.min()} as labels, or "
            f"classes={found} if the first ones just do not occur."
        )
    if found > y.size:
        raise BadInput(
            f"There are labels up to {found - 1} but {y.size} samples. Use np.unique's inverse as labels, or give "
            f"classes={found} if most of them just do not occur."
        )
    return found
