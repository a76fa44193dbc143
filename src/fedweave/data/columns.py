"""A column of samples: one array, several arrays by name, or items that are read when a batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedweave.data.ragged import Ragged

Array = NDArray[Any]


@dataclass(frozen=True)
class Items:
    """Samples of a map-style data set, read one by one when they are needed; nothing is kept.

    An item is a pair of inputs and label. With ``collate`` a list of items becomes the inputs and the labels of a
    batch, as in a torch DataLoader; without, the inputs are stacked.
    """

    source: Any  # has __len__ and __getitem__, and perhaps torch's __getitems__
    collate: Callable[[list[Any]], tuple[Any, Any]] | None = None
    index: Array | None = None  # which of its items; None: all

    def __len__(self) -> int:
        return len(self.source) if self.index is None else len(self.index)

    def __getitem__(self, rows: Any) -> Items:
        """Return the items at these rows, unread."""
        index = np.arange(len(self.source)) if self.index is None else self.index
        return Items(self.source, self.collate, index[rows])

    def read(self, rows: Sequence[int]) -> list[Any]:
        """Return the items at these rows, each as the source gives it."""
        places = list(rows) if self.index is None else self.index[np.asarray(rows, np.int64)].tolist()
        together = getattr(self.source, "__getitems__", None)
        return list(together(places)) if together is not None else [self.source[i] for i in places]

    def peek(self, row: int) -> Any:
        """Return the inputs of one item, as arrays of a batch of one."""
        found = self.read([row])
        if self.collate is not None:
            return each(self.collate(found)[0], as_array)
        x = as_array(found[0][0])[None]
        return x[:, None] if x.dtype == np.uint8 and x.ndim == 3 else x  # a grey image gets its channel


Column = Array | Mapping[str, Array] | Items


def length(column: Column) -> int:
    """Return the number of samples."""
    return len(next(iter(column.values()), ())) if isinstance(column, Mapping) else len(column)


def rows(column: Column, index: Any) -> Any:
    """Return the column of these samples."""
    return {name: array[index] for name, array in column.items()} if isinstance(column, Mapping) else column[index]


def arrays(column: Column | Ragged) -> Iterator[tuple[str, Array]]:
    """Yield the arrays with their names; one alone has none. Items have no arrays."""
    if isinstance(column, Mapping):
        yield from sorted(column.items())
    elif isinstance(column, Ragged):
        yield from (("values", column.values), ("offsets", column.offsets))
    elif not isinstance(column, Items):
        yield "", column


def each(column: Any, change: Callable[[Any], Any]) -> Any:
    """Return the column, or the positions of clients in it, with every array changed."""
    if isinstance(column, Items):
        return column
    if isinstance(column, Ragged):
        return Ragged(change(column.values), change(column.offsets))
    return {name: change(a) for name, a in column.items()} if isinstance(column, Mapping) else change(column)


def as_array(value: Any) -> Array:
    """Return one input or label as an array, channels first; torch's tensors and Pillow's images too."""
    if hasattr(value, "detach"):  # a tensor, perhaps on a GPU
        value = value.detach().cpu()
    array = np.asarray(value)
    image = hasattr(value, "getbands")  # Pillow puts channels last
    return np.moveaxis(array, -1, 0) if image and array.ndim == 3 else array
