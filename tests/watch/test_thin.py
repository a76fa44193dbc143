"""Curves of any length in a bounded number of points: extremes, ends and order are kept."""

import random
from itertools import pairwise

import pytest

from fedweave.watch.thin import MOST_POINTS, Point, Thinned


def points(n, seed=0):
    rng = random.Random(seed)
    return [Point(r, 0.5 * r, 10 * r, 30 * r, rng.gauss(0, 1)) for r in range(1, n + 1)]


def thinned(pieces, most=MOST_POINTS):
    curve = Thinned(most)
    for piece in pieces:
        curve.extend(piece)
    return curve.points()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 996])
def test_short_curves_are_kept_whole(n):
    assert thinned([points(n)]) == points(n)


def test_repeated_values_are_kept_too():
    values = [0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.2]
    curve = [Point(r, 0.5 * r, 10 * r, 30 * r, value) for r, value in enumerate(values, 1)]
    assert thinned([curve]) == curve


def test_a_level_stretch_keeps_its_ends():
    """4,096 points in 8 stretches of 512, each of one value."""
    stairs = [p._replace(value=(p.round - 1) // 512) for p in points(4_096)]
    assert [p.round for p in thinned([stairs], most=20)] == [r for i in range(8) for r in (512 * i + 1, 512 * i + 512)]


@pytest.mark.parametrize("n", [997, 1500, 12_345, 100_000])
def test_long_curves_keep_their_ends_and_extremes(n):
    whole = points(n)
    kept = thinned([whole])
    assert MOST_POINTS / 4 < len(kept) <= MOST_POINTS
    assert set(kept) <= set(whole)
    assert kept == sorted(kept)
    assert kept[0] == whole[0]
    assert kept[-1] == whole[-1]
    for best in (min, max):
        assert best(p.value for p in kept) == best(p.value for p in whole)


def test_every_stretch_of_the_curve_keeps_its_extremes():
    """By brute force: 4,000 points in 8 stretches of 512 are the lowest and the highest of each, and the ends."""
    whole = points(4_000)
    parts = [whole[i : i + 512] for i in range(0, len(whole), 512)]
    extremes = {best(part, key=lambda p: p.value) for part in parts for best in (min, max)}
    assert set(thinned([whole], most=18 + 2)) == extremes | {whole[0], whole[-1]}


def test_it_does_not_matter_in_which_pieces_points_come():
    whole, rng = points(5_000), random.Random(1)
    cuts = [0, *sorted(rng.sample(range(5_000), 60)), 5_000]
    assert thinned(whole[a:b] for a, b in pairwise(cuts)) == thinned([whole])
