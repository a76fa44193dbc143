"""What the page shows of one run, read from its folder without changing anything there."""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.core.settings import BadInput, brief
from fedweave.report import units
from fedweave.runs.results import may_end_early, reason_to_end
from fedweave.store import lock
from fedweave.store.contents import Manifest, StoredExperiment
from fedweave.store.database import check_schema, observe, read_columns, reading
from fedweave.store.schema import MEASURES, ROUNDS, TABLES, extended_rounds
from fedweave.tables.files import shown_path
from fedweave.watch.find import Place, Stamp, bounded_json, stamp

FILES = ("run.sqlite", "run.sqlite-wal", "experiment.json", "manifest.json", ".lock")
COLUMNS = ("accuracy", "loss", "train_loss")  # metrics that are columns of every run
MOST_METRICS, RECENT_ROUNDS = 60, 1000  # names of measures, and the rounds in which they are looked for at first
RECENT_SECONDS = 600  # a run whose process cannot be seen from here counts as under way for so long after it wrote
LAST = {c: ROUNDS[c] for c in ("round", "clock", "wall_seconds", "bytes_up", "bytes_down")}
NOTES = {
    "target": "It ended early: it reached its target.",
    "patience": "It ended early: its metric got no better.",
    "time": "It ended early: its simulated time was over.",
    "killed": "Its process was killed or crashed. `fedweave resume` continues the run.",
    "unknown": "It last wrote at {}. Whether its process still runs cannot be seen from here.",
}

Row = dict[str, Any]
Mark = tuple[Any, ...]


class About(NamedTuple):
    """What the JSON files of a run say."""

    experiment: Mapping[str, Any]
    task: Mapping[str, Any] | None
    data: str
    clients: int
    simulated: bool  # its clock; that of a real fleet is real


@contextmanager
def opened(folder: Path) -> Generator[sqlite3.Connection]:
    """Yield a run's database at one moment; errors are one sentence (BadInput)."""
    try:
        with reading(folder), closing(observe(folder)) as db:
            db.execute("BEGIN")
            check_schema(db, TABLES, write=False)
            yield db
    except OSError as e:
        raise BadInput(f"{shown_path(folder)} cannot be read: {e.strerror or e}.") from None


def rows_of(db: sqlite3.Connection, table: str, kinds: Mapping[str, str], tail: str, *values: Any) -> list[Mark]:
    """Return rows of a table, every value of its column's type."""
    return list(zip(*read_columns(db, table, kinds, tail, *values).values(), strict=True))


def last_round(db: sqlite3.Connection) -> Mark | None:
    """Return the last round with its times and bytes, by which it is known again; None before the first."""
    found = rows_of(db, "rounds", LAST, "ORDER BY round DESC LIMIT 1")
    return found[0] if found else None


def is_there(db: sqlite3.Connection, mark: Mark | None) -> bool:
    """Return whether a round is still what it was: a run that is continued may repeat rounds."""
    return mark is not None and rows_of(db, "rounds", LAST, "WHERE round = ?", mark[0]) == [mark]


def values_of(metric: str) -> tuple[str, dict[str, str], str]:
    """Return table, column and condition of a metric, which is a column of the rounds or a measure."""
    if metric in COLUMNS:
        return "rounds", {metric: "REAL"}, f'"{metric}" IS NOT NULL'
    return "rounds JOIN measures USING (round)", {"value": "REAL"}, "value IS NOT NULL AND name = ?"


