"""Learning rates that change from round to round, and their written forms.

A schedule is a pure function of the round's number, so that a resumed run goes on with the same rates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from fedweave.core.settings import BadInput, NonNegativeFactor, PositiveFactor, brief, rule_of, settings, shown
from fedweave.core.spec import build, describe

FORMS = "'0.1, 0.01@200', cosine:0.1, cosine:0.1:0.001 or 'warmup:5, 0.1'"


class BadNumber(ValueError):  # noqa: N818 - as BadInput
    """The end of a sentence about a learning rate that is a number, and none that can be used."""


class Schedule(ABC):
    """The learning rate of the clients in each round."""

    @property
    def needs_rounds(self) -> bool:
        """Whether it depends on how many rounds there are: such a run cannot be extended."""
        return False

    @abstractmethod
    def at(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round, from 1, in a run of so many rounds."""


def as_rate(given: Any) -> Any:
    """Return a learning rate given as a number, a schedule, its written form or its table as one of the first two."""
    if isinstance(given, Schedule):
        return given
    if isinstance(given, Mapping) and "type" in given:
        return build(Schedule, given, "lr")
    return parse(given) if isinstance(given, str) else _number(given)


Rate = Annotated[float | Schedule, BeforeValidator(as_rate)]  # a number, or one for each round


def rate_at(rate: float | Schedule, round: int, rounds: int) -> float:
    """Return the learning rate of a round, from 1, in a run of so many rounds."""
    if not isinstance(rate, Schedule):
        return rate
    value = rate.at(round, rounds)
    if not isinstance(value, int | float) or not 0 < value <= 1e38:
        raise BadInput(
            f"{type(rate).__name__}.at must return a positive number. In round {round} it was {brief(value)}."
        )
    return float(value)


@settings
class Piecewise(Schedule):
    """``start``, and from each round of ``changes`` on another rate: ``Piecewise(0.1, ((200, 0.01),))``."""

    start: PositiveFactor
    changes: tuple[tuple[PositiveInt, PositiveFactor], ...]

    def __post_init__(self) -> None:
        rounds = [1, *(round for round, _ in self.changes)]
        if any(later <= earlier for earlier, later in pairwise(rounds)):
            listed = ", ".join(map(str, rounds[1:]))
            raise ValueError(f"The rounds in which a learning rate changes must grow, from 2 on. Got {listed}.")

    def at(self, round: int, rounds: int) -> float:
        return next((rate for begin, rate in reversed(self.changes) if begin <= round), self.start)

    def describe(self) -> str:
        """Return the written form."""
        return ", ".join([repr(self.start), *(f"{rate!r}@{round}" for round, rate in self.changes)])


@settings
class Cosine(Schedule):
    """floor + (start − floor) (1 + cos(π (r − 1)/R))/2 in round r of R, which never gets to the floor itself.

    SGDR without restarts (Loshchilov and Hutter 2017, eq. 5), with one step per round.
    """

    start: PositiveFactor
    floor: NonNegativeFactor = 0.0

    def __post_init__(self) -> None:
        if self.floor > self.start:
            raise ValueError(f"The floor of a cosine must not be above its start, {self.start:g}. Got {self.floor:g}.")

    @property
    def needs_rounds(self) -> bool:
        return True

    def at(self, round: int, rounds: int) -> float:
        return self.floor + (self.start - self.floor) * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2

    def describe(self) -> str:
        """Return the written form."""
        return f"cosine:{self.start!r}:{self.floor!r}"


@settings
class Warmup(Schedule):
    """r/``rounds`` of what ``then`` says in the first ``rounds`` rounds r = 1, 2, …, and all of it from there on."""

    rounds: PositiveInt
    then: Rate

    @property
    def needs_rounds(self) -> bool:
        return isinstance(self.then, Schedule) and self.then.needs_rounds

    def at(self, round: int, rounds: int) -> float:
        return min(round / self.rounds, 1.0) * rate_at(self.then, round, rounds)

    def describe(self) -> Any:
        """Return the written form; a table around a schedule that has none."""
        then = describe(self.then)
        if isinstance(then, Mapping):
            return {"type": "Warmup", "rounds": self.rounds, "then": then}
        return f"warmup:{self.rounds}, {then}"


def parse(text: str) -> float | Schedule:
    """Turn a written form such as ``0.1, 0.01@200`` or ``warmup:5, cosine:0.1`` into a learning rate."""
    first, *rest = (part.strip() for part in text.split(","))
    kind, *values = first.split(":")
    if not rest and _is_number(first):
        return _number(first)
    try:
        if kind == "warmup" and rest:
            (rounds,) = values
            return Warmup(rounds, ", ".join(rest))  # pyright: ignore[reportArgumentType] - settings read the numbers
        if kind == "cosine" and not rest:
            return Cosine(*values)  # pyright: ignore[reportArgumentType]
        changes = [part.partition("@") for part in rest]
        rates, rounds = [first, *(rate for rate, _, _ in changes)], [round for _, _, round in changes]
        if changes and all(map(_is_positive, rates)) and all(map(str.isdecimal, rounds)):
            return Piecewise(float(first), tuple(zip(map(int, rounds), map(float, rates[1:]), strict=True)))
    except BadInput as e:
        raise BadInput(*e.problems, f"Schedules are written {FORMS}.") from None
    except ValueError:  # too few or too many values of a warm-up
        pass
    raise BadNumber(f"must be a valid number, or a schedule such as {FORMS}. Got {shown(text)} instead.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_positive(text: str) -> bool:
    return _is_number(text) and float(text) > 0


_POSITIVE = TypeAdapter(PositiveFactor, config=ConfigDict(allow_inf_nan=False))


def _number(given: Any) -> float:
    try:
        return _POSITIVE.validate_python(given)
    except ValidationError as e:
        raise BadNumber(f"must be {rule_of(e.errors()[0]['msg'])}. Got {shown(given)} instead.") from None
