"""The guard of parts that users write: they are handed arrays to read, and what they return is checked.

The round itself trusts its parts. A method with a part that is not the library's does its rounds behind a guard for
each role, which says in one sentence what a part does wrong, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import Array, Cohort, Population, Replies, State, View
from fedweave.core.returned import check_pair, check_vector, kind_of
from fedweave.core.roles import Aggregator, Pacing, Sampler, ServerOptimizer, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.method import Method
from fedweave.round.read_only import read_only, read_only_record, read_only_replies, read_only_state
from fedweave.tables.rows import Rows


class GuardedSampler(NamedTuple):
    """A sampler behind its guard."""

    part: Sampler

    def init(self, population: Population) -> State:
        self.required_fields()
        return check_state(self.part.init(read_only_record(population)), self.part)

    def required_fields(self) -> tuple[str, ...]:
        fields = self.part.required_fields()
        if not isinstance(fields, tuple | list) or not all(isinstance(f, str) and f in Replies._fields for f in fields):
            who = f"{type(self.part).__name__}.required_fields"
            raise BadInput(f"{who} must return names of fields of Replies. It returned {brief(fields)}.")
        return tuple(fields)

    def law(self, state: State, view: View) -> Array:
        return check_vector(self.part.law(read_only_state(state), view), view.population.size, self.part, "law")

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        drawn = self.part.draw(read_only_state(state), view, rng)
        return read_only_record(check_cohort(drawn, self.part, view.population))

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        learned = self.part.learn(read_only_state(state), view, cohort, read_only_replies(replies))
        return check_state(learned, self.part)


class GuardedAggregator(NamedTuple):
    """An aggregator behind its guard."""

    part: Aggregator

    def init(self, population: Population, dim: int) -> State:
        return check_state(self.part.init(read_only_record(population), dim), self.part)

    def broadcast(self, state: State) -> Array | None:
        return self.part.broadcast(read_only_state(state))

    def models(self, state: State, x: Array, ids: Array) -> Array | None:
        found = self.part.models(read_only_state(state), read_only(x), ids)
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or found.shape != (ids.size, x.size) or found.dtype.kind != "f":
            wanted = f"one model for each client, numbers of shape {(ids.size, x.size)}, or None"
            raise BadInput(f"{type(self.part).__name__}.models must return {wanted}. It returned {kind_of(found)}.")
        return found

    def combine(self, state: State, view: View, cohort: Cohort, replies: Replies) -> tuple[Array, State]:
        found = self.part.combine(read_only_state(state), view, cohort, read_only_replies(replies))
        direction, state = check_pair(found, self.part, "combine", "the direction and the state")
        return check_vector(direction, view.x.size, self.part, "combine"), check_state(state, self.part)

    def step_length(self, view: View, law: Array) -> float:
        found = self.part.step_length(view, law)
        if not isinstance(found, Real):
            raise BadInput(
                f"{type(self.part).__name__}.step_length must return a number. It returned {kind_of(found)}."
            )
        return float(found)


class GuardedServer(NamedTuple):
    """A server optimiser behind its guard."""

    part: ServerOptimizer

    def init(self, dim: int) -> State:
        return check_state(self.part.init(dim), self.part)

    def step(self, state: State, x: Array, direction: Array) -> tuple[Array, State]:
        found = self.part.step(read_only_state(state), x, read_only(direction))
        moved, state = check_pair(found, self.part, "step", "the new model and the state")
        return check_vector(moved, x.size, self.part, "step"), check_state(state, self.part)


class GuardedUpload(NamedTuple):
    """What an upload does at the server, behind its guard; its payloads are checked for every codec."""

    part: Upload

    def init(self, population: Population) -> State:
        return check_state(self.part.init(read_only_record(population)), self.part)

    def allocate(self, state: State, view: View, cohort: Cohort) -> Array | None:
        return check_budget(self.part.allocate(read_only_state(state), view, cohort), self.part, cohort)

    def refreshes(self, round: int) -> bool:
        found = self.part.refreshes(round)
        if not isinstance(found, bool | np.bool_):
            raise BadInput(f"{type(self.part).__name__}.refreshes must return True or False. Got {kind_of(found)}.")
        return bool(found)

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        learned = self.part.learn(read_only_state(state), view, cohort, read_only_replies(replies))
        return check_state(learned, self.part)


class GuardedPacing(NamedTuple):
    """A pacing behind its guard."""

    part: Pacing

    def close(self, replies: Replies, cohort: Cohort) -> Replies:
        return check_closed(self.part.close(replies, cohort), replies, self.part)


class Guarded(NamedTuple):
    """The parts of a method that act at the server, each behind its guard."""

    sampler: GuardedSampler
    aggregator: GuardedAggregator
    server: GuardedServer
    upload: GuardedUpload
    pacing: GuardedPacing


def guarded(method: Method) -> Method | Guarded:
    """Return the parts as a round uses them: as they are where all are the library's, else behind a guard."""
    if not method.foreign:
        return method
    return Guarded(
        sampler=GuardedSampler(method.sampler),
        aggregator=GuardedAggregator(method.aggregator),
        server=GuardedServer(method.server),
        upload=GuardedUpload(method.upload),
        pacing=GuardedPacing(method.pacing),
    )


