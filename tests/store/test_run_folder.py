"""A run folder keeps exactly what was committed: states bit for bit, rows up to the state, nothing beyond."""

import math
import os
import platform
import re
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedweave.core.records import Failure
from fedweave.core.settings import BadInput
from fedweave.store import run_folder
from fedweave.store.run_folder import RunFolder, refuse_used, write_file
from fedweave.store.states import pack, unpack
from store.toy_runs import EXPERIMENT, MANIFEST, clients, new, row, state


def assert_same(before, after):
    """Equal in every bit: round, clock, and every array with its type and shape."""
    assert (after.round, after.clock) == (before.round, before.clock)
    for slot in ("sampler", "aggregator", "server", "best", "fleet"):
        ours, theirs = getattr(before, slot), getattr(after, slot)
        assert set(ours) == set(theirs)
        for name, a in {"": before.x, **ours}.items():
            b = theirs.get(name, after.x)
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name


@pytest.mark.parametrize("clock", [0.0, 0.1 + 0.2, 1e-320, 12345678.9, math.nextafter(1.0, 2.0)])
def test_a_state_survives_packing_bit_for_bit(clock):
    assert_same(state(12, clock), unpack(pack(state(12, clock))))


def test_a_state_of_an_older_version_has_no_best_model_and_no_fleet():
    before = state(12)._replace(best={}, fleet={})
    old = pack(before).replace(b'"format":"5"', b'"format":"2"')
    assert old != pack(before)
    assert_same(before, unpack(old))


def test_the_last_saved_state_is_the_one_that_comes_back(tmp_path):
    store = new(tmp_path / "run")
    assert store.load_state() is None
    for r in (1, 2, 3):
        store.add(row(r), clients(r), [])
        store.save(state(r), always=True)
    store.close()
    again = RunFolder.open(tmp_path / "run")
    assert_same(state(3), again.load_state())
    assert again.columns("rounds")["round"].tolist() == [1, 2, 3]
    assert again.experiment == EXPERIMENT
    assert again.manifest == MANIFEST


@pytest.mark.parametrize("where", [0, 0.5, 1], ids=["first", "middle", "last"])
def test_a_flipped_bit_in_the_state_is_noticed(tmp_path, where):
    store = new(tmp_path)
    store.save(state(1), always=True)
    (file,) = tmp_path.glob("state-*")
    content = bytearray(file.read_bytes())
    content[int(where * (len(content) - 1))] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=file.name), pytest.raises(BadInput, match="missing or damaged"):
        store.load_state()


@pytest.mark.parametrize("gone", [False, True])
def test_the_state_before_is_used_when_the_newest_is_bad(tmp_path, gone):
    store = new(tmp_path)
    for r in (1, 2):
        store.add(row(r), clients(r), [])
        store.save(state(r), always=True)
    newest = tmp_path / "state-000002.safetensors"
    newest.unlink() if gone else newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="round 2"):
        found = store.load_state()
    assert_same(state(1), found)
    store.rewind(found.round)
    assert store.columns("rounds")["round"].tolist() == [1]
    store.add(row(2), clients(2), [])  # and the run can go on


def test_a_folder_has_one_writer(tmp_path):
    store = new(tmp_path)
    holder = rf"is being written by process {os.getpid()} on {re.escape(platform.node())} since \d{{4}}-\d\d-\d\d \d\d:"
    with pytest.raises(BadInput, match=holder):
        RunFolder.open(tmp_path)
    RunFolder.open(tmp_path, write=False).close()  # readers are welcome
    store.close()
    RunFolder.open(tmp_path).close()


def test_at_most_two_states_are_kept(tmp_path):
    store = new(tmp_path)
    for r in range(1, 6):
        store.save(state(r), always=True)
        names = sorted(p.name for p in tmp_path.glob("state-*"))
        assert names == [f"state-{i:06d}.safetensors" for i in range(max(1, r - 1), r + 1)]
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_state_is_written_at_most_every_so_many_seconds(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now)
    store = new(tmp_path)
    saved = []
    for r, now in enumerate((100.5, 101.9, 102.0, 103.0, 104.1), 1):  # noqa: B007 - the clock above reads it
        store.save(state(r))
        saved.append(len(list(tmp_path.glob(f"state-{r:06d}*"))))
    assert saved == [0, 0, 1, 0, 1]


