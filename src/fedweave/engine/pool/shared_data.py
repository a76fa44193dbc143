"""A data set laid out once for all training processes, in a file without a name: however a run ends, none is left."""

from __future__ import annotations

import tempfile
from typing import IO, Any, NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.data.columns import arrays, each
from fedweave.data.ragged import Ragged
from fedweave.local.client_data import ClientData
from fedweave.tables.files import storing

SHARED = ("x", "y", "test_x", "test_y", "parts", "test_parts")
ALIGNMENT = 64


class Place(NamedTuple):
    """Where an array lies in the file."""

    begin: int
    dtype: str
    shape: tuple[int, ...]

    def of(self, content: Array) -> Array:
        """Return the array; its bytes are read when they are first touched."""
        size = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        return content[self.begin : self.begin + size].view(self.dtype).reshape(self.shape)


def contiguous(data: ClientData) -> dict[str, Any]:
    """Return the columns that processes share, in arrays without gaps."""
    positions = {name: Ragged.of(getattr(data, name)) for name in ("parts", "test_parts")}
    return {
        name: each(column, np.ascontiguousarray)
        for name, column in (data._asdict() | positions).items()
        if name in SHARED
    }


def lay_out(data: ClientData) -> tuple[IO[bytes], ClientData]:
    """Return a file with the arrays of samples and positions, and ``data`` with their places in it instead of them."""
    columns = contiguous(data)
    with storing(None, sum(array.nbytes for column in columns.values() for _, array in arrays(column))):
        file = tempfile.TemporaryFile(prefix="fedweave-")  # noqa: SIM115 - closed by the caller

        def put(array: Array) -> Place:
            begin = file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            array.tofile(file)
            return Place(begin, array.dtype.str, array.shape)

        places = {name: each(column, put) for name, column in columns.items()}
    return file, data._replace(**places)


def mapped(descriptor: int, data: ClientData) -> ClientData:
    """Return the data of ``lay_out`` with the arrays of its file, one copy for all processes that map it."""
    with open(descriptor, "rb") as file:
        content = np.memmap(file, np.uint8, "c")
    return data._replace(**{name: each(getattr(data, name), lambda place: place.of(content)) for name in SHARED})
