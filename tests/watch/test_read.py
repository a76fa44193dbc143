"""What the list says of a run: by its rows, its lock and its plan; and that reading follows what changes."""

import json
import os
import sqlite3
import time
from contextlib import closing

import pytest

from fedweave.store import lock
from fedweave.store.database import observe
from fedweave.watch.catalog import Catalog
from watch.folders import Writer, accuracy, contents, made


def rows(root, *more):
    found, _, _ = Catalog([root, *more], seconds=0).changes({})
    return {row["name"]: row for row in found}


def change(folder, *statements):
    with closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        for statement in statements:
            db.execute(statement)


def test_a_finished_run(tmp_path):
    made(tmp_path / "runs/a", rounds=3, method="fedacs")
    row = rows(tmp_path / "runs")["a"]
    known = {k: row[k] for k in ("method", "data", "seed", "state", "round", "rounds", "metric", "seconds", "bytes")}
    assert known == {
        "method": "fedacs", "data": "digits", "seed": 0, "state": "finished", "round": 3, "rounds": 3,
        "metric": "accuracy", "seconds": 4.5, "bytes": 9000,
    }  # fmt: skip
    assert row["value"] == accuracy(3)
    assert row["metrics"] == ["accuracy", "loss", "train_loss", "diversity"]
    assert row["text"] == {"value": "14.5 %", "seconds": "4.5 s", "bytes": "9.0 kB"}


def test_states_of_a_run_under_way(tmp_path):
    catalog = Catalog([tmp_path], seconds=0)
    with Writer(tmp_path / "run", rounds=4) as writer:
        writer("add 1", "save")
        (row,), seen, _ = catalog.changes({})
        assert (row["state"], row["round"], row["value"]) == ("running", 1, 0.1)
        assert catalog.changes(seen)[0] == []
        writer("add 2", "save")
        (row,), seen, _ = catalog.changes(seen)
        assert (row["state"], row["round"], row["value"]) == ("running", 3, 0.3)
    (row,), seen, _ = catalog.changes(seen)
    assert row["state"] == "failed"
    assert "killed" in row["note"]


def test_a_run_that_was_closed_while_somebody_read_it_was_not_killed(tmp_path):
    """SQLite then leaves the log behind."""
    with Writer(tmp_path / "run", rounds=4) as writer:
        writer("add 2", "save")
        with closing(observe(tmp_path / "run")) as db:
            db.execute("BEGIN")
            db.execute("SELECT COUNT(*) FROM rounds").fetchone()
            writer("close")
        assert (tmp_path / "run/run.sqlite-wal").stat().st_size > 0
        assert (rows(tmp_path)["run"]["state"], rows(tmp_path)["run"]["note"]) == ("stopped", "")
    assert rows(tmp_path)["run"]["state"] == "stopped"


def test_a_run_whose_process_cannot_be_seen_is_not_called_killed(tmp_path):
    catalog = Catalog([tmp_path], seconds=0)
    with Writer(tmp_path / "run", rounds=4) as writer:
        writer("add 2", "save")
        text = (tmp_path / "run/.lock").read_text()
        (tmp_path / "run/.lock").write_text(text.replace(" on ", " on another-"))
        (row,), seen, _ = catalog.changes({})
        assert row["state"] == "running"
        for name in ("run.sqlite", "run.sqlite-wal"):
            os.utime(tmp_path / "run" / name, (1e9, 1e9))
        (row,), seen, _ = catalog.changes(seen)
        assert row["state"] == "stopped"
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(1e9))
        assert row["note"] == f"It last wrote at {day}. Whether its process still runs cannot be seen from here."
        assert catalog.changes(seen)[0] == []
        writer("add 1", "save")
        (row,), _, _ = catalog.changes(seen)
        assert (row["state"], row["round"]) == ("running", 3)


def test_what_does_not_change_is_not_looked_at_again(tmp_path, monkeypatch):
    made(tmp_path / "a", planned=9)
    catalog = Catalog([tmp_path], seconds=0)
    seen = catalog.changes({})[1]
    with monkeypatch.context() as patch:
        patch.setattr(lock, "writer", lambda _: pytest.fail("looked"))
        assert catalog.changes(seen)[0] == []
    held = lock.take(tmp_path / "a")  # continued
    (row,), seen, _ = catalog.changes(seen)
    assert row["state"] == "running"
    lock.release(held)
    (row,), _, _ = catalog.changes(seen)
    assert row["state"] == "stopped"


