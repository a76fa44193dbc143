"""What travels between server and clients, and nothing else: the one place where vectors become messages and back.

Arrays travel by name in NumPy's own format, which carries no code; settings travel as JSON. What arrives is opened
without trusting its header: sizes are compared before anything is allocated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as Packed
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.core.spec import build, describe
from fedweave.round.admission import misfit

VERSION = 2  # of what is written below; both sides compare
ANYONE = -1  # as the number of a client whom the server does not know by its number
QUERY_LOSS = "query.loss"  # the type of the question for a loss
NUMPY = "numpy.ndarray"  # Flower's name for NumPy's format
FLOAT32 = np.dtype(np.float32)
MOST_HEADER = 4096  # bytes
MOST_DIMENSIONS = 16
BUFFERS = ("running_mean", "running_var")  # averages, not parameters


class Unfit(ValueError):  # noqa: N818 - it says what the message is
    """What arrived cannot be used; the text says what its sender did."""


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
        """Return how the model of somebody's app travels; averages are told by PyTorch's names for them."""
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

    def read(self, arrays: ArrayRecord, out: Array, minus: Array | None = None) -> None:
        """Write the arrays into the flat vector ``out``, less the vector ``minus``; refuse what does not fit."""
        found = {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()}
        if wrong := misfit(found, self.layout, self.types):
            raise Unfit(wrong)
        into, less = self.layout.split(out), None if minus is None else self.layout.split(minus)
        for name, place in into.items():
            values = opened(name, arrays[name])
            if less is None:
                place[...] = values
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later, by its place
                    np.subtract(values, less[name], out=place)


class TrainRequest(NamedTuple):
    """One client's work in one round, as the server states it."""

    round: NonNegativeInt
    client: int
    seed: NonNegativeInt
    steps: NonNegativeInt
    batch_size: PositiveInt
    lr: float
    share: float  # N ω_i
    method: Mapping[str, Any]  # the client's half of the method, as plain data
    memory: str = ""  # which memory to begin with, by its digest; nothing: zeros
    epochs: float = 0.0  # where steps are 0: passes over the client's data
    measure: bool = False  # whether to report the variance of its gradients on the way
    dropout: float | None = None  # share of its model that it may leave out; None: it sends all
    own: NonNegativeInt = (
        0  # the round after which it kept the part that it goes on from; 0: it begins at the model as sent
    )


REQUEST = TypeAdapter(TrainRequest)


class Extras(NamedTuple):
    """The vectors that come with the model, where a method has any."""

    sent: Array | None = None  # to all
    memory: Array | None = None  # to a client that has lost its own


def client_half(solver: Solver, upload: Upload | None = None, layout: Layout | None = None) -> Mapping[str, Any]:
    """Return what a client must know of the method, and of the order of the values where they travel without names."""
    if upload is None or layout is None or not upload.keeps:
        return {"solver": describe(solver)}
    return {"solver": describe(solver), "upload": describe(upload), "order": _order(layout)}


def _order(layout: Layout) -> str:
    return hashlib.sha256(repr((layout.names, layout.shapes)).encode()).hexdigest()


def solver_of(request: TrainRequest) -> Solver:
    """Return the solver that the server asks for; own parts must be imported in the client's app too."""
    return build(Solver, request.method.get("solver"), "method.solver")


def upload_of(request: TrainRequest, layout: Layout) -> Upload:
    """Return the upload that the server asks for, once it is known to read the values in the order of ``layout``."""
    if request.method.get("order") != _order(layout):
        raise BadInput("The server has the tensors of the model in another order than this client: give it the same.")
    return build(Upload, request.method.get("upload"), "method.upload")


def ask(
    request: TrainRequest, model: ArrayRecord, extras: Mapping[str, ArrayRecord], config: ConfigRecord | None = None
) -> RecordDict:
    """Return what is sent to one client; ``extras`` are records of the names in ``Extras``."""
    records: dict[str, Any] = {"arrays": model}
    if config is not None:
        records["config"] = config
    records["fedweave"] = ConfigRecord({"version": VERSION, "request": json.dumps(request._asdict())})
    return RecordDict({**records, **extras})


def read_request(content: RecordDict) -> TrainRequest:
    """Return what the server asks of this client."""
    fields = content.config_records.get("fedweave")
    if fields is None or fields.get("version") != VERSION:
        got = None if fields is None else fields.get("version")
        raise BadInput(
            f"This client speaks version {VERSION} of fedweave's messages, the server {brief(got)}. Use "
            "fedweave.flower.Strategy or fedweave.flower.server on the server, of the same release."
        )
    try:
        return REQUEST.validate_json(str(fields.get("request")))
    except ValidationError as e:
        wrong = [".".join(map(str, p["loc"])) or "request" for p in e.errors(include_url=False, include_input=False)]
        raise BadInput(
            f"The server's request cannot be read: {brief(', '.join(wrong))} is not as it should be."
        ) from None


def read_setting(content: RecordDict, name: str, most: int) -> int:
    """Return a whole number that a question of the server carries."""
    value = content.config_records.get("fedweave", {}).get(name)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise BadInput(f"The server's {name} must be a whole number from 0 to {most}. Got {brief(value)}.")
    return value


def read_vectors(content: RecordDict, tensors: Tensors) -> tuple[Array, Extras]:
    """Return the model that the server sends, and what comes with it."""

    def vector(name: str) -> Array | None:
        record = content.array_records.get(name)
        if record is None:
            return None
        numbers = {n: a for n, a in record.items() if n in tensors.types or a.dtype.startswith("float")}
        out = np.empty(tensors.layout.dim, tensors.dtype)
        tensors.read(ArrayRecord(numbers), out)  # whole numbers, such as counts of batches, are the client's own
        return out

    x = vector("arrays")
    if x is None:
        raise Unfit("sent no model")
    return x, Extras(*(vector(name) for name in Extras._fields))


def ask_loss(model: ArrayRecord, seed: int) -> RecordDict:
    """Return the question how a client does with a model."""
    return RecordDict({"arrays": model, "fedweave": ConfigRecord({"version": VERSION, "seed": seed})})
