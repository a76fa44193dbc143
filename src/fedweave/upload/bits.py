"""Whole numbers and sets of positions as bytes, as short as their sizes can be known beforehand.

Numbers are little-endian; unused bits are zero. What is read is checked, never trusted.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedweave.core.records import Array
from fedweave.core.roles import Buffer
from fedweave.core.settings import BadInput

HALVES = (("<u2", 8), ("<u4", 16), ("<u8", 32))  # words of two, four and eight codes, and the bits of half of each
CHUNK = 1 << 14  # groups of eight codes at a time, so that they stay in the cache


def packed_size(count: int, width: int) -> int:
    """Return the bytes of ``count`` numbers of ``width`` bits."""
    return -(-count * width // 8)


def pack(numbers: Array, width: int) -> bytes:
    """Return whole numbers below 2^width as bytes: whole bytes of each number first, then the bits that are left."""
    planes = [(numbers >> 8 * i).astype(np.uint8).tobytes() for i in range(width // 8)]
    rest = (numbers >> 8 * (width // 8)).astype(np.uint8) if width % 8 else numbers[:0]
    return b"".join([*planes, _pack(rest, width % 8)])


def unpack(payload: Buffer, count: int, width: int) -> Array:
    """Return the ``count`` numbers that ``pack`` wrote: uint8 up to eight bits, else int64."""
    planes = np.frombuffer(payload, np.uint8, count * (width // 8)).reshape(-1, count)
    if width == 8:
        return planes[0]
    rest = _unpack(payload[planes.size :], count, width % 8)
    if width < 8:
        return rest
    numbers = rest.astype(np.int64)
    for plane in planes[::-1]:
        numbers = numbers << 8 | plane
    return numbers


def _pack(codes: Array, width: int) -> bytes:
    """Return codes (n,) uint8 below 2^width, width < 8, as bytes: eight codes are ``width`` bytes."""
    if not width or not codes.size:
        return b""
    out = np.empty((-(-codes.size // 8), width), np.uint8)
    for begin in range(0, len(out), CHUNK):
        some = codes[8 * begin : 8 * (begin + CHUNK)]
        words = np.zeros(8 * (-(-some.size // 8)), np.uint8)
        words[: some.size] = some
        for kind, half in HALVES:  # a word is low + 2^half high: bring the high half down to where the low one ends
            words = words.view(kind)
            words -= (words >> half) * ((1 << half) - (1 << half * width // 8))
        out[begin : begin + CHUNK] = words.view(np.uint8).reshape(-1, 8)[:, :width]
    return out.tobytes()[: packed_size(codes.size, width)]


def _unpack(payload: Buffer, count: int, width: int) -> Array:
    """Return the codes (count,) uint8 that ``_pack`` wrote."""
    if not width:
        return np.zeros(count, np.uint8)
    groups, found = -(-count // 8), np.frombuffer(payload, np.uint8, packed_size(count, width))
    padded = np.zeros((groups, width), np.uint8)
    padded.ravel()[: found.size] = found
    codes = np.empty(8 * groups, np.uint8)
    for begin in range(0, groups, CHUNK):
        some = padded[begin : begin + CHUNK]
        words = np.zeros((len(some), 8), np.uint8)
        words[:, :width] = some
        words = words.ravel()
        for kind, half in reversed(HALVES):
            words = words.view(kind)
            words += (words >> half * width // 8) * ((1 << half) - (1 << half * width // 8))
        codes[8 * begin : 8 * (begin + CHUNK)] = words.view(np.uint8)
    if codes[count:].any():
        raise BadInput(f"A message of {count} numbers has something behind the last one.")
    return codes[:count]


@lru_cache(maxsize=256)
def _low_bits(dim: int, count: int) -> tuple[int | None, int]:
    """Return how many bits of each position are written as they are, None for a bitmap, and the bytes of them all."""
    if count == dim:
        return None, 0
    ways: list[tuple[int, int | None]] = [(packed_size(dim, 1), None)]
    for low in range((dim - 1).bit_length() + 1):
        ways.append((packed_size(count, low) + packed_size(count + (dim - 1 >> low), 1), low))
    size, low = min(ways, key=lambda way: way[0])
    return low, size


def positions_size(dim: int, count: int) -> int:
    """Return the bytes of ``count`` of ``dim`` positions, which depend on these two numbers only."""
    return _low_bits(dim, count)[1]


def pack_positions(where: Array, dim: int) -> bytes:
    """Return strictly increasing positions (k,) below ``dim`` as bytes; all of them take none.

    Elias–Fano: the lower l bits of each position as they are, the upper ones as a bitmap in which the i-th position
    sets bit i + (position >> l). That is about k (2 + log2(d/k)) bits, against k log2(d) of a list. Where a bitmap of
    all positions is shorter, it is that.
    """
    low, _ = _low_bits(dim, where.size)
    if where.size == dim:
        return b""
    if low is None:
        return _pack_bitmap(where, dim)
    upper = _pack_bitmap((where >> low) + np.arange(where.size), where.size + (dim - 1 >> low))
    return upper + pack(where & (1 << low) - 1, low)


def unpack_positions(payload: Buffer, dim: int, count: int) -> Array:
    """Return the positions (count,) that ``pack_positions`` wrote, or say what is wrong with them."""
    low, _ = _low_bits(dim, count)
    if count == dim:
        return np.arange(dim)
    if low is None:
        return _unpack_bitmap(payload, dim, count)
    bits = count + (dim - 1 >> low)
    upper = _unpack_bitmap(payload[: packed_size(bits, 1)], bits, count) - np.arange(count)
    where = upper << low | unpack(payload[packed_size(bits, 1) :], count, low)
    if where[-1] >= dim or (where[1:] <= where[:-1]).any():
        raise BadInput(f"A message of {count} of {dim} entries names some twice, in disorder or beyond the last.")
    return where


def _pack_bitmap(where: Array, dim: int) -> bytes:
    bits = np.zeros(dim, bool)
    bits[where] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _unpack_bitmap(payload: Buffer, dim: int, count: int) -> Array:
    bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little").view(bool)
    where = np.flatnonzero(bits)
    if where.size != count or (count and where[-1] >= dim):
        raise BadInput(f"A message of {count} entries has {where.size} bits for them, or some beyond the last.")
    return where