class Run:
    """One run of the list; its row is read again when its files have changed."""

    def __init__(self, place: Place):
        self.place, self.version, self.row = place, 0, Row()
        self.key = hashlib.sha256(os.fsencode(os.path.abspath(place.folder))).hexdigest()[:16]
        self._seen: Any = None
        self._about: tuple[tuple[Stamp, ...], About] | None = None
        self._mark: Mark | None = None
        self._value: tuple[int, float | None] = (0, None)  # the last evaluated round and its value
        self._metrics: dict[str, None] = {}

    @property
    def clients(self) -> int:
        """The number of clients, as far as the manifest says it."""
        return self._about[1].clients if self._about else 0

    def refresh(self) -> bool:
        """Read what has changed; return whether anything did."""
        stamps = tuple(stamp(self.place.folder / name) for name in FILES)
        if self._seen == (self.place, stamps):  # nobody was writing it, and whoever begins changes the lock
            return False
        writer = lock.writer(self.place.folder) if self.place.planned is None else "closed"
        writing = writer == "writing" or (writer == "unknown" and time.time() - _written(stamps) < RECENT_SECONDS)
        # of one that is written, a commit need not change a file after its rows are in the log
        self._seen, before = None if writing else (self.place, stamps), self.row
        try:
            self.row = self._identity() | self._read(stamps, "writing" if writing else writer)
        except BadInput as e:
            if before and (writing or stamps != tuple(stamp(self.place.folder / name) for name in FILES)):
                self._seen = None  # it is being written: look again
                return False
            self.row = self._identity() | {"state": "failed", "note": str(e)}
        return self.row != before

    def _identity(self) -> Row:
        return {"key": self.key, "name": self.place.name, "folder": str(self.place.folder)}

    def _read(self, stamps: tuple[Stamp, ...], writer: lock.Writer) -> Row:
        if self.place.problem is not None:
            raise BadInput(self.place.problem)
        if (planned := self.place.planned) is not None:
            return _described(planned, _data(planned.get("data"))) | {"state": "waiting", "round": 0}
        about = self._read_about(stamps[2:4])
        with opened(self.place.folder) as db:
            length = extended_rounds(db) if _has(db, "extension") else None
            experiment = {**about.experiment, **({} if length is None else {"rounds": length})}
            last = last_round(db)
            metric, higher = self._follow(db, last, about.task)
            end = self._end(db, experiment, about.task, last, metric, higher)
        state = "finished" if end else {"writing": "running", "killed": "failed"}.get(writer, "stopped")
        last_wrote = time.strftime("%Y-%m-%d %H:%M", time.localtime(_written(stamps)))
        row = dict(zip(LAST, last, strict=True)) if last else dict.fromkeys(LAST, 0)
        value, seconds = self._value[1], _finite(row["clock"])
        return _described(experiment, about.data) | {
            "state": state,
            "note": NOTES.get(end or writer, "").format(last_wrote),
            "round": row["round"],
            "metric": metric,
            "value": value,
            "seconds": seconds,
            "bytes": row["bytes_up"] + row["bytes_down"],
            "simulated": about.simulated,
            "metrics": list(self._metrics),
            "text": {
                "value": units.score(metric)(value, None),
                "seconds": units.seconds(seconds),
                "bytes": units.size(row["bytes_up"] + row["bytes_down"]),
            },
        }

    def _read_about(self, stamps: tuple[Stamp, ...]) -> About:
        if self._about is None or self._about[0] != stamps:
            folder = self.place.folder
            experiment = bounded_json(folder / "experiment.json", StoredExperiment)
            manifest = bounded_json(folder / "manifest.json", Manifest)
            known = ("method", "seed", "rounds", "target", "stop_at_target", "patience", "stop_after", "evaluate_every")
            self._about = (
                stamps,
                About(
                    experiment={key: experiment[key] for key in known if key in experiment}
                    | {"method": {"name": experiment["method"]["name"]}},
                    task=manifest.get("task"),
                    data=_data(manifest["data"].get("name") or experiment.get("data")),
                    clients=max(manifest.get("clients") or 0, len(manifest.get("samples") or ())),
                    simulated=manifest.get("engine") != "flower",
                ),
            )
        return self._about[1]

    def _follow(self, db: sqlite3.Connection, last: Mark | None, task: Mapping[str, Any] | None) -> tuple[str, bool]:
        """Read what came since the last look: the metric's last value, and the names of measures."""
        since = self._mark[0] if self._mark is not None and is_there(db, self._mark) else 0
        if not since:
            self._value, self._metrics = (0, None), {}
        self._mark = last
        if last is not None and _has(db, "measures") and len(self._metrics) < MOST_METRICS:
            recent = max(since, last[0] - RECENT_ROUNDS)
            found = rows_of(
                db, "measures", {"name": MEASURES["name"]}, "WHERE round > ? GROUP BY name LIMIT 60", recent
            )
            self._metrics |= {name: None for (name,) in found if name.isprintable() and len(name) <= 80}
        if task is not None:
            metric, higher = task["primary"], task["higher_is_better"]
        elif rows_of(db, "rounds", {"round": "INTEGER"}, "WHERE accuracy IS NOT NULL LIMIT 1"):
            metric, higher = "accuracy", True
        else:  # runs of 0.1 do not name their metric
            metric, higher = "loss", False
        self._look_up(db, metric, since)
        self._metrics = dict.fromkeys((metric, *COLUMNS, *self._metrics))
        return metric, higher

    def _look_up(self, db: sqlite3.Connection, metric: str, since: int) -> None:
        table, kind, known = values_of(metric)
        if table != "rounds" and not _has(db, "measures"):
            return
        names = () if metric in COLUMNS else (metric,)
        tail = f"WHERE {known} AND round > ? ORDER BY round DESC LIMIT 1"
        if found := rows_of(db, table, {"round": "INTEGER"} | kind, tail, *names, since):
            self._value = found[0][0], _finite(found[0][1])

    def _end(
        self,
        db: sqlite3.Connection,
        experiment: Mapping[str, Any],
        task: Mapping[str, Any] | None,
        last: Mark | None,
        metric: str,
        higher: bool,
    ) -> str | None:
        """Return why the run has ended: "rounds", "target", "patience" or "time"; None if it has not."""
        if last is None:
            return None
        if last[0] >= experiment["rounds"]:
            return "rounds"
        rules = {"stop_at_target": False, "patience": None, "stop_after": None, "evaluate_every": 1, **experiment}
        if not may_end_early(rules):
            return None
        table, kind, known = values_of(metric)
        column = next(iter(kind))
        tail = f'WHERE {known} ORDER BY "{column}" {"DESC" if higher else "ASC"}, round LIMIT 1'
        names = () if metric in COLUMNS else (metric,)
        best = rows_of(db, table, {"round": "INTEGER"} | kind, tail, *names)
        at, value = self._value
        value = value if at == last[0] and value is not None else math.nan
        row = {**dict(zip(LAST, last, strict=True)), metric: value}
        return reason_to_end(rules, task, row, best[0][0] if best else 0)


def _written(stamps: tuple[Stamp, ...]) -> float:
    """Return when a run last wrote its database; a file may claim any time, but none after now."""
    return min(max([0.0, *(s[1] / 1e9 for s in stamps[:2] if s)]), time.time())


def _described(experiment: Mapping[str, Any], data: str) -> Row:
    return {
        "method": experiment["method"]["name"],
        "seed": experiment["seed"],
        "rounds": experiment["rounds"],
        "data": data,
    }


def _data(value: Any) -> str:
    return brief(value, 40) if isinstance(value, str) else "own data"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _has(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a database has a table: runs of older versions lack some."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone() is not None