CRASH = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from fedweave.core.records import Failure
from store.toy_runs import EXPERIMENT, MANIFEST, clients, new, row, state

store = new(Path(sys.argv[1]))
for r in (1, 2):
    store.add(row(r), clients(r), [])
store.save(state(2), always=True)
for r in (3, 4):
    store.add(row(r), clients(r), [("refused", Failure(1, "bad"))])
os._exit(9)
"""


def test_rows_without_a_saved_state_are_gone_after_a_crash(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CRASH), str(tmp_path / "run"), str(Path(__file__).parents[1])],
        check=False,
    )
    assert done.returncode == 9
    store = RunFolder.open(tmp_path / "run")
    assert store.load_state().round == 2
    assert store.columns("rounds")["round"].tolist() == [1, 2]
    assert store.columns("clients")["round"].tolist() == [1, 1, 2, 2]
    store.add(row(3), clients(3), [])  # the lost round can be done again
    store.save(state(3), always=True)
    assert store.columns("rounds")["round"].tolist() == [1, 2, 3]


def test_a_state_file_that_was_never_committed_does_not_count(tmp_path):
    """The crash between the file's rename and the commit of its rows."""
    store = new(tmp_path)
    store.add(row(1), clients(1), [])
    store.save(state(1), always=True)
    store.close()
    write_file(tmp_path / "state-000002.safetensors", pack(state(2)))
    again = RunFolder.open(tmp_path)
    assert again.load_state().round == 1
    again.add(row(2), clients(2), [])
    again.save(state(2, clock=7.0), always=True)
    assert again.load_state().clock == 7.0


def test_rows_beyond_the_saved_state_are_dropped(tmp_path):
    """A signal that strikes between adding a round's rows and taking its state must not leave them behind."""
    store = new(tmp_path)
    store.add(row(1), clients(1), [])
    store.add(row(2), clients(2), [("refused", Failure(4, "bad"))])
    store.save(state(1), always=True)
    store.close()
    again = RunFolder.open(tmp_path)
    assert again.columns("rounds")["round"].tolist() == [1]
    again.add(row(2), clients(2), [("refused", Failure(4, "bad"))])
    again.save(state(2), always=True)
    again.close()
    reasons = sqlite3.connect(tmp_path / "run.sqlite").execute("SELECT * FROM failures").fetchall()
    assert reasons == [(2, "refused", 4, "bad", "")]


def test_a_used_folder_is_refused(tmp_path):
    new(tmp_path / "run").close()
    with pytest.raises(BadInput, match=r"already exists and is not empty: `fedweave resume .*run` continues it"):
        new(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match="choose another --out"):
        new(tmp_path / "other")
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="already exists"):
        new(tmp_path / "file")
    with pytest.raises(BadInput, match="cannot be written"):
        new(tmp_path / "file" / "inside")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_is_fine(tmp_path):
    for folder in (tmp_path, tmp_path / "new"):
        refuse_used(folder, "run.sqlite")
        new(folder).close()
        with pytest.raises(BadInput, match="fedweave resume"):
            refuse_used(folder, "run.sqlite")


def test_what_is_no_run_folder_is_not_opened(tmp_path):
    for folder, why in (
        (tmp_path, "no run.sqlite and no experiment.json"),
        (tmp_path / "nowhere", "There is no folder"),
    ):
        with pytest.raises(BadInput, match=why):
            RunFolder.open(folder)
    assert not list(tmp_path.iterdir())


def test_in_memory_rows_are_there_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = new(None)
    store.add(row(1), clients(1), [])
    store.save(state(1), always=True)
    store.add(row(2), clients(2), [])
    assert store.columns("rounds")["round"].tolist() == [1, 2]
    assert store.folder is None
    assert os.listdir(tmp_path) == []


