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
    remember_lengths: bool = False  # whether fewer than three answers are compared too, with those of earlier rounds


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
    return {**refusals, "refused": count}


def earlier_lengths(refusals: State, ids: Array, rules: Rules) -> list[float] | None:
    """Return how long the last updates of others than these clients were; None where that is not remembered."""
    if not rules.remember_lengths:
        return None
    others = np.delete(refusals["length"], ids) if "length" in refusals else np.zeros(0)
    return others[others > 0].tolist()


def lengths_after(refusals: State, ids: Array, length: Array, admitted: Array, clients: int, rules: Rules) -> State:
    """Return how long each client's last admitted update was, beside what else is counted."""
    if not rules.remember_lengths:
        return refusals
    last: Array = refusals.get("length", np.zeros(clients)).copy()
    last[ids[admitted]] = length[admitted]
    return {**refusals, "length": last}


def why_abandoned(replies: Replies, refused: Sequence[Failure], rules: Rules) -> str:
    """Return why a round with these answers must not count: too few are left, or none was usable; else nothing."""
    few, failures = np.count_nonzero(replies.received), replies.failures
    least = min(rules.min_answers, replies.received.size)
    if failures.abandoned or few < least:
        return failures.abandoned or f"{few} of {replies.received.size} clients answered, {least} must"
    # Links that lose everything are part of the world, and methods reckon with them: such a round counts.
    return f"all {len(refused)} answers were refused" if refused and not few else ""
