"""Ctrl-C and SIGTERM at every named point: the state is saved, the way to go on is told, and it ends the same."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from fleet import POINTS, THOROUGH, WORLD

import fedweave as fw
from fedweave.cli import signals

CODES = {"SIGINT": 130, "SIGTERM": 143}
RUN = ["scaffold", *(word for name, value in WORLD.items() for word in (f"--{name.replace('_', '-')}", value))]
RUN += ["--tables", "disk", "--workers", "1"]
COMPARE = ["compare", "fedavg", *RUN]
ONCE = {"folder made", "folder filled", "folder named"}  # passed when a run begins
NEVER = {"rewinding", "audit rewinding", "extending", "extended"}  # passed only by a run that goes on
CASES = [(point, by) for point in POINTS for by in CODES]
CASES = CASES if THOROUGH else CASES[::4] + CASES[3::8]  # each of the two at some points


@pytest.fixture(scope="session")
def digests(zygote, tmp_path_factory):
    """What undisturbed programs say of their models: of the run, and of the comparison."""
    base = tmp_path_factory.mktemp("undisturbed")
    code, run, _ = zygote.command("run", *RUN, "--json", cwd=base)
    also, compared, _ = zygote.command(*COMPARE, "--json", cwd=base)
    assert (code, also) == (0, 0)
    return [json.loads(run)["digest"]], [r["digest"] for r in json.loads(compared)["runs"]]


def goes_on(zygote, folder, cwd):
    """Resume, and return the digests it comes to."""
    code, out, err = zygote.command("resume", folder, "--json", cwd=cwd)
    assert code == 0, err
    found = json.loads(out)
    return [run["digest"] for run in found.get("runs", [found])]


@pytest.mark.parametrize(("point", "by"), CASES)
def test_a_signal_at_every_point(point, by, zygote, digests, tmp_path):
    strike = {"point": point, "nth": 1 if point in ONCE else 3, "how": by}
    begin = time.monotonic()
    code, out, err = zygote.command("run", *RUN, "--out", "r", cwd=tmp_path, strike=strike)
    if point in NEVER:
        assert code == 0
        return
    assert time.monotonic() - begin < 30, "it hangs"
    assert (code, out) == (CODES[by], "")
    assert "Traceback" not in err
    if (tmp_path / "r").exists():
        assert err.endswith("the state is saved. Continue with: fedweave resume r\n"), err
        assert goes_on(zygote, "r", tmp_path) == digests[0]
    else:
        assert point in ONCE
        assert err.endswith("Stopped.\n")
        code, out, _ = zygote.command("run", *RUN, "--out", "r", "--json", cwd=tmp_path)
        assert [json.loads(out)["digest"]] == digests[0]


@pytest.mark.parametrize("by", CODES)
def test_a_signal_while_resuming(by, zygote, digests, tmp_path):
    zygote.command("run", *RUN, "--out", "r", cwd=tmp_path, strike={"point": "recorded", "nth": 2, "how": "SIGKILL"})
    for point, nth in (("rewinding", 1), ("stepped", 1), ("state written", 2)):
        code, _, err = zygote.command("resume", "r", cwd=tmp_path, strike={"point": point, "nth": nth, "how": by})
        assert code == CODES[by]
        assert err.endswith("the state is saved. Continue with: fedweave resume r\n"), err
    assert goes_on(zygote, "r", tmp_path) == digests[0]


@pytest.mark.parametrize(("by", "nth"), [("SIGINT", 2), ("SIGTERM", 9)])
def test_a_comparison_names_itself(by, nth, zygote, digests, tmp_path):
    """In the middle of its first run, and of its second."""
    strike = {"point": "recorded", "nth": nth, "how": by}
    code, out, err = zygote.command(*COMPARE, "--out", "c", cwd=tmp_path, strike=strike)
    assert (code, out) == (CODES[by], "")
    assert err.endswith("the state is saved. Continue with: fedweave resume c\n"), err
    assert goes_on(zygote, "c", tmp_path) == digests[1]


@pytest.mark.parametrize("by", CODES)
def test_a_signal_that_python_loses_is_heeded_after_the_round(by, zygote, digests, tmp_path):
    """What a handler raises in the midst of a finalizer is dropped: the run would go on as if nothing had been said."""
    strike = {"point": "sampled", "nth": 3, "how": f"lost {by}"}
    code, out, err = zygote.command("run", *RUN, "--out", "r", cwd=tmp_path, strike=strike)
    assert "Exception ignored in" in err, "it was not lost"
    assert (code, out) == (CODES[by], "")
    assert err.endswith("the state is saved. Continue with: fedweave resume r\n")
    assert fw.load_result(tmp_path / "r").summary["rounds"] == 3
    assert goes_on(zygote, "r", tmp_path) == digests[0]


def test_signals_at_random_times(zygote, digests, tmp_path):
    """Also while data is read and workers are made ready, and while the page of a comparison is written."""
    for n in range(200 if THOROUGH else 4):
        folder, (by, expected) = f"c{n}", list(CODES.items())[n % 2]
        code, _, err = zygote.command(*COMPARE, "--out", folder, cwd=tmp_path, after=(0.05 + 0.37 * n) % 0.9, by=by)
        assert code in (0, expected), err
        assert "Traceback" not in err or "Exception ignored in" in err, err
        if (tmp_path / folder / "compare.json").exists():
            assert code == 0 or f"fedweave resume {folder}\n" in err
            assert goes_on(zygote, folder, tmp_path) == digests[1]


def test_an_interrupt_while_a_library_is_loaded_is_one(tmp_path, monkeypatch):
    """C code that is interrupted while it is set up raises an ImportError, of which the interrupt is the cause."""
    (tmp_path / "compare.json").touch()
    with pytest.raises(ImportError), signals.resumable(tmp_path):
        raise ImportError("initialization failed")
    monkeypatch.setattr(signals, "stopped", [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt) as caught, signals.resumable(tmp_path):
        raise ImportError("initialization failed")
    assert caught.value.folder == tmp_path


@pytest.mark.parametrize("by", CODES if THOROUGH else ["SIGINT"])
def test_a_program_with_workers_is_stopped_by_its_terminal(by, tmp_path):
    """The signal goes to every process of the group, as Ctrl-C does; none of them stays behind."""
    words = ["compare", "fedavg", "fedprox", "--data", "digits", "--rounds", "99999", "--workers", "2", "--out", "c"]
    command = [sys.executable, "-m", "fedweave", *words]
    program = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline, workers = time.monotonic() + 60, []
    while not (workers and list(tmp_path.glob("c/*/run.sqlite-wal"))) and time.monotonic() < deadline:
        time.sleep(0.05)
        workers = psutil.Process(program.pid).children(recursive=True)
    begin = time.monotonic()
    os.killpg(program.pid, signal.Signals[by])
    _, err = program.communicate(timeout=30)
    assert time.monotonic() - begin < 30, "it hangs"
    assert program.returncode == CODES[by], err
    assert err.endswith("the state is saved. Continue with: fedweave resume c\n"), err
    assert "Traceback" not in err
    assert workers
    assert not psutil.wait_procs(workers, timeout=30)[1]


def test_an_interrupt_while_a_class_is_made_is_one(tmp_path, monkeypatch):
    """Before 3.12, Python makes a RuntimeError of whatever happens while a class gives its attributes their names."""

    class Named:
        def __set_name__(self, owner, name):
            signals.stop(signal.SIGINT, None)

    monkeypatch.setattr(signals, "stopped", [])
    with pytest.raises(KeyboardInterrupt), signals.unmasked():
        type("Made", (), {"attribute": Named()})
    with pytest.raises(RuntimeError), signals.unmasked():
        raise RuntimeError("the run failed")
