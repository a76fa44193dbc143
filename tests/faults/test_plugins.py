"""A user's module with a sampler, a task and a model: named on the command line, run, killed, resumed and reported."""

import json
import shutil
import signal
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[1] / "plugin_module.py"
PARTS = "--data mine:load --model mine:net --task mine:task --partition mine:Halves --system mine:Slow"
SMALL = f"{PARTS} --clients 4 --per-round 2 --rounds 4 --steps 2 --workers 1 --json"
WAY = "If you trust the folder, resume with --trust (in Python with trust=True)."


@pytest.fixture
def folder(tmp_path):
    shutil.copy(MODULE, tmp_path / "mine.py")
    return tmp_path


def test_killed_refused_trusted_reported(zygote, folder):
    code, out, err = zygote.command("run", "mine:quiet", SMALL, "--out", "whole", cwd=folder)
    assert code == 0, err
    whole = json.loads(out)
    assert (whole["method"], whole["metric"], whole["rounds"]) == ("quiet", "top_three", 4)

    strike = {"point": "recorded", "nth": 3, "how": "SIGKILL"}
    (folder / "out.txt").unlink()
    assert zygote.command("run", "mine:quiet", SMALL, "--out", "r", cwd=folder, strike=strike)[0] == -signal.SIGKILL
    code, out, err = zygote.command("resume", "r", cwd=folder)
    assert (code, out) == (2, "")
    names = ", ".join(f"mine:{name}" for name in ("load", "net", "task", "LongestSilent", "Clips", "Halves", "Slow"))
    assert err == f"error: Plug-ins are not imported because a run folder names them: {names}. {WAY}\n"
    for words in ("report r --json", "export r", "verify r"):
        code, _, err = zygote.command(words, cwd=folder, plain_page=True)
        assert (code, err) == (0, "")

    code, out, err = zygote.command("resume r --trust --json", cwd=folder)
    assert code == 0, err
    resumed = json.loads(out)
    same = [name for name in whole if name not in ("run", "wall_seconds")]
    assert [resumed[name] for name in same] == [whole[name] for name in same]


def test_a_comparison_of_plug_ins_goes_on(zygote, folder):
    words = ["compare", "mine:quiet mine:everyone fedavg", SMALL, "--out", "c"]
    strike = {"point": "compare: run finished", "nth": 1, "how": "SIGKILL"}
    assert zygote.command(*words, cwd=folder, strike=strike)[0] == -signal.SIGKILL
    assert zygote.command("resume", "c", cwd=folder)[0] == 2
    code, out, err = zygote.command("resume c --trust --json", cwd=folder, plain_page=True)
    assert code == 0, err
    runs = json.loads(out)["runs"]
    assert [run["method"] for run in runs] == ["quiet", "all_of_them", "fedavg"]
    code, out, err = zygote.command("run", "fedavg", SMALL, "--out", "alone", cwd=folder)
    assert json.loads(out)["digest"] == runs[2]["digest"]


def test_the_current_folder_shadows_nothing_unless_a_plug_in_is_named(zygote, folder):
    """Somebody else's folder may hold a module with the name of one that a command imports."""
    (folder / "ray.py").write_text("raise SystemExit('imported')")
    (folder / "mine.py").write_text("raise SystemExit('imported')")
    code, _, err = zygote.command("run fedavg --data digits --rounds 1 --workers 1 --out r", cwd=folder)
    assert code == 0, err
    code, _, err = zygote.command("run", "mine:quiet", cwd=folder)
    assert (code, err.splitlines()[0]) == (
        2,
        "error: The module mine cannot be imported: SystemExit: imported (mine.py:1).",
    )
