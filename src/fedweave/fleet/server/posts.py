"""Questions whose answers may land in a later round: what was asked of whom, and what has come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedweave.core.flights import STALE, TOO_STALE, Flights, Landing
from fedweave.core.records import Array, Assignment, Failures, Replies
from fedweave.fleet.server.around import give_up
from fedweave.fleet.server.questions import Box, some_of
from fedweave.fleet.server.shelf import Shelf
from fedweave.fleet.server.terms import Clock
from fedweave.tables.spool import Spool

Outcome = tuple[Message | str, float]  # an answer, or why there is none, and after how many seconds
NOT_ASKED = "could not be asked, its node is gone"


class Post(NamedTuple):
    """One client's question that is under way."""

    assignment: Assignment  # of its whole dispatch
    row: int  # of its cohort
    name: str  # of the message; "": it could not be sent
    at: float  # when, on the server's clock


class Come(NamedTuple):
    """What has become of some questions, aligned with the clients."""

    arrived: Array  # (m,) bool, a good answer is there
    lost: Array  # (m,) bool, no good answer will be
    seconds: Array  # (m,) from asking to then; infinite for those that are waited for

    @property
    def ended(self) -> Array:
        """(m,) bool, nobody waits for them any longer."""
        return self.arrived | self.lost


class Posts:
    """The questions under way, at most one to a client; one that takes ``limit`` seconds is given up."""

    def __init__(self, grid: Grid, clock: Clock, limit: float, at_a_time: int):
        """Pull at most so many answers at a time."""
        self._grid, self._clock, self._at_a_time, self.limit = grid, clock, at_a_time, limit
        self._asked: dict[int, Post] = {}  # by client
        self._shelf = Shelf()

    def send(self, assignment: Assignment, messages: Sequence[Message], to: Array) -> None:
        """Send these rows of an assignment their messages; those for whom there is none are lost at once."""
        names, now = dict(zip(to.tolist(), self._grid.push_messages(messages), strict=True)), self._clock.now()
        for row, client in enumerate(assignment.cohort.ids.tolist()):
            self._asked[client] = Post(assignment, row, names.get(row) or "", now)

    def look(self, clients: Array) -> bool:
        """Look for answers of these clients until some have come, and return whether any have."""
        waiting = {p.name: c for c in clients.tolist() if (p := self._asked[c]).name and c not in self._shelf}
        names = list(waiting)
        for begin in range(0, len(names), self._at_a_time):
            came = list(self._grid.pull_messages(names[begin : begin + self._at_a_time]))
            for reply in came:
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:  # else it was answered twice
                    self._shelf.put(client, reply, self._clock.now() - self._asked[client].at)
            if came:
                return True
        return False

    def come(self, clients: Array, now: float) -> Come:
        """Return what has become of these clients' questions, those that were asked ``limit`` before ``now`` lost."""
        arrived, lost, seconds = np.zeros(clients.size, bool), np.zeros(clients.size, bool), np.zeros(clients.size)
        for i, client in enumerate(clients.tolist()):
            post, found = self._asked[client], self._shelf.look(client)
            if found is not None:
                lost[i], seconds[i] = found
                arrived[i] = not lost[i]
            else:
                lost[i] = not post.name or now >= post.at + self.limit
                seconds[i] = now - post.at if lost[i] else np.inf
        return Come(arrived, lost, seconds)

    def next_limit(self, clients: Array) -> float:
        """Return when the next of these clients is given up; there is at least one."""
        return min(self._asked[c].at for c in clients.tolist()) + self.limit

    def land(self, landing: Landing) -> Iterator[tuple[Array, Assignment, Iterator[Outcome]]]:
        """Yield rows of a landing that were asked together, what, and what became of each; none is under way any more.

        A landing without rows has no dispatch.
        """
        flights = landing.flights
        posts = [self._asked.pop(client) for client in flights.client.tolist()]
        for number in np.unique(flights.dispatch):
            rows = np.flatnonzero(flights.dispatch == number)
            asked = some_of(posts[rows[0]].assignment, np.array([posts[row].row for row in rows]))
            yield rows, asked, (self._outcome(flights, row, posts[row]) for row in rows.tolist())

    def _outcome(self, flights: Flights, row: int, post: Post) -> Outcome:
        if (found := self._shelf.take(int(flights.client[row]))) is not None:
            return found
        give_up(self._grid, [post.name])
        if flights.fate[row] == STALE:
            return TOO_STALE, float(flights.seconds[row])
        return (f"did not answer within {self.limit:g} s", self.limit) if post.name else (NOT_ASKED, 0.0)


def fill(box: Box, outcomes: Iterable[Outcome]) -> None:
    """Put what became of each question of a dispatch into its box."""
    for row, (what, seconds) in enumerate(outcomes):
        if isinstance(what, str):
            box.lose(row, what, seconds)
        else:
            box.put(row, what, seconds)
    box.close()


def merge(parts: Sequence[tuple[Array, Replies]], abandoned: str) -> Replies:
    """Return the replies to several dispatches as those of one cohort, each with its rows of it."""
    k, first = sum(rows.size for rows, _ in parts), parts[0][1]
    updates = Spool((k, first.updates.shape[1]), first.updates.dtype)
    columns = dict[str, Array]()
    for rows, replies in parts:
        for i, row in enumerate(rows.tolist()):
            updates.put(row, replies.updates[i])
        for name in _COLUMNS:
            values: Array | None = getattr(replies, name)
            if values is not None:
                if name not in columns:  # without a mask everything was sent
                    columns[name] = np.full((k, *values.shape[1:]), name == "mask", values.dtype)
                columns[name][rows] = values
    refused, failed = (
        tuple(sorted(f for _, replies in parts for f in getattr(replies.failures, kind)))
        for kind in ("refused", "failed")
    )
    if "mask" in columns:
        columns["mask"][~columns["received"]] = False
    failures = Failures(refused, failed, abandoned)
    return first._replace(updates=updates.matrix(), failures=failures, **columns)


_COLUMNS = [name for name in Replies._fields if name not in ("updates", "failures")]
