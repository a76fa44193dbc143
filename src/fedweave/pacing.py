"""When the server absorbs what has arrived: a part of every method."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedweave.core.records import Cohort, Failure, Replies
from fedweave.core.roles import Pacing, Sampler
from fedweave.core.settings import BadInput, settings


@settings
class Synchronous(Pacing):
    """One cohort, one closing: the round waits for all, for enough of them, or until a deadline.

    It closes when ``answers`` have arrived (as many as the method asks for, unless given), and at the latest after
    ``deadline`` seconds of the simulated clock. With ``over_selection`` so many times as many clients are asked.
    """

    deadline: PositiveFloat | None = None
    answers: PositiveInt | None = None
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.0

    def widen(self, sampler: Sampler) -> Sampler:
        return ask_more(sampler, self.over_selection)

    def close(self, replies: Replies, cohort: Cohort) -> Replies:
        """Return the replies of a simulated round as they are when it closes: later ones are lost.

        Answers that arrive exactly then count.
        """
        k, deadline = cohort.ids.size, self.deadline
        enough = answers_needed(k, self.answers, self.over_selection)
        if not k or (deadline is None and enough == k):
            return replies
        arrival = np.where(replies.received, replies.seconds, np.inf)
        end = float(np.partition(arrival, enough - 1)[enough - 1])  # when enough have answered
        closing = end if deadline is None else min(end, deadline)
        if not np.isfinite(closing):  # too many answers are lost, and no deadline ends the waiting
            return replies
        in_time = arrival <= closing
        why = "was not waited for, enough had answered" if end == closing else f"did not answer within {deadline:g} s"
        late = tuple(Failure(int(client), why) for client in cohort.ids[replies.received & ~in_time])
        failures = replies.failures._replace(failed=(*replies.failures.failed, *late))
        seconds = np.where(in_time, replies.seconds, closing)
        return replies.keep_only(in_time)._replace(seconds=seconds, failures=failures)


def answers_needed(asked: int, answers: int | None, over_selection: float) -> int:
    """Return how many answers close a round in which so many were asked: K, where those are ⌈K × factor⌉."""
    return min(answers or max(int(asked / over_selection + 1e-9), 1), asked)


def ask_more(sampler: Sampler, factor: float) -> Sampler:
    """Return the sampler with ``factor`` times as many clients in a round."""
    if factor == 1:
        return sampler
    names = [f.name for f in dataclasses.fields(sampler)]  # pyright: ignore[reportArgumentType] - parts are dataclasses
    changed: dict[str, Any] = {n: ask_more(v, factor) for n in names if isinstance(v := getattr(sampler, n), Sampler)}
    if per_round := getattr(sampler, "per_round", None):
        changed["per_round"] = -int(-per_round * factor // 1)
    if not changed:
        raise BadInput(
            f"over_selection={factor:g} needs a sampler with a fixed cohort size (per_round). {sampler} has none."
        )
    return replace(sampler, **changed)  # pyright: ignore[reportArgumentType]
