"""An export holds exactly the rows of the run, whatever the file format and whichever version wrote the run."""

import csv
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fedweave import report
from fedweave.cli.options import experiments_of
from fedweave.runs.loop import load_result, run
from fedweave.store.export import write_tables

ROUNDS = {
    "round": np.array([1, 2]),
    "clock": np.array([0.1 + 0.2, 1 / 3]),
    "accuracy": np.array([np.nan, 0.75]),
    "class_accuracy": np.array([[np.nan, np.nan], [1.0, 0.5]]),
}
CLIENTS = {
    "round": np.array([1, 1, 2]),
    "client": np.array([0, 7, 3]),
    "expected": np.array([0.5, np.nan, 1.5]),
    "received": np.array([True, False, True]),  # 0 and 1 in a file
}
FLAT = {
    "round": [1, 2],
    "clock": [0.1 + 0.2, 1 / 3],
    "accuracy": [np.nan, 0.75],
    "class_0_accuracy": [np.nan, 1.0],
    "class_1_accuracy": [np.nan, 0.5],
}


def read_csv(path):
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    return {name: [float(v) for v in column] for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def read_parquet(path):
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pydict()


@pytest.mark.parametrize(("kind", "read"), [("csv", read_csv), ("parquet", read_parquet)])
def test_the_files_hold_every_row_exactly(tmp_path, kind, read):
    files = write_tables(tmp_path, ROUNDS, CLIENTS, kind)
    assert files == [tmp_path / f"rounds.{kind}", tmp_path / f"clients.{kind}"]
    for file, expected in zip(files, (FLAT, CLIENTS), strict=True):
        found = read(file)
        assert list(found) == list(expected)
        for name, column in expected.items():
            assert np.array_equal(found[name], column, equal_nan=True), name


def test_a_run_that_was_never_evaluated_has_no_class_columns(tmp_path):
    rounds = {**ROUNDS, "class_accuracy": np.zeros((2, 0))}
    file, _ = write_tables(tmp_path, rounds, CLIENTS, "csv")
    assert list(read_csv(file)) == ["round", "clock", "accuracy"]


def exported(folder):
    """Return the tables of a run folder as text."""
    result = load_result(folder)
    return [path.read_text() for path in write_tables(folder, result.rounds, result.clients, "csv")]


def test_a_run_folder_of_version_0_1_can_be_reported_and_exported(tmp_path):
    world = {"data": "quadratics", "partition": "iid", "clients": "6", "rounds": "2", "system": "dynamic"}
    (experiment,), _ = experiments_of(["fedavg"], world)
    folder = tmp_path / "run"
    run(experiment, folder)
    pages = [report.write([load_result(folder)], tmp_path / "new.html")]
    files = exported(folder)
    with closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        db.execute("ALTER TABLE failures RENAME TO mishaps")
        db.execute("ALTER TABLE rounds DROP COLUMN abandoned")
    pages.append(report.write([load_result(folder)], tmp_path / "old.html"))
    assert pages[0].read_text() == pages[1].read_text()
    assert exported(folder) == files