def test_columns_have_their_types_and_values(tmp_path):
    store = new(tmp_path)
    store.add(row(1, bytes_up=2**40), clients(1), [])
    rounds, asked = store.columns("rounds"), store.columns("clients")
    whole = {"round", "asked", "received", "refused", "bytes_up", "bytes_down", "abandoned"}
    assert set(rounds) == set(row(1))
    assert {c for c, v in rounds.items() if v.dtype == np.int64} == whole
    assert all(v.dtype == np.float64 for c, v in rounds.items() if c not in whole)
    assert {c for c, v in asked.items() if v.dtype == np.float64} == {
        "expected", "loss", "seconds", "first_gradient", "first_loss",
    }  # fmt: skip
    assert rounds["bytes_up"].tolist() == [2**40]
    assert rounds["clock"].tolist() == [1.5]
    assert np.isnan(rounds["train_loss"]).tolist() == [True]
    assert asked["client"].tolist() == [1, 4]
    assert np.isnan(asked["expected"]).all()


def test_no_rows_give_empty_columns():
    store = new(None)
    rounds = store.columns("rounds")
    assert set(rounds) == set(row(1))
    assert all(len(v) == 0 for v in rounds.values())
    assert rounds["round"].dtype == np.int64
    assert rounds["class_accuracy"].shape == (0, 0)


def test_rounds_that_were_not_evaluated_have_no_class_accuracy():
    store = new(None)
    for r, accuracy in enumerate([(), (0.25, np.nan, 1.0), ()], 1):
        store.add(row(r, accuracy), clients(r), [])
    table = store.columns("rounds")["class_accuracy"]
    expected = [[np.nan] * 3, [0.25, np.nan, 1.0], [np.nan] * 3]
    assert np.array_equal(table, expected, equal_nan=True)


def test_numbers_survive_the_rows_exactly():
    store = new(None)
    exact = {"clock": 0.1 + 0.2, "seconds": 5e-324, "loss": 1 / 3, "accuracy": math.nextafter(1.0, 0.0)}
    store.add(row(1, (1 / 3,), **exact), clients(1), [])
    rounds = store.columns("rounds")
    assert {c: rounds[c][0] for c in exact} == exact
    assert rounds["class_accuracy"][0, 0] == 1 / 3


def test_writing_replaces_the_whole_file(tmp_path):
    write_file(tmp_path / "a", b"long old content")
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_run_of_an_older_version_lacks_columns_and_can_be_read(tmp_path):
    store = new(tmp_path)
    store.add(row(1), clients(1), [])
    store.save(state(1), always=True)
    store.close()
    with sqlite3.connect(tmp_path / "run.sqlite") as db:
        db.execute("ALTER TABLE rounds DROP COLUMN abandoned")
        for column in ("first_gradient", "first_loss"):
            db.execute(f"ALTER TABLE clients DROP COLUMN {column}")
    again = RunFolder.open(tmp_path)
    assert np.isnan(again.columns("clients")["first_gradient"]).all()
    assert again.columns("rounds")["abandoned"].tolist() == [0]
    again.add(row(2) | {"abandoned": 1}, clients(2), [])
    assert again.columns("rounds")["abandoned"].tolist() == [0, 1]
    assert np.isfinite(again.columns("clients")["first_gradient"]).tolist() == [False, False, True, True]
    again.close()


def test_columns_are_read_in_blocks_that_change_nothing(monkeypatch):
    with closing(RunFolder(None)) as store:
        for round in range(1, 8):
            store.add(row(round) | {"extra": 1.5 * round}, clients(round), [])
        whole = [store.columns(table) for table in ("rounds", "clients", "client_scores")]
        monkeypatch.setattr("fedweave.store.database.BLOCK", 3)
        blocks = [store.columns(table) for table in ("rounds", "clients", "client_scores")]
    for before, after in zip(whole, blocks, strict=True):
        assert before.keys() == after.keys()
        for name, column in before.items():
            assert column.dtype == after[name].dtype
            assert np.array_equal(column, after[name], equal_nan=True)
    assert blocks[0]["extra"].tolist() == [1.5 * round for round in range(1, 8)]
