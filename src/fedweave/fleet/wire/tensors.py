"""Vectors as named arrays in messages, and back.

Arrays travel in NumPy's own format, which carries no code. What arrives is opened without trusting its header: sizes
are compared before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import TypeVar

import numpy as np
from flwr.app import Array as Packed
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy

from fedweave.core.records import Array, Layout
from fedweave.core.settings import brief
from fedweave.round.admission import misfit

NUMPY = "numpy.ndarray"  # Flower's name for NumPy's format
FLOAT32 = np.dtype(np.float32)
MOST_HEADER = 4096  # bytes
MOST_DIMENSIONS = 16
BUFFERS = ("running_mean", "running_var")  # averages, not parameters
FLOATS = ("float16", "float32", "float64")  # each is cast to the others where a model has them


R = TypeVar("R", ArrayRecord, MetricRecord, ConfigRecord)


def records_of(content: RecordDict, kind: type[R]) -> dict[str, R]:
    """Return the records of one kind by their names.

    What Flower's own ``content.array_records`` returns refers to itself, so that all arrays of a message would stay in
    memory until the garbage collector comes.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


class Unfit(ValueError):  # noqa: N818 - it says what the message is
    """What arrived cannot be used; the text says what its sender did."""


class Misfit(Unfit):
    """The tensors of another model arrived."""


def packed(values: Array) -> Packed:
    """Return an array as Flower sends it."""
    values = np.asarray(values, order="C")
    head = BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(values))
    data = b"".join((head.getvalue(), values.data.cast("B") if values.size else b""))
    return Packed(str(values.dtype), tuple(values.shape), NUMPY, data)


def opened(name: str, array: Packed) -> Array:
    """Return the values that a message carries, without a copy, once header and length agree."""
    if array.stype != NUMPY:
        raise Unfit(f"sent {name} as {brief(array.stype)!r}, which is not NumPy's format")
    begin = 10 + int.from_bytes(array.data[8:10], "little")  # of the values
    try:
        shape, fortran, dtype = _header(array.data[:begin])
    except Exception as e:  # NumPy's parser meets damage with errors of many kinds
        raise Unfit(f"sent {name} in a form that is not NumPy's ({type(e).__name__})") from None
    count = prod(shape)
    if dtype.hasobject or (len(array.data) - begin) != count * dtype.itemsize:
        raise Unfit(f"sent {name} with {len(array.data) - begin} bytes for {count} values of type {brief(str(dtype))}")
    if tuple(array.shape) != shape or array.dtype != str(dtype):
        announced = f"{brief(array.dtype)}{brief(tuple(array.shape))}"
        raise Unfit(f"announced {name} as {announced} and sent {brief(str(dtype))}{shape}")
    return np.frombuffer(array.data, dtype, count, begin).reshape(shape, order="F" if fortran else "C")


def fits(name: str, array: Packed, before: Packed) -> bool:
    """Return whether an array can take the place of another: it is whole, and of the same shape and type."""
    if (tuple(array.shape), array.dtype) != (tuple(before.shape), before.dtype):
        return False
    try:
        opened(name, array)
    except Unfit:
        return False
    return True


@lru_cache(maxsize=1024)  # a round has the same few headers from every client
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and type that a header in format 1.0 of NumPy's files claims."""
    if len(content) > MOST_HEADER or not content.startswith(b"\x93NUMPY\x01\x00"):
        raise ValueError("not a header of format 1.0")
    shape, fortran, dtype = npy.read_array_header_1_0(BytesIO(content[8:]))
    if len(shape) > MOST_DIMENSIONS or not all(0 <= n < 2**62 for n in shape) or not dtype.itemsize:
        raise ValueError("not the shape of an array")
    if not prod(shape) and max(shape) >= 2**31:  # which NumPy cannot make, empty as it is
        raise ValueError("not the shape of an array")
    return shape, fortran, dtype


@dataclass(frozen=True)
class Tensors:
    """A model's named arrays as they travel: where each lies in the flat vector, and what is not part of it."""

    layout: Layout
    types: Mapping[str, str]  # of every array, in the order of the wire; whole numbers are outside the vector
    dtype: np.dtype = FLOAT32  # of the vector

    @classmethod
    def of_layout(cls, layout: Layout) -> Tensors:
        """Return how our own models travel: all float32."""
        return cls(layout, dict.fromkeys(layout.names, "float32"))

    @classmethod
    def of_record(cls, arrays: ArrayRecord) -> Tensors:
        """Return how the model of somebody's app travels; averages are recognised by PyTorch's names for them."""
        types = {name: array.dtype for name, array in arrays.items()}
        numbers = [name for name, kind in types.items() if np.issubdtype(np.dtype(kind), np.floating)]
        if not numbers:
            raise ValueError("The initial arrays hold no floating-point numbers: there is nothing to train.")
        names = sorted(numbers, key=lambda name: name.endswith(BUFFERS))  # stable: parameters first
        shapes = {name: tuple(arrays[name].shape) for name in names}
        trained = sum(prod(shapes[name]) for name in names if not name.endswith(BUFFERS))
        dtype = np.result_type(np.float32, *(types[name] for name in names))
        return cls(Layout(tuple(names), tuple(shapes.values()), trained), types, dtype)

    def record(self, x: Array, rest: ArrayRecord | None = None) -> ArrayRecord:
        """Return the flat vector as named arrays; what is not part of it comes from ``rest``."""
        values = self.layout.split(x)

        def one(name: str, kind: str) -> Packed:
            if name in values:
                return packed(values[name].astype(kind, copy=False))
            assert rest is not None
            return rest[name]

        return ArrayRecord({name: one(name, kind) for name, kind in self.types.items()})

    def read(self, arrays: ArrayRecord, out: Array, minus: Array | None = None, ours: str = "the model") -> None:
        """Write the arrays into the flat vector ``out``, less the vector ``minus``; refuse what does not fit.

        Floating-point numbers of another size than the model's are cast: NumPy's own are float64. ``ours`` is what the
        model is called where another one arrived.
        """
        cast = self.cast(arrays)
        found = {n: (tuple(a.shape), self.types[n] if n in cast else a.dtype) for n, a in arrays.items()}
        if wrong := misfit(found, self.layout, self.types, ours):
            raise Misfit(wrong)
        into, less = self.layout.split(out), None if minus is None else self.layout.split(minus)
        for name, place in into.items():
            values = opened(name, arrays[name])
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later, by its place
                if less is None:
                    place[...] = values
                else:
                    np.subtract(values, less[name], out=place)

    def cast(self, arrays: ArrayRecord) -> list[str]:
        """Return the arrays that are floating-point numbers of another size than the model's."""
        return [
            n
            for n, a in arrays.items()
            if a.dtype in FLOATS and self.types.get(n) in FLOATS and a.dtype != self.types[n]
        ]