@pytest.mark.parametrize(("more", "state"), [("add 0", "stopped"), ("add 1", "finished")])
def test_a_run_that_was_closed(tmp_path, more, state):
    with Writer(tmp_path / "run", rounds=3) as writer:
        writer("add 2", more, "save", "close")
    assert rows(tmp_path)["run"]["state"] == state


def test_a_run_that_has_not_saved_anything_yet(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer("add 1")
        row = rows(tmp_path)["run"]
    assert (row["state"], row["round"], row["value"], row["text"]["value"]) == ("running", 0, None, "–")


def test_runs_that_ended_early_are_finished(tmp_path):
    made(tmp_path / "target", rounds=30, planned=99, target=accuracy(30), stop_at_target=True, patience=None)
    made(tmp_path / "not yet", rounds=30, planned=99, target=accuracy(31), stop_at_target=True, patience=None)
    patient = made(tmp_path / "patience", rounds=30, planned=99, stop_at_target=False, patience=20)
    change(patient, "UPDATE rounds SET accuracy = 0.95 WHERE round = 10")
    made(tmp_path / "time", rounds=30, planned=99, stop_at_target=False, patience=None, stop_after=45.0)
    made(tmp_path / "time left", rounds=30, planned=99, stop_at_target=False, patience=None, stop_after=46.0)
    found = {name: (row["state"], row["note"]) for name, row in rows(tmp_path).items()}
    assert found == {
        "time": ("finished", "It ended early: its simulated time was over."),
        "time left": ("stopped", ""),
        "target": ("finished", "It ended early: it reached its target."),
        "not yet": ("stopped", ""),
        "patience": ("finished", "It ended early: its metric got no better."),
    }


def test_a_run_that_was_extended_is_not_finished(tmp_path):
    change(made(tmp_path / "a", rounds=3), "INSERT INTO extension VALUES (7)")
    row = rows(tmp_path)["a"]
    assert (row["state"], row["rounds"]) == ("stopped", 7)


def test_comparisons_show_what_waits_and_sweeps_their_best_points(tmp_path):
    plan = {"method": {"name": "fedavg"}, "seed": 0, "rounds": 3, "target": None}
    folder = tmp_path / "c"
    made(folder / "fedavg-seed0")
    made(folder / "best/fedavg-seed9")
    made(tmp_path / "deep/er/run")
    made(tmp_path / ".c.new")  # being created
    (folder / "compare.json").write_text(json.dumps({"command": None, "runs": {"fedavg-seed0": plan, "later": plan}}))
    assert {name: row["state"] for name, row in rows(tmp_path).items()} == {
        "c/fedavg-seed0": "finished",
        "c/later": "waiting",
        "c/best/fedavg-seed9": "finished",
        "deep/er/run": "finished",
    }
    several = rows(folder, tmp_path / "deep", folder / "fedavg-seed0")
    assert list(several) == ["c/fedavg-seed0", "c/later", "c/best/fedavg-seed9", "deep/er/run"]


def test_new_runs_appear_and_removed_ones_go(tmp_path):
    catalog = Catalog([tmp_path], seconds=0)
    assert catalog.changes({}) == ([], {}, False)
    made(tmp_path / "a")
    (row,), seen, _ = catalog.changes({})
    assert row["name"] == "a"
    (tmp_path / "a").rename(tmp_path / "b")
    (row,), now, _ = catalog.changes(seen)
    assert row["name"] == "b"
    assert now.keys() != seen.keys()


def test_curves_and_participation_read_what_is_new_and_notice_what_was_repeated(tmp_path):
    folder, catalog = made(tmp_path / "a", rounds=4, planned=9), Catalog([tmp_path], seconds=0)
    (key,) = catalog.changes({})[1]

    def seen(axis="round", metric="accuracy"):
        return catalog.curves([key], metric, axis)[key]

    assert seen() == {"x": [1, 2, 3, 4], "y": [accuracy(r) for r in range(1, 5)]}
    assert seen("clock")["x"] == [1.5, 3.0, 4.5, 6.0]
    assert seen("bytes_up")["x"] == [1000, 2000, 3000, 4000]
    assert seen("bytes_total", "diversity") == {"x": [3000, 6000, 9000, 12000], "y": [1, 1 / 2, 1 / 3, 1 / 4]}
    assert seen(metric="no such metric") == {"x": [], "y": []}
    part = catalog.clients([key])[key]
    assert part["clients"] == 4  # rounds 1 to 4 ask clients 1, 2, 3, 0 and 2, 3, 0, 1; the first of each pair answers
    assert part["asked"] == [0.5] * 4
    assert part["answered"] == [0.25] * 4
    assert part["answer_rate"] == 0.5
    columns = "clock, seconds, device_seconds, wall_seconds, {}, loss, train_loss, asked, received, refused, bytes_up, "
    columns += "bytes_down, class_accuracy, abandoned FROM rounds WHERE round = 4"
    change(folder, f"INSERT INTO rounds SELECT 5, {columns.format('0.5')}")
    change(folder, "INSERT INTO clients (round, client, count, received) VALUES (5, 3, 1, 1)")
    assert seen()["y"][-2:] == [accuracy(4), 0.5]
    assert catalog.clients([key])[key]["asked"] == [0.6, 0.4, 0.4, 0.4]
    assert catalog.clients([key])[key]["ids"][0] == 3
    # the run is continued from round 3, and repeats what comes after
    change(folder, "DELETE FROM rounds WHERE round > 3", "DELETE FROM clients WHERE round > 3")
    assert seen() == {"x": [1, 2, 3], "y": [accuracy(r) for r in range(1, 4)]}
    assert sum(catalog.clients([key])[key]["asked"]) == pytest.approx(2)


def test_what_is_not_finite_is_left_out(tmp_path):
    folder = made(tmp_path / "a", rounds=4)
    change(
        folder, "UPDATE rounds SET accuracy = 9e999 WHERE round = 2", "UPDATE rounds SET clock = 9e999 WHERE round = 4"
    )
    catalog = Catalog([tmp_path], seconds=0)
    (row,), _, _ = catalog.changes({})
    assert (row["value"], row["seconds"], row["text"]["seconds"]) == (accuracy(4), None, "–")
    json.dumps(row, allow_nan=False)
    assert catalog.curves([row["key"]], "accuracy", "round")[row["key"]]["x"] == [1, 3]


@pytest.mark.parametrize(("metric", "value"), [("accuracy", accuracy(4)), ("loss", 1 - accuracy(4))])
def test_a_run_that_does_not_name_its_metric_is_judged_by_accuracy_or_loss(tmp_path, metric, value):
    folder = made(tmp_path / "a", rounds=4)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"task": None}))
    change(folder, *([] if metric == "accuracy" else ["UPDATE rounds SET accuracy = NULL"]))
    catalog = Catalog([tmp_path], seconds=0)
    for rounds in (4, 9):  # looked at twice
        (row,), _, _ = catalog.changes({})
        assert (row["metric"], row["value"], row["rounds"]) == (metric, value, rounds)
        change(folder, "INSERT INTO extension VALUES (9)")


def test_databases_of_older_versions_are_read_as_they_are(tmp_path):
    folder = made(tmp_path / "a", rounds=4)
    change(folder, "DROP TABLE extension", "DROP TABLE measures", "ALTER TABLE rounds DROP COLUMN abandoned")
    before = contents(tmp_path)
    row = rows(tmp_path)["a"]
    assert (row["state"], row["value"]) == ("finished", accuracy(4))
    assert contents(tmp_path) == before


def test_a_hundred_thousand_rounds_and_their_needle(tmp_path):
    made(tmp_path / "a", rounds=100_000, clients=50)
    before, catalog = contents(tmp_path), Catalog([tmp_path], seconds=0)
    (row,), _, _ = catalog.changes({})
    assert (row["state"], row["round"], row["value"]) == ("finished", 100_000, accuracy(100_000))
    curve = catalog.curves([row["key"]], "accuracy", "round")[row["key"]]
    assert len(curve["x"]) <= 1000
    assert curve["x"][0] == 1
    assert curve["x"][-1] == 100_000
    assert dict(zip(curve["x"], curve["y"], strict=True))[4321] == 0.99
    assert catalog.clients([row["key"]])[row["key"]]["asked"] == [0.04] * 50
    assert contents(tmp_path) == before
