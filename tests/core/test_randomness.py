"""Randomness is an address: same address, same numbers; another address, numbers that never meet."""

import itertools

import numpy as np
import pytest

from fedweave.core.randomness import Stream, borrow, rng_for, rngs_for


def bits(rng, n=8):
    return tuple(rng.bit_generator.random_raw(n).tolist())


def test_the_same_address_gives_the_same_numbers():
    assert bits(rng_for(3, 5, Stream.LINK, 7), 1000) == bits(rng_for(3, 5, Stream.LINK, 7), 1000)


def test_every_part_of_the_address_matters():
    addresses = list(itertools.product((0, 1, 2**40), (0, 1, 2), Stream, (0, 1, 2)))
    assert len({bits(rng_for(*a)) for a in addresses}) == len(addresses)


def test_no_two_parts_of_the_address_can_be_swapped():
    """(round 4, client 6) is not (round 6, client 4), nor is a seed another client."""
    assert bits(rng_for(1, 4, Stream.LINK, 6)) != bits(rng_for(1, 6, Stream.LINK, 4))
    assert bits(rng_for(4, 4, Stream(6), 6)) != bits(rng_for(4, 6, Stream(4), 6))
    assert bits(rng_for(4, 1, Stream.LINK, 6)) != bits(rng_for(6, 1, Stream.LINK, 4))


def test_a_large_draw_never_reaches_the_next_address():
    """What 200,000 draws give at one address comes up at none of its neighbours (a chance of about 10⁻⁸ if random)."""
    here = set(bits(rng_for(1, 2, Stream.BATCHES, 3), 200_000))
    assert len(here) == 200_000
    for neighbour in ((1, 2, Stream.BATCHES, 4), (1, 2, Stream.NOISE, 3), (1, 3, Stream.BATCHES, 3)):
        assert not here & set(bits(rng_for(*neighbour), 100_000))


def test_addresses_are_two_to_the_64_blocks_apart():
    """The counter's low word belongs to the address alone: exactly 2⁶⁴ blocks further begins the next client."""
    here = rng_for(1, 2, Stream.BATCHES, 3).bit_generator
    here.advance(2**64)
    assert here.random_raw(8).tolist() == list(bits(rng_for(1, 2, Stream.BATCHES, 4)))


@pytest.mark.parametrize("before", ["integers", "random", "permutation"])
def test_one_generator_readdressed_equals_one_per_client(before):
    """Whatever was drawn before, even half a word, nothing of it is left at the next client."""
    clients = [5, 0, 3, 3, 10**9]
    for client, rng in zip(clients, rngs_for(9, 4, Stream.BATCHES, clients), strict=True):
        fresh = rng_for(9, 4, Stream.BATCHES, client)
        assert np.array_equal(rng.permutation(13), fresh.permutation(13))
        assert rng.integers(2**31, dtype=np.uint32) == fresh.integers(2**31, dtype=np.uint32)
        assert rng.standard_normal() == fresh.standard_normal()
        getattr(rng, before)(3)


def test_a_borrowed_generator_has_the_numbers_of_its_address():
    """Also after it was used half-way, for another round and seed, and for doubles as for halves of a block."""
    for seed, r in itertools.product((0, 5, 2**70), (1, 2, 99)):
        assert bits(borrow(seed, r, Stream.LINK), 5) == bits(rng_for(seed, r, Stream.LINK), 5)
        assert np.array_equal(borrow(seed, r, Stream.LINK).random(3), rng_for(seed, r, Stream.LINK).random(3))
        borrow(seed, r, Stream.LINK).integers(0, 9, 3, dtype=np.int32)  # leaves half a word behind
    kept = borrow(1, 1, Stream.SAMPLER)
    borrow(1, 1, Stream.LINK).random(7)
    assert bits(kept) == bits(rng_for(1, 1, Stream.SAMPLER))
