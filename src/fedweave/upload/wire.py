"""A partial update as bytes: which channels, one bit each, and the values of those that are there.

Both ends know the model, so nothing else has to travel. Numbers are little-endian; what comes in is checked, never
trusted.
"""

from __future__ import annotations

import numpy as np

from fedweave.records import Array
from fedweave.settings import BadInput
from fedweave.upload.channels import Channels


def encoded_size(channels: Channels, kept: Array, itemsize: int = 4) -> Array:
    """Return the length of the messages with the channels ``kept`` (…, G): bits, then values."""
    return -(-channels.count // 8) + itemsize * (kept @ channels.entries)


def encode(channels: Channels, update: Array, kept: Array) -> bytes:
    """Return the message with the channels ``kept`` (G,) of an update (D,) in float32 or float64."""
    if update.shape != (channels.dim,) or kept.shape != (channels.count,):
        wanted, got = ((channels.dim,), (channels.count,)), (update.shape, kept.shape)
        raise ValueError(f"An update and its channels must have shapes {wanted}. Got {got}.")
    little = update.dtype.newbyteorder("<")
    message = np.empty(int(encoded_size(channels, kept, little.itemsize)), np.uint8)
    bits = -(-channels.count // 8)
    message[:bits] = np.packbits(kept, bitorder="little")
    values, at = _values(message, bits, little), 0
    for t in channels.tensors:
        rows = np.flatnonzero(kept[channels.rows(t)])
        end = at + rows.size * t.fan
        if values.dtype == update.dtype:
            np.take(t.of(update), rows, axis=0, out=values[at:end].reshape(rows.size, t.fan), mode="clip")
        else:
            values[at:end] = t.of(update)[rows].ravel()
        at = end
    if bits % little.itemsize:
        message[bits:] = values.view(np.uint8)
    return message.tobytes()


def decode(channels: Channels, message: bytes, dtype: str = "float32") -> tuple[Array, Array]:
    """Return the update (D,), zero where nothing was sent, and the channels (G,) that were; or say what is wrong."""
    kind, bits = np.dtype(dtype), -(-channels.count // 8)
    if len(message) < bits:
        raise BadInput(f"A partial update of {channels.count} channels has {bits} bytes of bits. Got {len(message)}.")
    raw = np.frombuffer(message, np.uint8)
    flags = np.unpackbits(raw[:bits], bitorder="little").astype(bool)
    kept = flags[: channels.count]
    if flags[channels.count :].any():
        raise BadInput(f"A partial update names channels beyond the {channels.count} that there are.")
    wanted = int(encoded_size(channels, kept, kind.itemsize))
    if len(message) != wanted:
        raise BadInput(f"A partial update of {int(kept.sum())} channels has {wanted} bytes. Got {len(message)}.")
    values = np.frombuffer(message, kind.newbyteorder("<"), offset=bits).astype(kind, copy=False)
    update, at = np.zeros(channels.dim, kind), 0
    for t in channels.tensors:
        rows = np.flatnonzero(kept[channels.rows(t)])
        end = at + rows.size * t.fan
        t.of(update)[rows] = values[at:end].reshape(rows.size, t.fan)
        at = end
    return update, kept


def _values(message: Array, bits: int, kind: np.dtype) -> Array:
    """Return room for the values: in the message itself where it is aligned, else beside it."""
    if bits % kind.itemsize:
        return np.empty((message.size - bits) // kind.itemsize, kind)
    return message[bits:].view(kind)
