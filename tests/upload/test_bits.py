"""Numbers and positions as bytes: what was written is read, sizes are known beforehand, and rubbish is refused."""

from itertools import combinations
from math import comb, log2

import numpy as np
import pytest

from fedweave.core.settings import BadInput
from fedweave.upload.bits import (
    CHUNK,
    pack,
    pack_positions,
    packed_size,
    positions_size,
    unpack,
    unpack_positions,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 31])
def test_numbers_come_back_from_as_many_bytes_as_their_bits_fill(width):
    for count in (1, 2, 7, 8, 9, 100, 8 * CHUNK + 3) if width == 3 else (1, 7, 8, 9, 100):
        numbers = RNG.integers(0, 2**width, count)
        numbers[-1] = 2**width - 1
        message = pack(numbers.astype(np.uint8) if width <= 8 else numbers, width)
        assert len(message) == packed_size(count, width) == -(-count * width // 8)
        assert np.array_equal(unpack(message, count, width), numbers)


@pytest.mark.parametrize("width", range(1, 8))
def test_codes_of_less_than_a_byte_are_the_digits_of_one_long_number(width):
    codes = RNG.integers(0, 2**width, 29)
    number = sum(int(code) << width * i for i, code in enumerate(codes))
    assert pack(codes.astype(np.uint8), width) == number.to_bytes(packed_size(29, width), "little")


def test_something_behind_the_last_code_is_refused():
    message = bytearray(pack(np.zeros(5, np.uint8), 3))
    message[-1] |= 128
    with pytest.raises(BadInput, match="behind the last"):
        unpack(message, 5, 3)


def test_every_set_of_positions_comes_back_and_has_the_size_that_its_numbers_say():
    for dim in range(1, 10):
        for count in range(1, dim + 1):
            for where in combinations(range(dim), count):
                message = pack_positions(np.array(where), dim)
                assert len(message) == positions_size(dim, count)
                assert tuple(unpack_positions(message, dim, count)) == where


@pytest.mark.parametrize("dim", [1000, 123_457])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9])
def test_positions_are_short(dim, share):
    """No code with a size of its own is shorter than log2 of the number of sets: this one is near it."""
    k = max(1, round(share * dim))
    where = np.sort(RNG.choice(dim, k, replace=False))
    message = pack_positions(where, dim)
    assert len(message) == positions_size(dim, k)
    assert np.array_equal(unpack_positions(message, dim, k), where)
    least = log2(comb(dim, k)) if dim < 10_000 else 0
    assert least / 8 <= len(message) <= min(-(-dim // 8), k * (3 + log2(dim / k)) / 8 + 2)


def test_positions_that_were_never_written_are_refused():
    """All messages of a small size: each is one set of positions or is refused, and no two are the same set."""
    for dim, count in ((20, 2), (8, 3), (8, 7)):
        found, size = set(), positions_size(dim, count)
        assert size <= 2
        for number in range(256**size):
            try:
                where = unpack_positions(number.to_bytes(size, "little"), dim, count)
            except BadInput:
                continue
            found.add(tuple(where))
            assert pack_positions(where, dim) == number.to_bytes(size, "little")
        assert found == set(combinations(range(dim), count))
