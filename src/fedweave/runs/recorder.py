"""Evaluate, measure and record rounds as they come, and save their states."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.records import Array, Failure, ServerState, State
from fedweave.round import Round, measures
from fedweave.runs.callbacks import Callback, Running
from fedweave.runs.evaluation import COLUMNS, Evaluation, ends_with_more, evaluate, with_clients
from fedweave.runs.plain import to_plain
from fedweave.runs.results import ended_early, reason_to_end
from fedweave.runs.rows import audit_lines, client_rows, round_row
from fedweave.runs.session import Session
from fedweave.store.run_folder import RunFolder


class Finished(NamedTuple):
    """A round of which only the scores may be missing."""

    after: ServerState
    row: dict[str, Any]
    measured: dict[str, float]
    found: Evaluation
    clients: dict[str, Array]
    failures: list[tuple[str, Failure]]
    audit: list[dict[str, Any]]


class Recorder(AbstractContextManager["Recorder"]):
    """Adds rounds to a store one after another: the row first, then the state.

    Where workers evaluate a model beside the next round, it is recorded when that one has trained. An interruption
    loses the round that is being evaluated; resuming repeats it. If its scores end the run, the next one is dropped, or
    what went wrong in it.
    """

    def __init__(
        self, session: Session, state: ServerState, store: RunFolder, run: Running, callbacks: Sequence[Callback]
    ):
        past = store.columns("rounds")
        self._totals = {c: past[c][-1].item() if past[c].size else 0 for c in ("bytes_up", "bytes_down")}
        self._seconds = past["wall_seconds"][-1].item() if past["wall_seconds"].size else 0.0
        self._session, self._store, self._run, self._callbacks = session, store, run, callbacks
        self._before = state
        self._waiting: Finished | None = None
        self.state = state  # the last one that is recorded, with the best model so far
        self._plain = to_plain(session.experiment)
        self.ended = ended_early(past, self._plain, session.manifest.get("task"))  # why, before its last round
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Record what waits, also after an error; but whoever interrupts a run does not wait for an evaluation."""
        if self._waiting is None or not (kind is None or issubclass(kind, Exception)):
            return False
        self._settle()
        return self.ended is not None

    def add(self, after: ServerState, happened: Round) -> None:
        """Evaluate and measure a round, and record it as soon as its scores are there."""
        self._settle()
        if self.ended:
            return
        crash_point("stepped")
        self._waiting = Finished(
            after=after,
            row=round_row(self._before, after, happened, self._totals),
            measured=measures.of_parts(self._session.method, after, happened),
            found=evaluate(self._session, after, happened.view.population),
            clients=client_rows(after.round, happened),
            failures=happened.failures(),
            audit=audit_lines(after, happened) if self._session.experiment.audit else [],
        )
        self._before = after
        if isinstance(self._waiting.found.test, Mapping):
            self._settle()

    def _settle(self) -> None:
        """Record the round that waits for its scores, if one does."""
        if (waiting := self._waiting) is None:
            return
        self._waiting = None
        after, test, store = waiting.after, waiting.found.test, self._store
        scores = test if isinstance(test, Mapping) else test()
        self._seconds += time.perf_counter() - self._begin
        row = waiting.row | {name: scores[name] for name in COLUMNS if name in scores}
        row |= {"wall_seconds": self._seconds, **waiting.measured}
        row |= {name: value for name, value in scores.items() if name not in COLUMNS}  # the task's own
        e, task, found = self._session.experiment, self._session.manifest.get("task"), waiting.found
        best = _better(self.state.best, row, after, task)
        self.ended = reason_to_end(self._plain, task, row, int(best["round"]) if best else 0)
        if self.ended and e.client_eval and not found.clients:  # this is the last round, where they are evaluated
            found = with_clients(self._session, after, found)
        row |= found.measured
        crash_point("evaluated")
        store.add(row, waiting.clients, waiting.failures, found.clients)
        if waiting.audit:
            store.note(after.round, waiting.audit)
        crash_point("recorded")
        self.state = after._replace(best=best, fleet=self._session.fleet())
        before_extra = after.round == e.rounds - 1 and ends_with_more(e, e.rounds)  # a longer run goes on from here
        store.save(self.state, always=self._session.every_round or before_extra)
        self._run.failures[:] = waiting.failures
        for callback in self._callbacks:
            callback.round(self._run, row, self.state)
        self._begin = time.perf_counter()


def _better(best: State, row: Mapping[str, Any], after: ServerState, task: Mapping[str, Any] | None) -> State:
    """Return the best model so far, of which this round's is one if it was evaluated."""
    value = float(row.get(task["primary"], np.nan)) if task else np.nan
    if not np.isfinite(value):
        return best
    if best and not (value > best["value"] if task and task["higher_is_better"] else value < best["value"]):
        return best
    return {"x": after.x, "round": np.array(after.round), "value": np.array(value)}
