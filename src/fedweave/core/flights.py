"""Clients that are under way when a round ends: they land in a later one, with updates of an older model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import MOST_SECONDS, MOST_STEPS, Array, Cohort, Failure

TOO_STALE = "too stale: the model has moved on by more versions than the pacing's most_staleness"
ARRIVES, LOST, LATE, STALE = range(
    4
)  # what becomes of a flight; LATE: after the time-out, STALE: after too many rounds


class Sent(NamedTuple):
    """What is known of a dispatch before anyone has trained."""

    arrives: Array  # (k,) bool
    seconds: Array  # (k,) from asking to answer; nan where nobody knows
    bytes_up: Array  # (k,)
    bytes_down: Array | None  # (k,); None: the whole model, and what travels with it


class Flights(NamedTuple):
    """What was asked of clients, one row for each: all that is needed to train them when they land."""

    client: Array  # (m,) int64
    version: Array  # int64, of the model that it began with: rounds done when it was sent
    dispatch: Array  # int64, number of the draw event; worlds and randomness go by it
    drawn: Array  # int64, how often: Cohort.count
    expected: Array  # float64, E[count] in its draw event
    event_draws: Array  # int64, of all clients in that event
    sent: Array  # float64, when, on the run's clock
    due: Array  # float64, when the answer lands, or when the server notices that none will
    seconds: Array  # float64, from sending to then
    lr: Array  # float64
    steps: Array  # int64
    batch_size: Array  # int64
    budget: Array  # float64, what the upload allocated; nan: nothing
    latency: Array  # float64, of its dispatch, as the loss rate
    loss_rate: Array  # float64
    bytes_up: Array  # int64
    bytes_down: Array  # int64
    fate: Array  # int64: ARRIVES, LOST, LATE or STALE

    def take(self, rows: Array) -> Flights:
        """Return some of the rows: a mask, or places in order."""
        return Flights(*(column[rows] for column in self))

    def joined(self, other: Flights) -> Flights:
        """Return these rows and the others behind them."""
        if not other.client.size:
            return self
        return Flights(*map(np.concatenate, zip(self, other, strict=True))) if self.client.size else other

    @property
    def under_way(self) -> int:
        """Number of draws."""
        return int(self.drawn.sum())


FLOATS = ("expected", "sent", "due", "seconds", "lr", "budget", "latency", "loss_rate")
TYPES = {name: np.dtype(np.float64 if name in FLOATS else np.int64) for name in Flights._fields}
NO_FLIGHTS = Flights(*(np.zeros(0, kind) for kind in TYPES.values()))


def flights_of(state: Mapping[str, Any]) -> Flights:
    """Return the flights of a server's state."""
    return Flights(*(state[name] for name in Flights._fields)) if state else NO_FLIGHTS


UNKNOWN = ("expected", "budget", "due", "seconds")  # nan: no law, no budget, nobody knows when
_LEAST = {"drawn": 1, "event_draws": 1, "steps": 1, "batch_size": 1, "dispatch": 1}  # of the others: 0
_MOST = {"steps": MOST_STEPS, "fate": STALE, "loss_rate": 1.0}


def impossible(columns: Mapping[str, Any], round: int) -> str:
    """Return why these columns cannot be what is under way after a round; "" if they can."""
    wanted = {**{name: (kind, 1) for name, kind in TYPES.items()}, "dispatches": (np.dtype(np.int64), 0)}
    if {name: (array.dtype, array.ndim) for name, array in columns.items()} != wanted:
        return "its flights do not have the columns of flights"
    flights, last = flights_of(columns), int(columns["dispatches"])
    if len({column.size for column in flights}) > 1 or np.unique(flights.client).size < flights.client.size:
        return "its flights must have a row for each client that is under way, and only one"
    most = {**_MOST, "version": round, "dispatch": last}
    for name, column in flights._asdict().items():
        unknown = np.isnan(column) if name in UNKNOWN else False
        high = most.get(name, MOST_SECONDS)
        if not (unknown | ((column >= _LEAST.get(name, 0)) & (column <= high))).all():
            return f"the column {name!r} of its flights is out of range"
    if (flights.drawn > flights.event_draws).any() or (flights.due < flights.sent).any():
        return "its flights must be drawn at most as often as their draw event, and land after they were sent"
    return ""


class Ended(NamedTuple):
    """Which flights have ended, and when."""

    rows: Array  # (m,) bool
    lost: Array  # (m,) bool, those of them that bring nothing
    clock: float


@dataclass(frozen=True)
class Landing:
    """The flights whose answers a round absorbs, aligned with its cohort."""

    flights: Flights
    x: Array  # (D,) the model that all of them began with, or (v, D) the versions of it
    version: Array | None  # (k,) each one's row of x; None: there is only one
    busy: Array  # the clients that stay under way

    @property
    def sent(self) -> Sent:
        """What was known of them when they were sent."""
        f = self.flights
        return Sent(f.fate == ARRIVES, f.seconds, f.bytes_up, f.bytes_down)

    @property
    def cohort(self) -> Cohort:
        """The clients as one cohort.

        Each one's E[count] is that of its own draw event for as many draws as land here, so that inverse-probability
        weights are those of one round whatever the sizes of the events.
        """
        f = self.flights
        expected = f.expected * (f.under_way / f.event_draws)
        return Cohort(ids=f.client, count=f.drawn, expected=expected)

    def given_up(self) -> tuple[Failure, ...]:
        """Return why answers that would have arrived are not waited for any longer."""
        f, found = self.flights, list[Failure]()
        for row in np.flatnonzero((f.fate == LATE) | (f.fate == STALE)).tolist():
            late = f"did not answer within {f.seconds[row]:g} s"
            found.append(Failure(int(f.client[row]), late if f.fate[row] == LATE else TOO_STALE))
        return tuple(found)

    def models(self, rows: Array) -> Array:
        """Return the model that each of these rows of the cohort began with: (D,) if all have the same, else (c, D)."""
        return self.x if self.version is None else self.x[self.version[rows]]
