"""kill -9 at every named point of a run and at random times: what goes on from what is left ends the same."""

import platform
import re
import signal
from contextlib import closing

import numpy as np
import pytest
from fleet import POINTS, RUNS, STRUCK, THOROUGH, assert_same, gone

from fedweave.store.run_folder import RunFolder

KILLED = -signal.SIGKILL
ONLY_ON_RESUME = {"rewinding", "audit rewinding", "extending", "extended"}


def test_there_are_points():
    assert len(POINTS) >= 15


@pytest.mark.parametrize("name", STRUCK)
def test_a_kill_at_every_point(name, zygote, whole, tmp_path):
    """First passage, third, and the one after: the run begins, is in the middle, and has old states to forget."""
    reached = set()
    for point in POINTS:
        for nth in (1, 3, 4) if THOROUGH else (3,):
            folder = tmp_path / "run"
            strike = {"point": point, "nth": nth, "how": "SIGKILL"}
            if zygote(name, folder, strike=strike) == KILLED:
                reached.add(point)
                assert zygote(name, folder) == 0, point
            assert_same(folder, whole[name])
            gone(folder)
    never = ONLY_ON_RESUME | (
        set()
        if name in ("scaffold", "aware", "varp", "dropout", "buffered")
        else {"row being written", "rows being synced"}
    )
    once = set() if THOROUGH else {"folder made", "folder filled", "folder named"}
    assert set(POINTS) - reached <= never | once


def test_a_kill_while_workers_evaluate_a_round_and_train_the_next(zygote, tmp_path):
    """When a round has trained, the one before is not recorded yet, or just so."""
    assert zygote("workers", tmp_path / "whole") == 0
    for point, last in (("trained", 1), ("recorded", 2))[: None if THOROUGH else 1]:
        folder = tmp_path / point
        assert zygote("workers", folder, strike={"point": point, "nth": 3, "how": "SIGKILL"}) == KILLED
        with closing(RunFolder.open(folder, write=False)) as store:
            state = store.load_state(tables=None)
            assert state is not None
            assert state.round == last
        assert zygote("workers", folder) == 0
        assert_same(folder, tmp_path / "whole")


@pytest.mark.parametrize("point", POINTS if THOROUGH else POINTS[::3])
def test_killed_again_while_resuming(point, zygote, whole, tmp_path):
    """Three kills in a row, each resume struck at the same point; then one that is let alone."""
    folder = tmp_path / "run"
    assert zygote("scaffold", folder, strike={"point": "recorded", "nth": 3, "how": "SIGKILL"}) == KILLED
    for _ in range(3):
        zygote("scaffold", folder, strike={"point": point, "nth": 2, "how": "SIGKILL"})
    assert zygote("scaffold", folder) == 0
    assert_same(folder, whole["scaffold"])


@pytest.mark.parametrize("name", STRUCK)
def test_a_kill_at_random_times(name, zygote, whole, tmp_path):
    rng = np.random.default_rng(sorted(RUNS).index(name))
    for _ in range(100 if THOROUGH else 10):
        folder = tmp_path / "run"
        for _ in range(int(rng.integers(1, 4))):
            zygote(name, folder, after=float(rng.uniform(0, 0.25)))
        assert zygote(name, folder) == 0
        assert_same(folder, whole[name])
        gone(folder)


def test_one_writer_and_the_lock_of_a_dead_one(zygote, whole, tmp_path):
    """While a run is being written nobody else may; when its writer was killed, its lock is there and holds nobody."""
    folder = tmp_path / "run"
    assert zygote("scaffold", folder, strike={"point": "recorded", "nth": 3, "how": "SIGKILL"}) == KILLED
    left = (folder / ".lock").read_text()
    assert re.fullmatch(rf"process \d+ on {re.escape(platform.node())} since [-\d]+ [:\d]+\+00:00\nopen\n", left)
    with closing(RunFolder.open(folder)):
        held = (folder / ".lock").read_text()
        assert held != left
        code, _, err = zygote.command("resume", "run", cwd=tmp_path)
        assert code == 2
        assert (
            err == f"error: The run 'run' is being written by {held.splitlines()[0]}. Wait for it, or stop it first.\n"
        )
        assert (folder / ".lock").read_text() == held
    assert zygote("scaffold", folder) == 0
    assert_same(folder, whole["scaffold"])
