"""Data sets from NumPy arrays and from torch data sets: checked once, then a plain ``Dataset``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput, brief
from fedweave.data.dataset import MOST_CLASSES, Array, Dataset, check_class_count, check_finite, check_length
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
) -> Dataset:
    """Build a data set from NumPy arrays (or anything ``np.asarray`` takes), one row per sample.

    uint8 x of (n, H, W) or (n, C, H, W) are images; all else becomes float32 features, where (n, H, W) also
    gets a channel axis. Integer y are class labels 0.. ; float y are regression targets (classes 0). ``classes`` is
    needed only where some of them do not occur. ``group`` names each sample's natural client. Without a test set a
    fixed fifth is set aside, in proportion in every group, or in every class when there are no groups.
    """
    if (test_x is None) != (test_y is None):
        raise BadInput("Give both test_x and test_y, or neither.")
    x, y = _features(x, "x"), _labels(y, "y")
    check_length(len(x), "x", len(y), "y")
    if test_x is None:
        return _with_split(name, x, y, _codes(group, None, len(x), 0)[0], _class_count(y, classes))
    test_x, test_y = _features(test_x, "test_x"), _labels(test_y, "test_y")
    check_length(len(test_x), "test_x", len(test_y), "test_y")
    if x.shape[1:] != test_x.shape[1:] or x.dtype != test_x.dtype or y.dtype != test_y.dtype:
        raise BadInput(
            f"Training and test samples differ: {x.dtype} {x.shape[1:]} with {y.dtype} labels, "
            f"and {test_x.dtype} {test_x.shape[1:]} with {test_y.dtype} labels."
        )
    group, test_group = _codes(group, test_group, len(x), len(test_x))
    classes = _class_count(np.concatenate([y, test_y]), classes)
    return build(name, (x, y, group), (test_x, test_y, test_group), classes)


def from_torch(train: Any, test: Any = None, name: str = "torch") -> Dataset:
    """Build a data set from a map-style torch data set whose items are (tensor, array or image, label).

    Every item is read once, so a random augmentation would be frozen: leave such transforms out.
    """
    x, y = _collect(train, "train")
    if test is None:
        return from_arrays(x, y, name=name)
    test_x, test_y = _collect(test, "test")
    return from_arrays(x, y, test_x, test_y, name=name)


def build(
    name: str,
    train: tuple[Array, Array, Array | None],
    test: tuple[Array, Array, Array | None],
    classes: int,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> Dataset:
    """Combine (x, y, group) of training and test; mean and std are computed when not given."""
    (x, y, group), (test_x, test_y, test_group) = train, test
    if len(x) == 0 or len(test_x) == 0:
        raise BadInput(f"{name} has {len(x)} training and {len(test_x)} test samples. Both must have some.")
    if x.dtype == np.uint8 and not mean:
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
    if wrong or not 0 < keep <= 1:
        raise BadInput(f"imbalance needs classes of {data.name} and 0 < keep <= 1. Got {tuple(rare)} and {keep}.")
    sizes = np.bincount(data.y, minlength=data.classes)
    left = [max(1, round(keep * n)) if c in rare and n else n for c, n in enumerate(sizes)]
    (kept,) = deal(data.y, np.array([left]), rng)
    group = None if data.group is None else data.group[kept]
    name = f"{data.name}-imbalanced"
    x, y = data.x[kept], data.y[kept]
    return dataclasses.replace(data, name=name, x=x, y=y, group=group)


def _with_split(name: str, x: Array, y: Array, group: Array | None, classes: int) -> Dataset:
    if len(y) < 2:
        raise BadInput(f"{name} has {len(y)} samples; at least 2 are needed to set some aside. Give test_x, test_y.")
    whole = np.zeros(len(y), np.int64)
    strata = group if group is not None else y if y.dtype == np.int64 else whole
    a, b = stratified_split(strata, TEST_SHARE, np.random.default_rng(SPLIT_SEED))
    groups = (None, None) if group is None else (group[a], group[b])
    return build(name, (x[a], y[a], groups[0]), (x[b], y[b], groups[1]), classes)


def _as_array(values: Any, what: str) -> Array:
    try:
        return np.asarray(values)
    except ValueError as e:  # rows of different lengths
        raise BadInput(f"{what} cannot be read as an array: {brief(str(e), 200)}") from None


def _features(x: Any, what: str) -> Array:
    x = _as_array(x, what)
    if x.ndim < 2 or x.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be numbers of shape (samples, ...) with 2 axes or more. Got {x.dtype} {x.shape}.")
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise BadInput(f"{what} {x.shape} has its channels last. Give {what}.transpose(0, 3, 1, 2) instead.")
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    return _as_float32(x, what)


def _as_float32(values: Array, what: str) -> Array:
    with np.errstate(over="ignore"):  # what does not fit is infinite, which is refused
        cast = values.astype(np.float32)
    check_finite(cast, what)
    return cast


def _labels(y: Any, what: str) -> Array:
    y = _as_array(y, what)
    if y.ndim != 1 or y.dtype.kind not in "fiub":
        raise BadInput(
            f"{what} must be one number per sample, shape (samples,). Got {y.dtype} {y.shape}. "
            f"Use {what}.argmax(1) for one-hot labels."
        )
    if y.dtype.kind == "f":
        return _as_float32(y, what)
    wrong = y[(y < 0) | (y >= MOST_CLASSES)]
    if len(wrong):
        raise BadInput(f"{what} has the label {wrong[0]}. Labels count from 0: use np.unique's inverse.")
    return y.astype(np.int64)


def _codes(group: Any, test_group: Any, n: int, m: int) -> tuple[Array | None, Array | None]:
    """Number the group names 0.. in sorted order, consistently for training and test."""
    if group is None:
        return None, None
    group = _as_array(group, "group").ravel()
    other = group[:0] if test_group is None else _as_array(test_group, "test_group").ravel()
    check_length(n, "x", len(group), "group")
    if test_group is not None:
        check_length(m, "test_x", len(other), "test_group")
    codes = np.unique(np.concatenate([group, other]), return_inverse=True)[1].astype(np.int64)
    return codes[:n], codes[n:] if test_group is not None else None


def _class_count(y: Array, classes: int | None) -> int:
    """Return the number of classes; labels that are probably not classes 0.. need it to be given."""
    if classes is not None:
        check_class_count(classes)
    if y.dtype != np.int64:
        if classes is not None:
            raise BadInput(f"classes={classes} is for whole numbers as labels, but y has {y.dtype} targets.")
        return 0
    if classes is not None or not y.size:
        return int(classes or 1)
    found = int(y.max()) + 1
    if y.min() > 0:
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


def _collect(source: Any, what: str) -> tuple[Array, Array]:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__") or len(source) == 0:
        raise BadInput(f"{what} must be a map-style data set with samples. Got {type(source).__name__}.")
    x: list[Array] = []
    y: list[float] = []
    for i in range(len(source)):
        sample, label = _pair(source[i], what)
        try:
            x.append(_array(sample))
        except ValueError:  # several inputs of different shapes
            raise BadInput(f"Sample {i} of {what} cannot be read as one array. Models take one input.") from None
        y.append(_number(label, f"The label of sample {i} of {what}"))
        if x[i].shape != x[0].shape:
            raise BadInput(f"Sample {i} of {what} has shape {x[i].shape}, sample 0 {x[0].shape}. Resize them.")
    return np.stack(x), np.asarray(y)


def _pair(item: Any, what: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):  # a row of a HuggingFace data set
        names = list(map(str, item))
        rows = f"[(row[{names[0]!r}], row[{names[-1]!r}]) for row in {what}]" if len(names) > 1 else "(sample, label)"
        raise BadInput(f"Items of {what} are dictionaries of {brief(', '.join(names))}. Give pairs instead: {rows}.")
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise BadInput(f"Items of {what} must be a pair, (sample, label). Got {brief(item)}.")
    return item[0], item[1]


def _number(label: Any, what: str) -> Any:
    value = _array(label)
    if value.size != 1 or value.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be one number. Got {brief(label)}.")
    return value.item()


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor, perhaps on a GPU
        value = value.detach().cpu()
    array = np.asarray(value)
    image = hasattr(value, "getbands")  # Pillow puts channels last
    return np.moveaxis(array, -1, 0) if image and array.ndim == 3 else array
