"""Look at a run without changing anything in its folder, whoever writes it meanwhile."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from fedweave.core.settings import BadInput
from fedweave.store import lock
from fedweave.store.database import observe
from fedweave.store.run_folder import RunFolder
from watch.folders import Writer, contents, made


def count(folder):
    with closing(observe(folder)) as db:
        return db.execute("SELECT COUNT(*) FROM rounds").fetchone()[0]


def test_a_finished_run_is_read_and_left_as_it_is(tmp_path):
    folder = made(tmp_path / "run", rounds=5)
    before = contents(tmp_path)
    assert "run/run.sqlite-wal" not in before
    assert count(folder) == 5
    assert contents(tmp_path) == before


def test_a_connection_cannot_write(tmp_path):
    with closing(observe(made(tmp_path / "run"))) as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM rounds")


def test_a_run_under_way_is_seen_as_it_was_saved_last_and_goes_on_undisturbed(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer("add 2", "save", "add 1")
        before = contents(tmp_path)
        assert {"run/run.sqlite-wal", "run/run.sqlite-shm"} <= before.keys()
        with closing(observe(writer.folder)) as db:  # open while the run goes on, and saves
            assert db.execute("SELECT COUNT(*) FROM rounds").fetchone() == (2,)
            assert contents(tmp_path) == before
            assert lock.is_held(writer.folder) is True
            writer("save", "add 1", "save")
        assert count(writer.folder) == 4
        writer("close")
        assert lock.is_held(writer.folder) is False
        assert count(writer.folder) == 4
    assert not (tmp_path / "run/run.sqlite-wal").exists(), "the writer was the last to close, and cleaned up"


def test_what_a_killed_run_left_is_read_from_its_log(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer("add 3", "save", "add 1")
    before = contents(tmp_path)
    assert before["run/run.sqlite-wal"][2] > 0
    assert lock.is_held(tmp_path / "run") is False
    assert count(tmp_path / "run") == 3
    assert contents(tmp_path) == before
    (tmp_path / "run/run.sqlite-shm").unlink()  # as where a folder was copied without it
    before = contents(tmp_path)
    assert count(tmp_path / "run") == 3
    assert contents(tmp_path) == before
    with closing(RunFolder.open(tmp_path / "run")) as store:  # and it can still be continued
        assert store.load_state().round == 3


def test_a_run_can_begin_while_somebody_looks_whether_it_is_held(tmp_path):
    """Nobody takes the lock to find out: a number that belongs to another process, or text, is no holder."""
    folder = made(tmp_path / "run")
    assert lock.is_held(folder) is False
    with closing(lock.take(folder)):
        assert lock.is_held(folder) is True
        with pytest.raises(BadInput, match="is being written"):
            lock.take(folder)
    text = (folder / ".lock").read_text()
    assert lock.is_held(folder) is False, "this process lives, but has closed the file"
    (folder / ".lock").write_text(text.replace("process ", "process 9"))
    assert lock.is_held(folder) is False
    for unknown in (text.replace(" on ", " on another-"), "\x00", ""):
        (folder / ".lock").write_text(unknown)
        assert lock.is_held(folder) is None
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to("/dev/zero")
    assert lock.is_held(folder) is None


def test_links_and_forged_journals_are_refused(tmp_path):
    folder = made(tmp_path / "run")
    (folder / "run.sqlite-journal").write_text("x")
    with pytest.raises(BadInput, match="no part of a run"):
        observe(folder)
    shutil.move(folder / "run.sqlite", tmp_path / "elsewhere")
    (folder / "run.sqlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link"):
        observe(folder)
