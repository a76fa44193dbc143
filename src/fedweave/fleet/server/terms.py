"""The terms of a round over a network: when it begins, how long it waits, and how many answers it needs."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave.core.options import renamed
from fedweave.core.roles import Pacing
from fedweave.core.settings import BadInput, settings
from fedweave.method import Method
from fedweave.pacing import Synchronous, answers_needed

MAX_LENGTH_RATIO = 100.0  # of an update to the median of its round; stricter than among simulated clients


@renamed(fewest="min_answers")
@settings
class Terms:
    """Three numbers that are often confused, and two deadlines.

    *Connected*: how many clients must be there before a round begins; one that is not there within ``start_seconds`` is
    an error. *Asked*: what the method's sampler draws, times ``over_selection``. *Answers*: how many close the round;
    at the latest it closes ``answer_seconds`` after asking, and if fewer than ``min_answers`` came, it is abandoned
    and the model stays as it is.

    *Who*: ``clients`` is the size of the fleet, and ``keys`` a folder with the public keys node0.pub, node1.pub, … of
    its nodes: the seat of client 3 is then node3's alone. Without ``clients`` the fleet is as large as most nodes say
    (two at least), or grows. Whoever claims more than ``max_samples_ratio`` times as many samples as the median counts
    as that.

    Where rounds overlap the method's pacing says how many are asked and when a round ends, and ``answer_seconds`` is
    how long one answer may take, unless the pacing has a time-out.
    """

    connected: PositiveInt | None = None  # None: the whole fleet before the first round, then ``min_answers``
    start_seconds: PositiveFloat = 600.0
    answer_seconds: PositiveFloat = 600.0
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0
    answers: PositiveInt | None = None  # None: as many as were asked, without the over-selection
    min_answers: NonNegativeInt = 1  # 0: a round counts although nobody answered, as in the simulator
    poll_seconds: PositiveFloat = 0.2  # between two looks for answers
    most_samples: PositiveFloat = 1e7  # a client that claims more is not believed
    max_samples_ratio: PositiveFloat | None = 10.0  # None: whatever clients claim counts
    clients: PositiveInt | None = None
    keys: str | None = None

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
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")  # as time.sleep says
        self.time += seconds


def refuse_pacing(pacing: Pacing, terms: Terms) -> None:
    """Refuse a pacing that no fleet has, and terms that contradict it."""
    kind, deadline = type(pacing).__name__, getattr(pacing, "deadline", None)
    if not pacing.overlaps:
        if pacing != Synchronous():
            raise BadInput(
                "How long a real fleet is waited for, and for how many, is said by Terms, not by the Experiment."
            )
        return
    problems = list[str]()
    if terms.answers is not None or terms.over_selection != 1:
        problems.append(
            f"Where rounds overlap the pacing says how many clients are asked and how many answers end a round: leave "
            f"'answers' and 'over_selection' out of Terms, and give {kind} what it needs."
        )
    if terms.min_answers > pacing.enough():
        problems.append(
            f"Terms(min_answers={terms.min_answers}) is more than the {pacing.enough():g} answers after which {kind} "
            "ends a round."
        )
    if deadline is not None and deadline >= terms.answer_seconds:
        problems.append(
            f"An answer is given up after Terms(answer_seconds={terms.answer_seconds:g}), so that none could come late "
            f"after deadline={deadline:g}: make answer_seconds longer than the deadline."
        )
    if problems:
        raise BadInput(*problems)


def refuse_oracle(method: Method) -> None:
    """Refuse a method whose sampler no real fleet can serve."""
    if method.sampler.oracle():
        inner = getattr(method.sampler, "sampler", method.sampler)  # of one that stands before another
        name = type(inner).__name__
        raise BadInput(
            f"{name} must know what every client would answer before it chooses, which a real fleet cannot be asked: "
            "this sampler is for the simulator."
        )
