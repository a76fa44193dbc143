"""Data sets from torch, pandas and Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput, brief, choice
from fedweave.data.arrays import answers, class_count, codes, from_arrays, set_aside
from fedweave.data.augment import Transform
from fedweave.data.checks import check_length, check_pixels
from fedweave.data.columns import Array, Column, Items, as_array, length
from fedweave.data.dataset import Dataset


def from_torch(
    train: Any,
    test: Any = None,
    name: str = "torch",
    group: Any = None,
    test_group: Any = None,
    lazy: bool = False,
    collate: Callable[[list[Any]], tuple[Any, Any]] | None = None,
    labels: Any = None,
    test_labels: Any = None,
    transform: Transform | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> Dataset:
    """Build a data set from a map-style torch data set whose items are (tensor, array or image, label).

    Every item is read once and kept, so a random augmentation would be frozen: leave such transforms out. With ``lazy``
    items are read whenever a batch needs them, and only the labels are kept: those given as ``labels``, or the data
    set's own ``targets``, or else those of one pass over all items. ``collate`` makes the inputs and the labels of a
    batch from a list of items (lazy only). ``group`` names each item's natural client. Images of bytes are scaled by
    ``mean`` and ``std`` of their channels, which lazy ones must be given.
    """
    if collate is not None and not lazy:
        raise BadInput("'collate' is for lazy data sets: give lazy=True.")
    if not lazy:
        x, y = _collect(train, "train")
        rest = (None, None) if test is None else _collect(test, "test")
        return from_arrays(x, y, *rest, name, group, test_group, None, mean, std, transform)
    items, y = Items(train, collate), _labels(train, labels, "train", "labels")
    if test is None:
        group, _, names = codes(group, None, len(items), 0)
        (train_x, y, group), (test_x, test_y, test_group) = set_aside(name, items, y, group)
    else:
        train_x, test_x, test_y = items, Items(test, collate), _labels(test, test_labels, "test", "test_labels")
        group, test_group, names = codes(group, test_group, len(train_x), len(test_x))
    classes = class_count([y, test_y], None)
    scale = tuple(mean), tuple(std)
    data = Dataset(name, train_x, y, test_x, test_y, classes, *scale, group, test_group, transform, client_names=names)
    if len(data.shape) == 3 and collate is None:  # read now: what cannot be is told before a run
        check_pixels(items.peek(0), data.mean, data.std)
    return data


def from_frame(
    frame: Any,
    target: str | Sequence[str],
    group: str | None = None,
    test: Any = None,
    name: str = "frame",
    inputs: Sequence[str] | None = None,
) -> Dataset:
    """Build a data set from a pandas DataFrame: ``target`` names the column of labels or targets, or several columns.

    ``group`` names the column of natural clients, ``inputs`` those of the features; without it all other columns are.
    ``test`` is another frame with the same columns. Categories become class labels in the order of their names; turn
    words among the inputs into numbers first.
    """
    targets = [target] if isinstance(target, str) else list(target)
    named = [*targets, *([group] if group else [])]
    _check_frame(frame, [*named, *(inputs or [])])
    chosen = list(inputs or [c for c in frame.columns if c not in named])
    for which in (frame, test) if test is not None else (frame,):
        _check_frame(which, [*named, *chosen])
    several = targets if len(targets) > 1 else []
    words = [c for c in (*several, *chosen) if frame[c].dtype.kind not in "fiub"]
    if words or not chosen:
        what = f"The column {words[0]!r} is not numbers: encode it, or name the 'inputs'." if words else "No inputs."
        raise BadInput(f"from_frame: {what}")
    names = None if len(targets) > 1 or frame[targets[0]].dtype.kind in "fiub" else sorted(set(frame[targets[0]]))

    def part(which: Any) -> tuple[Any, Any, Any]:
        y = which[targets].to_numpy() if len(targets) > 1 else which[targets[0]].to_numpy()
        if names is not None:
            if strange := [value for value in set(y.tolist()) if value not in names]:
                raise BadInput(f"The test frame: {choice('class', str(strange[0]), map(str, names))}")
            y = np.searchsorted(np.array(names, dtype=object), y)
        return which[chosen].to_numpy(np.float32), y, None if group is None else which[group].to_numpy()

    x, y, groups = part(frame)
    test_x, test_y, test_groups = (None, None, None) if test is None else part(test)
    return from_arrays(x, y, test_x, test_y, name, groups, test_groups, class_names=names or ())


def _check_frame(frame: Any, named: Sequence[str]) -> None:
    if not hasattr(frame, "columns"):
        way = " Read a file with pd.read_csv(path) first." if isinstance(frame, str | os.PathLike) else ""
        raise BadInput(f"from_frame needs a pandas DataFrame. Got {type(frame).__name__}.{way}")
    columns = list(frame.columns)
    if missing := [c for c in named if c not in columns]:
        raise BadInput("The frame: " + choice("column", missing[0], map(str, columns)))
    if empty := [c for c in named if frame[c].isna().any()]:
        raise BadInput(f"The column {empty[0]!r} has empty cells. Fill them, or drop these rows.")


def from_huggingface(
    train: Any,
    inputs: str | Sequence[str],
    target: str | Sequence[str],
    group: str | None = None,
    test: Any = None,
    name: str = "huggingface",
    transform: Transform | None = None,
) -> Dataset:
    """Build a data set from a ``datasets.Dataset``: ``inputs`` names one column, or several, which go by keyword.

    ``target`` names the column of labels, or several; ``group`` that of natural clients, ``test`` is another
    ``Dataset``. Text must be tokens already, as ``map`` with a tokenizer and padding makes them; images are read once.
    """

    def column(which: Any, keys: str | Sequence[str]) -> Any:
        if not isinstance(keys, str):
            return {key: column(which, key) for key in keys}
        found = _stacked([as_array(value) for value in which[keys]], keys)
        return found.astype(np.uint8) if _are_bytes(which, keys) else found

    def part(which: Any) -> tuple[Any, Any, Any]:
        known = getattr(which, "column_names", None)
        if not isinstance(known, list):
            raise BadInput(f"from_huggingface needs a datasets.Dataset. Got {type(which).__name__}: choose a split.")
        named = [key for keys in (inputs, target, group or ()) for key in ([keys] if isinstance(keys, str) else keys)]
        if missing := [key for key in named if key not in known]:
            raise BadInput("The data set: " + choice("column", missing[0], known))
        return column(which, inputs), column(which, target), None if group is None else np.asarray(which[group])

    (x, y, groups), rest = part(train), (None, None, None) if test is None else part(test)
    return from_arrays(x, y, *rest[:2], name=name, group=groups, test_group=rest[2], transform=transform)


def _are_bytes(which: Any, key: str) -> bool:
    """Return whether a column is declared as bytes; its values come as other whole numbers."""
    feature = which.features[key]
    while hasattr(feature, "feature"):  # of a list
        feature = feature.feature
    return getattr(feature, "dtype", "") == "uint8"


def _labels(source: Any, given: Any, what: str, name: str) -> Column:
    _check_map_style(source, what)
    found = given if given is not None else getattr(source, "targets", None)
    found = answers(_read_labels(source, what) if found is None else found, name)
    check_length(len(source), what, length(found), name)
    return found


def _read_labels(source: Any, what: str) -> Array:
    try:
        read = ((i, _pair(source[i], what)[1]) for i in _all(source))
        return np.asarray([_number(label, f"The label of sample {i} of {what}") for i, label in read])
    except BadInput as e:
        raise BadInput(f"{e} Or give all labels as 'labels' and 'test_labels'.") from None


def _all(source: Any) -> range:
    return range(len(source))


def _check_map_style(source: Any, what: str) -> None:
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__") or len(source) == 0:
        raise BadInput(f"{what} must be a map-style data set with samples. Got {type(source).__name__}.")


def _collect(source: Any, what: str) -> tuple[Array, Array]:
    _check_map_style(source, what)
    x: list[Array] = []
    y: list[float] = []
    for i in _all(source):
        sample, label = _pair(source[i], what)
        try:
            x.append(as_array(sample))
        except ValueError:  # several inputs of different shapes
            raise BadInput(
                f"Sample {i} of {what} cannot be read as one array. Give several inputs as a dict of arrays to "
                "from_arrays, or lazy=True with a 'collate'."
            ) from None
        y.append(_number(label, f"The label of sample {i} of {what}"))
    return _stacked(x, what), np.asarray(y)


def _stacked(samples: list[Array], what: str) -> Array:
    for i, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise BadInput(
                f"Sample {i} of {what} has shape {sample.shape}, sample 0 {samples[0].shape}. Make them equal."
            )
    return np.stack(samples)


def _pair(item: Any, what: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):  # a row of a Hugging Face data set
        names = brief(", ".join(map(str, item)))
        raise BadInput(f"Items of {what} are dictionaries of {names}. Use fedweave.data.from_huggingface.")
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise BadInput(f"Items of {what} must be a pair, (sample, label). Got {brief(item)}.")
    return item[0], item[1]


def _number(label: Any, what: str) -> Any:
    value = as_array(label)
    if value.size != 1 or value.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be one number. Got {brief(label)}.")
    return value.item()
