"""When the server absorbs what has arrived: a part of every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedweave.core.records import Array, Cohort, Failure, Replies
from fedweave.core.roles import Pacing, Sampler
from fedweave.core.settings import BadInput, brief, settings


@settings
class Synchronous(Pacing):
    """One cohort, one closing: the round waits for all, for enough of them, or until a deadline.

    It closes when ``answers`` have arrived (as many as the method asks for, unless given), and at the latest after
    ``deadline`` seconds of the simulated clock. With ``over_selection`` so many times as many clients are asked.
    An answer that comes later is lost; with ``late`` "discount" it stays under way and counts in the round in which it
    lands, as an update of an older model (semi-synchronous): ``aggregate.Stale`` gives it less weight.
    """

    deadline: PositiveFloat | None = None
    answers: PositiveInt | None = None
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0
    late: Literal["drop", "discount"] = "drop"

    @property
    def overlaps(self) -> bool:
        return self.late == "discount"

    def misfit(self, sampler: Sampler) -> str:
        return _oracle(sampler) if self.overlaps else ""

    def widen(self, sampler: Sampler) -> Sampler:
        return ask_more(sampler, self.over_selection)

    def closing(self, seconds: Array, arrives: Array) -> float:
        """Return after how many seconds a simulated round closes: enough have answered, or it is the deadline.

        If too many answers are lost and no deadline ends the waiting, it ends when the last of them is noticed.
        """
        end = self._answered(np.where(arrives, seconds, np.inf)) if seconds.size else np.inf
        if self.deadline is not None:
            return min(end, self.deadline)
        return end if np.isfinite(end) or not seconds.size else float(seconds.max())

    def _answered(self, arrival: Array) -> float:
        """Return when enough have answered of clients whose answers arrive then (k,)."""
        enough = answers_needed(arrival.size, self.answers, self.over_selection)
        return float(np.partition(arrival, enough - 1)[enough - 1])

    def close(self, replies: Replies, cohort: Cohort) -> Replies:
        """Return the replies of a simulated round as they are when it closes: later ones are lost.

        Answers that arrive exactly then count.
        """
        k, deadline = cohort.ids.size, self.deadline
        enough = answers_needed(k, self.answers, self.over_selection)
        if self.overlaps or not k or (deadline is None and enough == k):
            return replies
        arrival = np.where(replies.received, replies.seconds, np.inf)
        end = self._answered(arrival)
        closing = end if deadline is None else min(end, deadline)
        if not np.isfinite(closing):  # too many answers are lost, and no deadline ends the waiting
            return replies
        in_time = arrival <= closing
        why = "was not waited for, enough had answered" if end == closing else f"did not answer within {deadline:g} s"
        late = tuple(Failure(int(client), why) for client in cohort.ids[replies.received & ~in_time])
        failures = replies.failures._replace(failed=(*replies.failures.failed, *late))
        seconds = np.where(in_time, replies.seconds, closing)
        return replies.keep_only(in_time)._replace(seconds=seconds, failures=failures)


@settings
class Buffered(Pacing):
    """Asynchronous rounds: ``concurrency`` draws are under way, and whenever ``buffer`` have landed they are absorbed.

    Free seats are filled by one draw of the method's sampler, with as many draws as there are seats, at the beginning,
    after each absorb and as soon as an answer is lost. A landed draw keeps its seat until it is absorbed, so
    ``Buffered(K, K)`` without losses is ``Synchronous``. A client that is under way, or whose answer waits, is not
    drawn: laws are conditional on who is free. An update is a displacement from the version of the model that the
    client began with (FedBuff, Nguyen et al. 2022).

    A lost answer is noticed ``timeout`` seconds after it was asked for, and an answer that takes longer is given up
    then; without a time-out a lost one is noticed when it should have arrived. What is under way while the model goes
    on by more than ``most_staleness`` versions is given up too.
    """

    concurrency: PositiveInt
    buffer: PositiveInt
    timeout: PositiveFloat | None = None
    most_staleness: Annotated[int, Field(ge=0, le=10_000)] = 50
    refills: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.buffer > self.concurrency:
            raise ValueError(
                f"The 'buffer' parameter of Buffered must be at most the concurrency, {self.concurrency}: more would "
                f"never land. Got {self.buffer}."
            )

    @property
    def overlaps(self) -> bool:
        return True

    def misfit(self, sampler: Sampler) -> str:
        if sampler.cohort_size() is None:
            return (
                f"Buffered fills free seats, which needs a sampler with a fixed cohort size (per_round). {sampler} has "
                "none: use one such as Uniform, or the pacing Synchronous()."
            )
        return _oracle(sampler)

    def widen(self, sampler: Sampler) -> Sampler:
        return with_draws(sampler, self.concurrency)

    def seats(self, occupied: int) -> int:
        return self.concurrency - occupied

    def enough(self) -> float:
        return self.buffer

    def close(self, replies: Replies, cohort: Cohort) -> Replies:
        return replies


FORMS = "sync, buffered:CONCURRENCY:BUFFER or buffered:CONCURRENCY:BUFFER:TIMEOUT"


def parse(text: str) -> Pacing:
    """Turn a written form such as ``buffered:20:5`` into a pacing."""
    kind, *values = text.strip().split(":")
    if kind == "sync" and not values:
        return Synchronous()
    if kind != "buffered" or not 2 <= len(values) <= 3:
        raise BadInput(f"There is no pacing {brief(text)!r}. Valid: {FORMS}.")
    try:
        return Buffered(*values)  # pyright: ignore[reportArgumentType] - settings turn the written numbers into numbers
    except BadInput as e:
        raise BadInput(*e.problems, f"A pacing is written {FORMS}.") from None


def _oracle(sampler: Sampler) -> str:
    if not sampler.oracle():
        return ""
    return (
        f"{sampler} must know what every client would answer now, but where rounds overlap some are under way with an "
        "older model: use the pacing Synchronous(), or a sampler that is not an oracle."
    )


def answers_needed(asked: int, answers: int | None, over_selection: float) -> int:
    """Return how many answers close a round in which so many were asked: K, where those are ⌈K × factor⌉."""
    return min(answers or max(int(asked / over_selection + 1e-9), 1), asked)


def ask_more(sampler: Sampler, factor: float) -> Sampler:
    """Return the sampler with ``factor`` times as many clients in a round."""
    if factor == 1:
        return sampler
    changed = _resized(sampler, lambda per_round: -int(-per_round * factor // 1))
    if changed is sampler:
        raise BadInput(
            f"over_selection={factor:g} needs a sampler with a fixed cohort size (per_round). {sampler} has none."
        )
    return changed


def with_draws(sampler: Sampler, draws: int) -> Sampler:
    """Return the sampler with so many draws."""
    return _resized(sampler, lambda _: draws)


def _resized(sampler: Sampler, size: Callable[[int], int]) -> Sampler:
    """Return the sampler with another ``per_round``, and likewise those that it contains."""
    names = [f.name for f in dataclasses.fields(sampler)]  # pyright: ignore[reportArgumentType] - parts are dataclasses
    changed: dict[str, Any] = {n: _resized(v, size) for n in names if isinstance(v := getattr(sampler, n), Sampler)}
    if per_round := getattr(sampler, "per_round", None):
        changed["per_round"] = size(per_round)
    return replace(sampler, **changed) if changed else sampler  # pyright: ignore[reportArgumentType]
