"""The terms of a round over a network: when it begins, how long it waits, and how many answers it needs."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave.core.options import renamed
from fedweave.core.settings import BadInput, settings
from fedweave.method import Method
from fedweave.pacing import answers_needed


@renamed(fewest="min_answers")
@settings
class Terms:
    """Three numbers that are often confused, and two deadlines.

    *Connected*: how many clients must be there before a round begins; one that is not there within ``start_seconds`` is
    an error. *Asked*: what the method's sampler draws, times ``over_selection``. *Answers*: how many close the round;
    at the latest it closes ``answer_seconds`` after asking, and if fewer than ``min_answers`` came, it is abandoned
    and the model stays as it is.
    """

    connected: PositiveInt | None = None  # None: the whole fleet before the first round, then ``min_answers``
    start_seconds: PositiveFloat = 600.0
    answer_seconds: PositiveFloat = 600.0
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0
    answers: PositiveInt | None = None  # None: as many as were asked, without the over-selection
    min_answers: NonNegativeInt = 1  # 0: a round counts although nobody answered, as in the simulator
    poll_seconds: PositiveFloat = 0.2  # between two looks for answers
    most_samples: PositiveFloat = 1e7  # a client that claims more is not believed

    def needed(self, asked: int) -> int:
        """Return how many answers close a round in which so many clients were asked."""
        return answers_needed(asked, self.answers, self.over_selection)


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
