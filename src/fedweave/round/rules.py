"""The rules of a run's rounds, whatever the method: how many answers a round needs, and which clients are excluded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Failure, Population, Replies, State


class Rules(NamedTuple):
    """Which answers a round accepts, and how many it needs; as they stand it takes whatever is finite."""

    max_length_ratio: float | None = None  # an update this many times as long as its round's median one is refused
    min_answers: int = 0  # with fewer usable answers the round is abandoned
    quarantine: int | None = None  # a client with so many refused answers is no longer asked


NO_RULES = Rules()


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
    few, failures = np.count_nonzero(replies.received), replies.failures
    least = min(rules.min_answers, replies.received.size)
    if failures.abandoned or few < least:
        return failures.abandoned or f"{few} of {replies.received.size} clients answered, {least} must"
    # Links that lose everything are part of the world, and methods reckon with them: such a round counts.
    return f"all {len(refused)} answers were refused" if refused and not few else ""
