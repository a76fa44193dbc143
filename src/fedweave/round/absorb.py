"""The second half of a round: close it, admit the answers, combine them, step, learn, commit."""

from __future__ import annotations

from typing import NamedTuple

from fedweave.core.crash_points import crash_point
from fedweave.core.records import (
    SERVER,
    Array,
    Assignment,
    Cohort,
    Failure,
    Replies,
    ServerState,
    View,
)
from fedweave.method import Method
from fedweave.round.admission import admit, lengths, not_finite
from fedweave.round.guard import guarded
from fedweave.round.memories import NOBODY, commit_memories, total_bytes_down
from fedweave.round.rules import NO_RULES, Rules, earlier_lengths, lengths_after, refusals_after, why_abandoned
from fedweave.server import advance


class Round(NamedTuple):
    """What happened in one round, for the record."""

    assignment: Assignment
    replies: Replies
    refused: list[Failure]  # why an update that arrived was not used
    direction: Array
    bytes_down: int  # sent to all of the cohort
    abandoned: str = ""  # why nothing of this round counts

    @property
    def cohort(self) -> Cohort:
        """Who was asked."""
        return self.assignment.cohort

    @property
    def view(self) -> View:
        """What the stages saw, with this round's learning rate."""
        return self.assignment.view

    @property
    def lr(self) -> float:
        """Learning rate of the clients."""
        return self.assignment.lr

    def failures(self) -> list[tuple[str, Failure]]:
        """Return what went wrong, each with its kind: refused, failed or abandoned."""
        kinds = ("refused", self.refused), ("failed", self.replies.failures.failed)
        found = [(kind, failure) for kind, failures in kinds for failure in failures]
        return [*found, *([("abandoned", Failure(SERVER, self.abandoned))] if self.abandoned else [])]


def absorb(
    method: Method, state: ServerState, assignment: Assignment, replies: Replies, rules: Rules = NO_RULES
) -> tuple[ServerState, Round]:
    """Return the state after the round, and what happened in it."""
    parts, cohort, view = guarded(method), assignment.cohort, assignment.view
    replies = parts.pacing.close(replies, cohort)
    crash_point("trained")
    length, earlier = None, earlier_lengths(state.refusals, cohort.ids, rules)
    if rules.max_length_ratio is not None:
        length = lengths(replies)
    replies, refused = admit(replies, cohort, view.layout, rules.max_length_ratio, length, earlier)
    direction, aggregator = parts.aggregator.combine(state.aggregator, view, cohort, replies)
    crash_point("combined")
    x, server = advance(parts.server.step, state.server, view.x, direction, view.layout)
    sampler = parts.sampler.learn(state.sampler, view, cohort, replies)
    upload = parts.upload.learn(state.upload, view, cohort, replies)
    busy = NOBODY if assignment.landing is None else assignment.landing.busy
    clients = commit_memories(state.clients, cohort, replies, parts.upload.refreshes(view.round), busy)
    clock = state.clock + (float(replies.seconds.max()) if cohort.ids.size else 0.0)
    refusals = refusals_after(state.refusals, refused, view.population.size, rules)
    if length is not None:
        refusals = lengths_after(refusals, cohort.ids, length, replies.received, view.population.size, rules)
    why = why_abandoned(replies, refused, rules) or not_finite(x, direction, method)
    happened = Round(
        assignment=assignment,
        replies=replies,
        refused=refused,
        direction=direction,
        bytes_down=total_bytes_down(assignment, replies),
        abandoned=why,
    )
    if why:  # discard the round; keep the refusal counts
        return state._replace(round=view.round, clock=clock, refusals=refusals), happened
    after = ServerState(
        round=view.round,
        x=x,
        clock=clock,
        sampler=sampler,
        aggregator=aggregator,
        server=server,
        clients=clients,
        upload=upload,
        refusals=refusals,
    )
    return after, happened