def check_cohort(cohort: Any, sampler: Sampler, population: Population) -> Cohort:
    """Return the cohort that a sampler drew, or say in one sentence what is wrong with it."""
    who = f"{type(sampler).__name__}.draw"
    if not isinstance(cohort, Cohort):
        raise BadInput(f"{who} must return a Cohort. It returned {brief(cohort)}.")
    ids, count, expected = cohort.ids, cohort.count, cohort.expected
    if not all(isinstance(v, np.ndarray) for v in (ids, count, expected)):
        got = [kind_of(v) for v in (ids, count, expected)]
        raise BadInput(f"{who} must return ids, count and expected as arrays. Got {brief(', '.join(got))}.")
    if not (ids.shape == count.shape == expected.shape and ids.ndim == 1):
        shapes = [v.shape for v in (ids, count, expected)]
        raise BadInput(f"{who} must return ids, count and expected of one length. They have shapes {shapes}.")
    if ids.dtype.kind not in "iu" or count.dtype.kind not in "iu" or expected.dtype.kind not in "fiu":
        kinds = [str(v.dtype) for v in (ids, count, expected)]
        raise BadInput(f"{who} must return whole numbers as ids and count, numbers as expected. Got {kinds}.")
    if ids.size and (np.count_nonzero(ids[1:] <= ids[:-1]) or ids[0] < 0 or ids[-1] >= population.size):
        raise BadInput(f"{who} must return distinct ids of 0 … {population.size - 1} in ascending order. Got {ids}.")
    if np.count_nonzero(population.available[ids]) < ids.size:
        absent = ids[~population.available[ids]]
        raise BadInput(f"{who} must ask available clients only. It asks {absent.tolist()}, which are not available.")
    if np.count_nonzero(count < 1):
        raise BadInput(f"{who} must return counts of at least 1. Got {cohort.count}.")
    if not isinstance(cohort.probed, int) or cohort.probed < 0:
        raise BadInput(f"{who} must return a whole number from 0 as probed. Got {brief(cohort.probed)}.")
    if sampler.law_known and np.count_nonzero((expected > 0) & (expected < np.inf)) < ids.size:
        raise BadInput(
            f"{who} must return positive numbers as expected, E[count]. Got {brief(expected)}. A sampler without a "
            "known law sets law_known = False and goes with Mean()."
        )
    return cohort


def check_budget(budget: Any, upload: Upload, cohort: Cohort) -> Array | None:
    """Return what an upload allocated to the cohort, or say in one sentence what is wrong with it."""
    if budget is None:
        return None
    who = f"{type(upload).__name__}.allocate"
    try:
        found = np.asarray(budget)
    except ValueError:  # rows of different lengths
        found = np.array(None)
    if found.shape != cohort.ids.shape or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        wanted = f"{cohort.ids.size} finite numbers, one for each of the cohort, or None"
        raise BadInput(f"{who} must return {wanted}. Got {brief(budget)}.")
    return found


def check_closed(closed: Any, before: Replies, pacing: Any) -> Replies:
    """Return the replies as a pacing left them, or say in one sentence what is wrong with them."""
    if closed is before:
        return closed
    who = f"{type(pacing).__name__}.close"
    if not isinstance(closed, Replies):
        raise BadInput(f"{who} must return Replies. It returned {brief(closed)}.")
    for name in ("received", "updates", "seconds"):
        new, old = getattr(closed, name), getattr(before, name)
        if not isinstance(new, np.ndarray) or new.shape != old.shape or new.dtype.kind != old.dtype.kind:
            raise BadInput(f"{who} must return {name} as {kind_of(old)}. It returned {kind_of(new)}.")
    if not ((closed.seconds >= 0) & (closed.seconds < np.inf)).all():
        raise BadInput(f"{who} must return finite seconds, none below 0. It returned {brief(closed.seconds)}.")
    return closed


def check_state(state: Any, part: Any) -> State:
    """Return the state that a part hands back, or say in one sentence why it could not be stored."""
    name = type(part).__name__
    if not isinstance(state, Mapping):
        raise BadInput(f"{name} must return its state as a dictionary of arrays by name. Got {brief(state)}.")
    for key, value in state.items():
        fine = isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.dtype.itemsize <= 8
        if not isinstance(key, str) or not key.isidentifier() or not (fine or isinstance(value, Rows)):
            got = f"{kind_of(value)} as {brief(key)}"
            raise BadInput(f"{name} must keep its state as arrays of numbers or Rows, each by a name. Got {got}.")
    return state
