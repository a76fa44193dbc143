"""The terms of a round over a network: when it begins, how long it waits, and how many answers it needs."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave.method import Method
from fedweave.roles import Sampler
from fedweave.settings import BadInput, settings


@settings
class Terms:
    """Three numbers that are often confused, and two deadlines.

    *Connected*: how many clients must be there before a round begins; one that is not there within ``start_seconds`` is
    an error. *Asked*: what the method's sampler draws, times ``over_selection``. *Answers*: how many close the round;
    at the latest it closes ``answer_seconds`` after asking, and if fewer than ``fewest`` answers came, it is abandoned
    and the model stays as it is.
    """

    connected: PositiveInt | None = None  # None: the whole fleet before the first round, then ``fewest``
    start_seconds: PositiveFloat = 600.0
    answer_seconds: PositiveFloat = 600.0
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0
    answers: PositiveInt | None = None  # None: as many as were asked, without the over-selection
    fewest: NonNegativeInt = 1  # 0: a round counts although nobody answered, as in the simulator
    poll_seconds: PositiveFloat = 0.2  # between two looks for answers
    most_samples: PositiveFloat = 1e7  # a client that claims more is not believed

    def needed(self, asked: int) -> int:
        """Return how many answers close a round in which so many clients were asked."""
        return min(self.answers or -int(-asked // self.over_selection), asked)


class Clock:
    """Time as the server sees it."""

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class VirtualClock(Clock):
    """Time that passes only while somebody sleeps: a deadline takes no time."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def refuse_oracle(method: Method) -> None:
    """Refuse a method whose sampler no real fleet can serve."""
    if method.sampler.oracle():
        inner = getattr(method.sampler, "sampler", method.sampler)  # of one that stands before another
        name = type(inner).__name__
        raise BadInput(
            f"{name} must know what every client would answer before it chooses, which a real fleet cannot be asked: "
            "this sampler is for the simulator."
        )


def over_selected(method: Method, factor: float) -> Method:
    """Return the method with a sampler that asks ``factor`` times as many clients."""
    if factor == 1:
        return method

    def more(part: Any) -> Any:
        names = [f.name for f in dataclasses.fields(part)]
        changed: dict[str, Any] = {n: more(v) for n in names if isinstance(v := getattr(part, n), Sampler)}
        if "per_round" in names:
            changed["per_round"] = -int(-part.per_round * factor // 1)
        if not changed:
            raise BadInput(f"over_selection={factor:g} needs a sampler with per_round; {part} asks whom it asks.")
        return replace(part, **changed)

    return replace(method, sampler=more(method.sampler))
