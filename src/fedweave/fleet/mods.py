"""Flower's mods around the training of a client of ours: they see whole models, as in any app, and the seal is last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.fleet.wire.request import read_request
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import Tensors, packed, records_of

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable, Mod

MODEL, UPDATE = "arrays", "update"  # the records of a model and of its displacement


class _Made(NamedTuple):
    """What a client trained, before any mod saw it."""

    x: Array  # (D,) the model that it was sent
    tensors: Tensors
    update: ArrayRecord  # y − x, of which y has lost the last bits
    data: Mapping[str, bytes]  # of y, by which a change is noticed
    memory_kind: str


_made: ContextVar[_Made | None] = ContextVar("_made", default=None)


def check_mods(mods: Sequence[Mod]) -> None:
    """Refuse the mods of secure aggregation, whose server is another."""
    for mod in mods:
        if "secure_aggregation" in getattr(mod, "__module__", ""):
            name = getattr(mod, "__name__", str(mod))
            raise BadInput(
                f"{name} is the client's half of a protocol whose other half is a workflow of flwr.server: servers of "
                "fedweave check and weigh every update by itself, and do not speak it. Leave it out of mods=[…]."
            )


def with_model(
    content: RecordDict, received: ArrayRecord, x: Array, update: Array, tensors: Tensors, memory_kind: str
) -> RecordDict:
    """Return an answer with the trained model in place of its displacement, its arrays as they were ``received``."""
    values = tensors.layout.split(x + update)
    arrays = {n: packed(values[n].astype(a.dtype)) if n in values else a for n, a in received.items()}
    rest = {name: record for name, record in content.items() if name != UPDATE}
    _made.set(_Made(x, tensors, content[UPDATE], {n: a.data for n, a in arrays.items()}, memory_kind))  # pyright: ignore[reportArgumentType]
    return RecordDict({MODEL: ArrayRecord(arrays), **rest})


def seal_last(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Seal an answer after all mods, as the outermost one; what they left as it was keeps its bits."""
    _made.set(None)
    request = read_request(message.content)
    reply = call_next(message, context)
    if not reply.has_content():
        return reply
    content, made = reply.content, _made.get()
    _made.set(None)  # two models' worth of memory
    record = records_of(content, ArrayRecord).get(MODEL)
    if made is not None and record is not None:
        changed = len(record) != len(made.data) or any(record[n].data is not data for n, data in made.data.items())
        if changed and made.memory_kind:
            raise BadInput(
                f"A mod has changed the update, from which client and server each derive {made.memory_kind}: use mods "
                "that change models with methods whose clients keep nothing."
            )
        if not request.whole:
            rest = {name: kept for name, kept in content.items() if name != MODEL}
            content = RecordDict({UPDATE: _displaced(record, made) if changed else made.update, **rest})
    reply.content = sealed(content, request.round, request.client)
    return reply


def _displaced(record: ArrayRecord, made: _Made) -> ArrayRecord:
    """Return the displacement of a model that a mod has changed."""
    out = np.empty_like(made.x)
    made.tensors.read(ArrayRecord({n: a for n, a in record.items() if n in made.tensors.types}), out, minus=made.x)
    return made.tensors.record(out)
