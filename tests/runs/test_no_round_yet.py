"""Comparisons and sweeps of which a run was killed after its first state was written, but before it was committed."""

import json

import pytest

import fedweave as fw
from fedweave.cli import app as cli
from fedweave.core import crash_points
from fedweave.runs import compare as comparing
from fedweave.runs.folders import runs_in
from fedweave.runs.sweep import load_sweep, plan_sweep

LRS = {"lr": [0.01, 0.1]}


class Killed(BaseException):
    """Stands for a kill: nobody catches it."""


@pytest.fixture(params=["state written", "file renamed"])
def kill(request, monkeypatch):
    """Return a function that does something until it is killed as this run writes its first state."""

    def until(run, something):
        dead = []

        def strike(at):
            if dead or (at == request.param and list(run.glob("state-*"))):
                dead.append(at)  # from now on nothing more is written
                raise Killed

        monkeypatch.setattr(crash_points, "strike", strike)
        with pytest.raises(Killed):
            something()
        monkeypatch.setattr(crash_points, "strike", None)
        with pytest.raises(fw.BadInput, match="has no finished round yet"):
            fw.load_result(run)

    return until


def reported(folder, capsys):
    """Return what report and export say of a folder."""
    capsys.readouterr()
    cli.report(folder, json=True)
    found = json.loads(capsys.readouterr().out)
    cli.export(folder)
    return found, capsys.readouterr().out.split()


def test_a_comparison_is_shown_without_the_run_that_has_no_round(kill, tiny, tmp_path, capsys):
    methods, folder = ["fedavg", "fedprox"], tmp_path / "c"
    kill(folder / "fedprox-seed0", lambda: fw.compare(methods, tiny(rounds=1), out=folder))
    found, files = reported(folder, capsys)
    assert [run["method"] for run in found["runs"]] == ["fedavg"]
    assert [file.removeprefix(f"{folder}/") for file in files] == [
        "fedavg-seed0/rounds.csv", "fedavg-seed0/clients.csv", "summary.csv",
    ]  # fmt: skip
    runs = {place.name: tiny(rounds=1) for place in runs_in(folder)}
    assert comparing.count_left(folder, runs) == 1, "its last state has a file, but is not committed"
    whole = fw.compare(methods, tiny(rounds=1))
    assert [r.summary["digest"] for r in fw.resume_comparison(folder).results] == [
        r.summary["digest"] for r in whole.results
    ]


def test_a_comparison_without_any_round_names_the_whole_of_it(kill, tiny, tmp_path):
    kill(tmp_path / "c" / "fedavg-seed0", lambda: fw.compare(["fedavg"], tiny(rounds=1), out=tmp_path / "c"))
    with pytest.raises(fw.BadInput, match=rf"no finished round yet. `fedweave resume {tmp_path}/c` continues it"):
        cli.report(tmp_path / "c")


def test_runs_that_lost_their_states_are_shown_beside_the_others(tiny, tmp_path, capsys):
    fw.compare(["fedavg", "fedprox"], tiny(rounds=1), out=tmp_path / "c")
    for state in (tmp_path / "c" / "fedprox-seed0").glob("state-*"):
        state.unlink()
    with pytest.warns(UserWarning, match="lost its model; only its rows are read|missing or damaged"):
        found, _ = reported(tmp_path / "c", capsys)
    assert [run["method"] for run in found["runs"]] == ["fedavg", "fedprox"]


def test_a_sweep_is_shown_without_the_run_that_has_no_round(kill, tiny, tmp_path, capsys):
    folder = tmp_path / "s"
    kill(folder / "fedavg-lr0.1-seed0", lambda: fw.sweep(["fedavg"], tiny(rounds=1), LRS, out=folder))
    assert load_sweep(folder).points == [{"lr": 0.01}]
    found, files = reported(folder, capsys)
    assert [run["point"] for run in found["runs"]] == [{"lr": 0.01}]
    assert files[-1] == str(folder / "summary.csv")


@pytest.mark.parametrize("changes", [{}, {"target": 0.0, "stop_at_target": True}], ids=["", "ends early"])
def test_a_sweep_is_shown_without_the_test_that_has_no_round(changes, kill, tiny, tmp_path, capsys):
    folder, arguments = tmp_path / "s", (["fedavg", "fedyogi"], tiny(rounds=2, **changes), LRS)
    kill(folder / "best" / "fedyogi-seed1", lambda: fw.sweep(*arguments, out=folder))
    assert [r.summary["method"] for r in load_sweep(folder).tested.results] == ["fedavg"]
    found, _ = reported(folder, capsys)
    assert (len(found["runs"]), [run["method"] for run in found["tested"]]) == (4, ["fedavg"])
    assert comparing.count_left(folder, plan_sweep(*arguments).runs) == 1
