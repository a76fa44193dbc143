"""Look at a run without changing anything in its folder, whoever writes it meanwhile."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from fedweave.core.settings import BadInput
from fedweave.store import database, lock
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
            assert lock.writer(writer.folder) == "writing"
            writer("save", "add 1", "save")
        assert count(writer.folder) == 4
        writer("close")
        assert lock.writer(writer.folder) == "closed"
        assert count(writer.folder) == 4
    assert not (tmp_path / "run/run.sqlite-wal").exists(), "the writer was the last to close, and cleaned up"


@pytest.mark.parametrize("log_stays", [False, True])
def test_a_writer_that_ends_just_before_its_files_are_opened(tmp_path, monkeypatch, log_stays):
    """SQLite removes the index before the log; a reader may come between the two."""
    connect = sqlite3.connect
    with Writer(tmp_path / "run") as writer:
        writer("add 2", "save")

        def late(*args, **kwargs):
            monkeypatch.setattr(sqlite3, "connect", connect)
            writer("close")
            assert not (writer.folder / "run.sqlite-shm").exists()
            if log_stays:
                (writer.folder / "run.sqlite-wal").write_bytes(b"")
            return connect(*args, **kwargs)

        monkeypatch.setattr(sqlite3, "connect", late)
        assert count(writer.folder) == 2


def test_a_writer_that_ends_between_the_two_copies_loses_no_row(tmp_path, monkeypatch):
    """Its rows were in the log when the database was copied, and in the database when the log was."""
    with Writer(tmp_path / "run") as writer:
        writer("add 2", "save")
        (writer.folder / "run.sqlite-shm").unlink()  # so that it is copied
        plain = database.open_inside

        def late(path, mode):
            if path.name == "run.sqlite-wal":
                monkeypatch.setattr(database, "open_inside", plain)
                writer("close")
            return plain(path, mode)

        monkeypatch.setattr(database, "open_inside", late)
        assert count(writer.folder) == 2


def test_what_a_killed_run_left_is_read_from_its_log(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer("add 3", "save", "add 1")
    before = contents(tmp_path)
    assert before["run/run.sqlite-wal"][2] > 0
    assert lock.writer(tmp_path / "run") == "killed"
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
    assert lock.writer(folder) == "closed"
    with closing(lock.take(folder)):
        assert lock.writer(folder) == "writing"
        with pytest.raises(BadInput, match=r"is being written by process \d+ on \S+ since [-\d]+ [+:\d]+\. Wait"):
            lock.take(folder)
    text = (folder / ".lock").read_text()
    assert lock.writer(folder) == "killed", "this process lives, but has the file no more, and has not released it"
    older, elsewhere = text.removesuffix("\nopen\n"), text.replace(" on ", " on another-")
    for said, state in {
        text.replace("process ", "process 9"): "killed",
        text.replace("open", "closed"): "closed",
        elsewhere.replace("open", "closed"): "closed",
        older: "closed",  # did not mark what it closed
        elsewhere: "unknown",
        older.replace(" on ", " on another-"): "unknown",
        f"{text}open\n": "unknown",
        "\x00": "unknown",
        "": "unknown",
    }.items():
        (folder / ".lock").write_text(said)
        assert lock.writer(folder) == state, said
    lock.release(file := lock.take(folder))
    lock.release(file)
    assert lock.writer(folder) == "closed"
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to("/dev/zero")
    assert lock.writer(folder) == "unknown"


def test_a_folder_that_cannot_be_opened_is_released(tmp_path):
    folder = made(tmp_path / "run")
    (folder / "run.sqlite").write_bytes(b"noise" * 5000)
    with pytest.raises(BadInput, match="cannot be read"):
        RunFolder.open(folder)
    assert lock.writer(folder) == "closed"


def test_links_and_forged_journals_are_refused(tmp_path):
    folder = made(tmp_path / "run")
    (folder / "run.sqlite-journal").write_text("x")
    with pytest.raises(BadInput, match="no part of a run"):
        observe(folder)
    shutil.move(folder / "run.sqlite", tmp_path / "elsewhere")
    (folder / "run.sqlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link"):
        observe(folder)
