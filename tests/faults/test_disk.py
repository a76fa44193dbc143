"""A disk that is full, a folder that cannot be written: the last state is intact, and what goes on ends the same."""

import os
import resource
import signal
import sys

import pytest
from fleet import POINTS, assert_same

import fedweave as fw
from fedweave.store.files import NotStored, storing, write_file

WRITES = dict.fromkeys(["file opened", "file written", "file synced", "file renamed"], 5)  # two of the new folder first
WRITES |= dict.fromkeys(["row being written", "rows being synced", "committing", "committed", "state forgotten"], 3)


def test_these_are_points():
    assert set(WRITES) <= set(POINTS)


@pytest.mark.parametrize("point", WRITES)
def test_a_full_disk_at_every_write(point, zygote, whole, tmp_path):
    """From some passage on every write fails, so the last attempt to save fails too."""
    folder = tmp_path / "run"
    assert zygote("aware", folder, strike={"point": point, "nth": WRITES[point], "how": "full"}) == 1
    told = (tmp_path / "error.txt").read_text()
    assert told.startswith("NotStored: ")
    assert str(folder) in told
    assert "No space left on device" in told
    assert "bytes free" in told
    assert zygote("aware", folder) == 0
    assert_same(folder, whole["aware"])


def test_a_state_that_does_not_fit_says_how_large_it_is(tmp_path):
    told = r"state' cannot be written: No space left on device \(7 bytes needed, [\d,]+ bytes free\)"
    with pytest.raises(NotStored, match=told), storing(tmp_path / "state", 7):
        raise OSError(28, "No space left on device")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are a POSIX thing")
def test_a_real_limit_leaves_the_old_file(tmp_path):
    """The system itself refuses to write more than so many bytes: the file of that name stays what it was."""
    path = tmp_path / "state"
    write_file(path, b"old")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(NotStored, match="File too large"), storing(path, 10_000):
            write_file(path, bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_became_read_only(zygote, whole, tmp_path):
    folder = tmp_path / "run"
    zygote("scaffold", folder, strike={"point": "recorded", "nth": 3, "how": "kill"})
    folder.chmod(0o500)
    try:
        assert zygote("scaffold", folder) == 1
    finally:
        folder.chmod(0o700)
    assert zygote("scaffold", folder) == 0
    assert_same(folder, whole["scaffold"])


def test_a_place_that_cannot_be_a_folder(zygote, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert zygote("scaffold", tmp_path / "file" / "run") == 1
    assert (tmp_path / "file").read_text() == "in the way"
    with pytest.raises(fw.BadInput, match="not a run folder"):
        fw.load_result(tmp_path)
