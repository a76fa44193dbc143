"""A curve of any length in at most ``MOST_POINTS`` points: the extremes of equal stretches, as points come in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MOST_POINTS = 1000


class Point(NamedTuple):
    """One evaluated round: where it stands on each axis, and its value."""

    round: int
    clock: float
    bytes_up: int
    bytes_total: int
    value: float


class Thinned:
    """Keeps the lowest and the highest point of every stretch; stretches get twice as long when there are too many.

    Short curves are kept as they are. The first and the last point are always there.
    """

    def __init__(self, most: int = MOST_POINTS):
        self._stretches = max(2, (most - 2) // 4 * 2)  # an even number: merged in pairs, all of them are full
        self._length, self._room = 2, 0  # points per stretch, and how many more fit into the last one
        self._extremes: list[tuple[Point, Point]] = []  # lowest and highest
        self._first: Point | None = None
        self._last: Point | None = None

    def extend(self, points: Iterable[Point]) -> None:
        """Add points, in the order of their rounds."""
        for point in points:
            self._first, self._last = self._first or point, point
            if self._room:
                self._extremes[-1] = _both(self._extremes[-1], (point, point))
                self._room -= 1
                continue
            if len(self._extremes) == self._stretches:
                self._merge()
            self._extremes.append((point, point))
            self._room = self._length - 1

    def points(self) -> list[Point]:
        """Return the points that are kept, in the order of their rounds."""
        ends = () if self._first is None or self._last is None else (self._first, self._last)
        return sorted({*ends, *(point for pair in self._extremes for point in pair)})

    def _merge(self) -> None:
        self._extremes = [_both(*pair) for pair in zip(self._extremes[::2], self._extremes[1::2], strict=True)]
        self._length *= 2


def _both(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    """Return the lowest and the highest; of equals the first and the last, so that a level stretch keeps its ends."""
    return min(one[0], other[0], key=_value), max(other[1], one[1], key=_value)


def _value(point: Point) -> float:
    return point.value
