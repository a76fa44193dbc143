"""A disk that is full, a folder that cannot be written: the last state is intact, and what goes on ends the same."""

import json
import resource
import signal
import sys
from contextlib import contextmanager

import pytest
from fleet import POINTS, THOROUGH, assert_same

import fedweave as fw
from fedweave.tables.files import NotStored, storing, write_file

WRITES = dict.fromkeys(["file opened", "file written", "file synced", "file renamed"], 5)  # two of the new folder first
WRITES |= dict.fromkeys(["row being written", "rows being synced", "committing", "committed", "state forgotten"], 3)
WRITES |= dict.fromkeys(["audit opened", "audit written"], 3)


def test_these_are_points():
    assert set(WRITES) <= set(POINTS)


KINDS = {"ENOSPC": "No space left on device", "EROFS": "Read-only file system", "EACCES": "Permission denied"}
CASES = [(point, how) for point in WRITES for how in KINDS]


@pytest.mark.parametrize(("point", "how"), CASES if THOROUGH else CASES[::3] + CASES[1::6])
def test_a_disk_that_does_not_want_at_every_write(point, how, zygote, whole, tmp_path):
    """From some passage on every write fails, so the last attempt to save fails too."""
    folder = tmp_path / "run"
    assert zygote("aware", folder, strike={"point": point, "nth": WRITES[point], "how": how}) == 1
    told = (tmp_path / "error.txt").read_text()
    assert told.startswith("NotStored: ")
    assert str(folder) in told
    assert KINDS[how] in told
    assert "bytes free" in told
    assert zygote("aware", folder) == 0
    assert_same(folder, whole["aware"])


@pytest.mark.parametrize("point", POINTS if THOROUGH else ["sampled", "tables kept", "committed"])
def test_no_file_handles_left(point, zygote, whole, tmp_path):
    """The system itself refuses every file that the run would open from then on; what it has open it keeps."""
    folder = tmp_path / "run"
    nth = 9 if point == "row being written" else WRITES.get(point, 3)  # in a round after the first
    code = zygote("aware", folder, strike={"point": point, "nth": nth, "how": "no handles"})
    if code:
        told = (tmp_path / "error.txt").read_text()
        assert told.startswith("NotStored: ")
        assert "Too many open files" in told or "unable to open" in told
        assert f"{folder}/state-00000" in told, "the file is named"
        assert fw.load_result(folder).summary["rounds"] >= 1
        assert zygote("aware", folder) == 0
    else:
        assert point.endswith("rewinding") or point.startswith(("folder", "exten")), "passed too seldom"
    assert_same(folder, whole["aware"])


NEW = ["folder made", "file opened", "file written", "file synced", "folder filled"]


@pytest.mark.parametrize("point", [*NEW, "database"])
def test_a_disk_that_is_full_while_the_folder_is_made(point, zygote, whole, tmp_path):
    """Before the first round: one sentence, nothing is left, and the same command works once there is room."""
    folder = tmp_path / "run"
    strike = {"point": "folder filled" if point == "database" else point, "nth": 1, "how": "ENOSPC"}
    code = zygote("aware", folder, strike=strike | ({"how": "database"} if point == "database" else {}))
    assert code == 1
    said = (tmp_path / "error.txt").read_text()
    assert said.startswith(f"BadInput: '{folder}' cannot be written: ")
    assert "No space left on device" in said or "disk is full" in said
    (tmp_path / "error.txt").unlink()
    assert not list(tmp_path.iterdir())
    assert zygote("aware", folder) == 0
    assert_same(folder, whole["aware"])


@pytest.mark.skipif(sys.platform != "linux", reason="giving up root's rights is done as Linux does it")
def test_an_export_into_a_read_only_folder(zygote, tmp_path):
    folder = tmp_path / "run"
    assert zygote("scaffold", folder) == 0
    with read_only(folder):
        code, out, err = zygote.command("export", "run", cwd=tmp_path, as_anyone=True)
    assert (code, out) == (2, "")
    assert err == "error: 'run' cannot be written: Permission denied.\n"


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


@pytest.mark.skipif(sys.platform != "linux", reason="giving up root's rights is done as Linux does it")
def test_a_folder_that_became_read_only(zygote, whole, tmp_path):
    """Who goes on hears which file it is, and loses nothing."""
    folder = tmp_path / "run"
    zygote("scaffold", folder, strike={"point": "recorded", "nth": 3, "how": "SIGKILL"})
    with read_only(folder):
        assert zygote("scaffold", folder, as_anyone=True) == 1
        told = (tmp_path / "error.txt").read_text()
        code, out, err = zygote.command("resume", "run", cwd=tmp_path, as_anyone=True)
    assert told.startswith(f"NotStored: '{folder}/.lock' cannot be written: Permission denied")
    assert (code, out) == (1, "")
    assert err.startswith("error: 'run/.lock' cannot be written: Permission denied"), err
    assert "Traceback" not in err
    assert zygote("scaffold", folder) == 0
    assert_same(folder, whole["scaffold"])


@pytest.mark.skipif(sys.platform != "linux", reason="giving up root's rights is done as Linux does it")
@pytest.mark.parametrize("ended", ["killed", "finished"])
def test_a_read_only_folder_can_be_read(ended, zygote, tmp_path):
    folder = tmp_path / "run"
    strike = {"point": "recorded", "nth": 3, "how": "SIGKILL"}
    zygote("scaffold", folder, strike=strike if ended == "killed" else None)
    rounds = fw.load_result(folder).summary["rounds"]
    with read_only(folder):
        words = "report", "run", "--html", "page.html", "--json"
        code, out, err = zygote.command(*words, cwd=tmp_path, as_anyone=True)
    assert code == 0, err
    assert json.loads(out)["runs"][0]["rounds"] == rounds


@contextmanager
def read_only(folder):
    """Forbid to write the folder and its files, and see that nobody does."""
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for file in (*before, folder):
        file.chmod(0o500)
    yield
    for file in (folder, *before):
        file.chmod(0o700)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_a_place_that_cannot_be_a_folder(zygote, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert zygote("scaffold", tmp_path / "file" / "run") == 1
    assert (tmp_path / "file").read_text() == "in the way"
    with pytest.raises(fw.BadInput, match="not a run folder"):
        fw.load_result(tmp_path)
