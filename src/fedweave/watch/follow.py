"""Curves and participation of a run, followed as it goes on: every look reads the rounds since the one before."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.report.clients import Participation
from fedweave.store.database import BLOCK, read_blocks
from fedweave.watch.read import COLUMNS, Mark, is_there, last_round, values_of
from fedweave.watch.thin import Point, Thinned

AXES = ("round", "clock", "bytes_up", "bytes_total")
MOST_CLIENTS = 10**6  # of which participation is counted
MOST_BARS = 200


class Curve:
    """One metric of one run, in a bounded number of points."""

    def __init__(self, metric: str):
        self._metric, self._thinned = metric, Thinned()
        self._mark: Mark | None = None

    def update(self, db: sqlite3.Connection) -> None:
        """Read the rounds that are new; begin again if the run has repeated some."""
        if not is_there(db, self._mark):
            self._thinned, self._mark = Thinned(), None
        since, self._mark = self._mark[0] if self._mark else -1, last_round(db)
        table, kind, known = values_of(self._metric)
        columns = {"round": "INTEGER", "clock": "REAL", "bytes_up": "INTEGER", "bytes_down": "INTEGER", **kind}
        names = () if self._metric in COLUMNS else (self._metric,)
        for block in read_blocks(db, table, columns, f"WHERE {known} AND round > ? ORDER BY round", *names, since):
            self._thinned.extend(
                Point(round, clock, up, up + down, value)
                for round, clock, up, down, value in zip(*block.values(), strict=True)
                if clock is not None and math.isfinite(clock) and math.isfinite(value)
            )

    def along(self, axis: str) -> dict[str, Any]:
        """Return the points along an axis, one of ``AXES``."""
        points = self._thinned.points()
        return {"x": [getattr(point, axis) for point in points], "y": [point.value for point in points]}


class Takers:
    """How often each client of a run was asked and answered."""

    def __init__(self) -> None:
        self._asked = self._answered = np.zeros(0, np.int64)
        self._mark: Mark | None = None

    def update(self, db: sqlite3.Connection) -> None:
        """Count the rounds that are new; begin again if the run has repeated some."""
        if not is_there(db, self._mark):
            self.__init__()
        since, self._mark = self._mark[0] if self._mark else -1, last_round(db)
        query = "SELECT client, COUNT(*), SUM(received > 0) FROM clients WHERE round > ? GROUP BY client"
        cursor = db.execute(query, (since,))
        while rows := cursor.fetchmany(BLOCK):
            if not all(isinstance(client, int) and 0 <= client < MOST_CLIENTS for client, *_ in rows):
                raise ValueError(f"the column 'client' of 'clients' must be below {MOST_CLIENTS:,} to be shown")
            self._make_room(max(client for client, *_ in rows) + 1)
            for client, asked, answered in rows:
                self._asked[client] += asked
                self._answered[client] += answered or 0

    def shares(self, clients: int) -> dict[str, Any]:
        """Return the shares of rounds per client, most asked first; of many clients the means of equal groups."""
        self._make_room(min(clients, MOST_CLIENTS))
        order = np.lexsort((-self._answered, -self._asked))
        rounds = max(1, self._mark[0] if self._mark else 1)
        part = Participation(self._asked[order] / rounds, self._answered[order] / rounds)
        return {
            "clients": order.size,
            "ids": order.tolist() if order.size <= MOST_BARS else None,
            "asked": _grouped(part.asked),
            "answered": _grouped(part.answered),
            "answer_rate": part.answer_rate,
            "never_asked": part.never_asked,
        }

    def _make_room(self, clients: int) -> None:
        if clients > self._asked.size:
            more = np.zeros(max(clients, 0) - self._asked.size, np.int64)
            self._asked, self._answered = np.append(self._asked, more), np.append(self._answered, more)


def _grouped(values: Array) -> list[float]:
    parts = np.array_split(values, min(values.size, MOST_BARS)) if values.size else []
    return [float(part.mean()) for part in parts]
