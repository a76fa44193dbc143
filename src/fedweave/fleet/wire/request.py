"""What the server asks of a client: the model, its work, and the client's half of the method as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from fedweave.core.paths import from_server
from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.core.spec import build, describe
from fedweave.fleet.wire.tensors import Misfit, Tensors, Unfit, records_of
from fedweave.upload.everything import Everything

VERSION = 3  # of the messages; both sides compare
ANYONE = -1  # in the place of the number of a client that has not introduced itself
SPOKEN, ASKED = "fedweave.version", "fedweave.request"  # in the one ConfigRecord of a request, beside the app's own
QUERY_LOSS = "query.loss"  # the type of the question for a loss
MODEL = "the server's model"
SAME_DATA = "the server's data and the clients' must have the same features and classes"


class TrainRequest(NamedTuple):
    """One client's work in one round, as the server states it."""

    round: NonNegativeInt  # the number of the dispatch, which is the round unless rounds overlap
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
    budget: float | None = None  # what the upload allocates to it
    kept: NonNegativeInt = 0  # the ``round`` whose answer's ``Parcel.kept`` it goes on from; 0: none
    whole: bool = False  # whether to send the trained model, as every app of Flower does, and not its displacement


REQUEST = TypeAdapter(TrainRequest)


class Extras(NamedTuple):
    """The vectors that come with the model, where a method has any."""

    sent: Array | None = None  # to all
    memory: Array | None = None  # to a client that has lost its own


def client_half(solver: Solver, upload: Upload, layout: Layout) -> Mapping[str, Any]:
    """Return what a client must know of the method, and of the order of the values where they travel without names."""
    if upload.identity:
        return {"solver": describe(solver)}
    return {"solver": describe(solver), "upload": describe(upload), "order": _order(layout)}


def _order(layout: Layout) -> str:
    return hashlib.sha256(repr((layout.names, layout.shapes)).encode()).hexdigest()


def solver_of(request: TrainRequest) -> Solver:
    """Return the solver that the server asks for; own parts must be imported in the client's app too."""
    with from_server():
        return build(Solver, request.method.get("solver"), "method.solver")


def upload_of(request: TrainRequest, layout: Layout) -> Upload:
    """Return the upload that the server asks for, once it is known to read the values in the order of ``layout``."""
    if "upload" not in request.method:
        return Everything()
    if request.method.get("order") != _order(layout):
        raise BadInput("The server has the tensors of the model in another order than this client: give it the same.")
    with from_server():
        return build(Upload, request.method.get("upload"), "method.upload")


def ask(
    request: TrainRequest, model: ArrayRecord, extras: Mapping[str, ArrayRecord], config: ConfigRecord | None = None
) -> RecordDict:
    """Return what is sent to one client; ``extras`` are records of the names in ``Extras``.

    There is one ConfigRecord, the app's own with the request in it: Flower's mods want no other.
    """
    fields = {SPOKEN: VERSION, ASKED: json.dumps(request._asdict())}
    return RecordDict({"arrays": model, "config": ConfigRecord({**(config or {}), **fields}), **extras})


def read_request(content: RecordDict) -> TrainRequest:
    """Return what the server asks of this client."""
    fields = next((fields for fields in records_of(content, ConfigRecord).values() if ASKED in fields), {})
    if (got := fields.get(SPOKEN)) != VERSION:
        raise BadInput(
            f"This client speaks version {VERSION} of fedweave's messages, the server {brief(got)}. Use "
            "fedweave.flower.Strategy or fedweave.flower.server on the server, of the same release."
        )
    try:
        return REQUEST.validate_json(str(fields.get(ASKED)))
    except ValidationError as e:
        wrong = [".".join(map(str, p["loc"])) or "request" for p in e.errors(include_url=False, include_input=False)]
        raise BadInput(
            f"The server's request cannot be read: {brief(', '.join(wrong))} is not as it should be."
        ) from None


def read_setting(content: RecordDict, name: str, most: int) -> int:
    """Return a whole number that a question of the server carries."""
    value = records_of(content, ConfigRecord).get("fedweave", {}).get(name)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise BadInput(f"The server's {name} must be a whole number from 0 to {most}. Got {brief(value)}.")
    return value


def read_vectors(content: RecordDict, tensors: Tensors, client: int) -> tuple[Array, Extras]:
    """Return the model that the server sends to a client, and what comes with it."""

    def vector(name: str) -> Array | None:
        record = records_of(content, ArrayRecord).get(name)
        if record is None:
            return None
        numbers = {n: a for n, a in record.items() if n in tensors.types or a.dtype.startswith("float")}
        out = np.empty(tensors.layout.dim, tensors.dtype)
        # Whole numbers, such as counts of batches, are the client's own.
        tensors.read(ArrayRecord(numbers), out, ours=f"that of client {client}'s data")
        return out

    try:
        x = vector("arrays")
    except Misfit as e:
        raise Misfit(f"{MODEL} {e}: {SAME_DATA}") from None
    if x is None:
        raise Unfit("sent no model")
    return x, Extras(*(vector(name) for name in Extras._fields))


def ask_loss(model: ArrayRecord, seed: int) -> RecordDict:
    """Return the question for the loss of a model."""
    return RecordDict({"arrays": model, "fedweave": ConfigRecord({"version": VERSION, "seed": seed})})
