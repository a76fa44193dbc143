"""kill -9 of a sweep at random moments: the same command, or resume, goes on, and the table is the same in the end."""

import json
import signal

import numpy as np
import pytest
from fleet import THOROUGH

KILLED = -signal.SIGKILL
SMALL = "sweep fedavg fedyogi --data digits --clients 7 --per-round 3 --rounds 3 --workers 1 --over lr=0.01,0.1"
ROUNDLY = ("stepped", "evaluated", "recorded", "committed")  # points that every round passes
WHOLE = (
    "sweep fedavg fedprox fedyogi --data digits --clients 10 --partition dirichlet:0.5 --rounds 8 --workers 1 "
    "--over lr=0.01,0.05,0.1"
)


def words(sweep, seeds):
    return [*sweep.split(), "--seeds", str(seeds), "--out", "s", "--json"]


def table(out):
    """Return what a sweep printed, without what tells the time or the folder."""
    found = json.loads(out)
    runs = [{k: v for k, v in run.items() if k != "wall_seconds"} for run in found["runs"] + found["tested"]]
    return runs, found["summary"], found["best"]


def done(zygote, argv, cwd):
    cwd.mkdir(exist_ok=True)
    code, out, err = zygote.command(*argv, cwd=cwd, plain_page=True)
    assert code == 0, err
    return table(out)


def test_a_sweep_killed_among_its_runs_and_among_the_tests_of_the_best(zygote, tmp_path):
    argv = words(f"{SMALL} --validation 0.3", 1)
    wanted = done(zygote, argv, tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    for point, nth in (("compare: folder made", 1), ("committed", 5), ("compare: run finished", 5), ("committed", 2)):
        strike = {"point": point, "nth": nth, "how": "SIGKILL"}
        resumes = (tmp_path / "killed" / "s" / "compare.json").exists() and nth % 2
        again = ["resume", "s", "--json"] if resumes else argv
        assert zygote.command(*again, cwd=tmp_path / "killed", strike=strike, plain_page=True)[0] == KILLED
    assert (tmp_path / "killed" / "s" / "best" / "compare.json").exists()
    assert done(zygote, argv, tmp_path / "killed") == wanted


@pytest.mark.skipif(not THOROUGH, reason="half a minute: make faults")
def test_three_rates_three_methods_five_seeds_killed_five_times_at_random(zygote, tmp_path):
    """45 runs and 15 tests: the same table as undisturbed, by the same command or by resume."""
    argv, rng = words(WHOLE, 5), np.random.default_rng(3)
    wanted = done(zygote, argv, tmp_path / "whole")
    assert [len(part) for part in wanted] == [60, 9, 3]
    killed, kills = tmp_path / "killed", 0
    killed.mkdir()
    for n in range(5):
        begun = (killed / "s" / "compare.json").exists()
        again = ["resume", "s", "--json"] if begun and n % 2 else argv
        nth = int(rng.integers(1, 130))  # of the 480 rounds, of which fewer are left each time
        strike = {"point": str(rng.choice(ROUNDLY)), "nth": nth, "how": "SIGKILL"}
        kills += zygote.command(*again, cwd=killed, strike=strike, plain_page=True)[0] == KILLED
    assert kills == 5
    assert done(zygote, argv, killed) == wanted
