"""The rules of a run's rounds, whatever the method: when one ends, how many answers it needs, and whom it believes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import Array, Cohort, Failure, Population, Replies, State
from fedweave.core.roles import Sampler
from fedweave.core.settings import BadInput
from fedweave.method import Method
from fedweave.round.admission import without


class Rules(NamedTuple):
    """How a round ends and what it lets in; as they stand it waits for all and takes what is finite."""

    longest: float | None = None  # an update this many times as long as its round's median one is refused
    deadline: float | None = None  # seconds after which answers come too late
    answers: int | None = None  # how many close the round; None: as many as were asked, without the over-selection
    over_selection: float = 1.0  # how many times as many are asked as the method says
    fewest: int = 0  # with fewer usable answers the round is abandoned
    quarantine: int | None = None  # a client with so many refused answers is not asked any more


NO_RULES = Rules()


def answers_needed(asked: int, answers: int | None, over_selection: float) -> int:
    """Return how many answers close a round in which so many were asked: K, where those are ⌈K × factor⌉."""
    return min(answers or max(int(asked / over_selection + 1e-9), 1), asked)


def over_selected(method: Method, factor: float) -> Method:
    """Return the method with a sampler that asks ``factor`` times as many clients."""
    if factor == 1:
        return method

    def more(part: Any) -> Any:
        names = [f.name for f in dataclasses.fields(part)]
        changed: dict[str, Any] = {n: more(v) for n in names if isinstance(v := getattr(part, n), Sampler)}
        if getattr(part, "per_round", None):
            changed["per_round"] = -int(-part.per_round * factor // 1)
        if not changed:
            raise BadInput(
                f"over_selection={factor:g} needs a sampler with a fixed cohort size (per_round). {part} has none."
            )
        return replace(part, **changed)

    return replace(method, sampler=more(method.sampler))


def close_round(replies: Replies, cohort: Cohort, rules: Rules) -> Replies:
    """Return the replies of a simulated round as they are when it closes: what comes later is not waited for.

    It closes when enough have answered, and at the latest at the deadline. Answers that arrive exactly then count.
    """
    k, deadline = cohort.ids.size, rules.deadline
    enough = answers_needed(k, rules.answers, rules.over_selection)
    if not k or (deadline is None and enough == k):
        return replies
    arrives = np.where(replies.received, replies.seconds, np.inf)
    end = float(np.partition(arrives, enough - 1)[enough - 1])  # when enough have answered
    in_time = end if deadline is None else min(end, deadline)
    if not np.isfinite(in_time):  # too many answers are lost, and nothing ends the waiting for those that come
        return replies
    heard = arrives <= in_time
    why = "was not waited for, enough had answered" if end == in_time else f"did not answer within {deadline:g} s"
    late = tuple(Failure(int(client), why) for client in cohort.ids[replies.received & ~heard])
    failures = replies.failures._replace(failed=(*replies.failures.failed, *late))
    return without(replies, heard)._replace(seconds=np.where(heard, replies.seconds, in_time), failures=failures)


def without_quarantined(population: Population, refusals: State, rules: Rules) -> Population:
    """Return the population in which clients in quarantine cannot be asked."""
    if rules.quarantine is None or "refused" not in refusals:
        return population
    return replace(population, available=population.available & (refusals["refused"] < rules.quarantine))


def refusals_after(refusals: State, refused: Sequence[Failure], clients: int, rules: Rules) -> State:
    """Return how often each client's answer was refused, those of a round included."""
    if rules.quarantine is None or not refused:
        return refusals
    count: Array = refusals.get("refused", np.zeros(clients, np.int64)).copy()
    np.add.at(count, [failure.client for failure in refused], 1)
    return {"refused": count}


def why_abandoned(replies: Replies, refused: Sequence[Failure], rules: Rules) -> str:
    """Return why a round with these answers must not count: too few are left, or none was usable; else nothing."""
    few, failures = int(replies.received.sum()), replies.failures
    least = min(rules.fewest, replies.received.size)
    if failures.abandoned or few < least:
        return failures.abandoned or f"{few} of {replies.received.size} clients answered, {least} must"
    # Links that lose everything are part of the world, and methods reckon with them: such a round counts.
    return f"all {len(refused)} answers were refused" if refused and not few else ""
