"""A partial update as bytes: which channels, one bit each, and the values of those that are there.

Both ends know the model, so nothing else has to travel. Numbers are little-endian; what comes in is checked, never
trusted.
"""

from __future__ import annotations

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.upload.channels import Channels

WORD = 8  # bytes: the bits fill whole words, so that the values behind them are aligned


def encoded_size(channels: Channels, kept: Array, itemsize: int = 4) -> Array:
    """Return the length of the messages with the channels ``kept`` (…, G): bits, then values."""
    return _head(channels) + itemsize * (kept @ channels.entries)


def message_size(channels: Channels, counts: Array, itemsize: int = 4) -> int:
    """Return the length of a message with so many channels of each layer (L,): all of a layer are of one size."""
    return _head(channels) + itemsize * int(counts @ channels.entries[list(channels.firsts)])


def _head(channels: Channels) -> int:
    return WORD * -(-channels.count // (8 * WORD))


def encode(channels: Channels, update: Array, kept: Array) -> bytearray:
    """Return the message with the channels ``kept`` (G,) of an update (D,) in float32 or float64."""
    if update.shape != (channels.dim,) or kept.shape != (channels.count,):
        wanted, got = ((channels.dim,), (channels.count,)), (update.shape, kept.shape)
        raise ValueError(f"An update and its channels must have shapes {wanted}. Got {got}.")
    update = np.ascontiguousarray(update, update.dtype.newbyteorder("<"))
    message, head = bytearray(int(encoded_size(channels, kept, update.itemsize))), _head(channels)
    bits = np.packbits(kept, bitorder="little")
    message[: bits.size] = bits.tobytes()
    values, at = np.frombuffer(message, update.dtype, offset=head), 0
    for t in channels.tensors:
        rows = np.flatnonzero(kept[channels.rows(t)])
        end = at + rows.size * t.fan
        np.take(t.of(update), rows, axis=0, out=values[at:end].reshape(rows.size, t.fan), mode="clip")  # no buffer
        at = end
    return message


def decode(channels: Channels, message: bytes | bytearray | memoryview, dtype: str = "float32") -> tuple[Array, Array]:
    """Return the update (D,), zero where nothing was sent, and the channels (G,) that were; or say what is wrong."""
    kind, head = np.dtype(dtype), _head(channels)
    if len(message) < head:
        raise BadInput(f"A partial update of {channels.count} channels has {head} bytes of bits. Got {len(message)}.")
    flags = np.unpackbits(np.frombuffer(message, np.uint8, head), bitorder="little").astype(bool)
    kept = flags[: channels.count]
    if flags[channels.count :].any():
        raise BadInput(f"A partial update names channels beyond the {channels.count} that there are.")
    wanted = int(encoded_size(channels, kept, kind.itemsize))
    if len(message) != wanted:
        raise BadInput(f"A partial update of {int(kept.sum())} channels has {wanted} bytes. Got {len(message)}.")
    values = np.frombuffer(message, kind.newbyteorder("<"), offset=head).astype(kind, copy=False)
    update, at = np.zeros(channels.dim, kind), 0
    for t in channels.tensors:
        rows = np.flatnonzero(kept[channels.rows(t)])
        end = at + rows.size * t.fan
        t.of(update)[rows] = values[at:end].reshape(rows.size, t.fan)
        at = end
    return update, kept
