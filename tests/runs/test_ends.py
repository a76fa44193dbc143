"""When a run ends: at its target, without improvement, at another length, and what is at hand after Ctrl-C."""

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
from fedweave import flower
from fedweave.cli import app as cli
from fedweave.cli.verify import _runs_in
from fedweave.core import crash_points
from fedweave.engine import simulator
from fedweave.report import compare_rows, terminal_table
from fedweave.report.headline import _caveats
from fedweave.runs.loop import run_with
from fedweave.store import run_folder
from fedweave.store.run_folder import RunFolder
from flower.rehearsal import CLIENTS, app
from flower.rehearsal import experiment as on_digits
from flower.rehearsal import run as run_on
from interrupt import StopAfter
from laws.test_extension import assert_same, extended
from runs.test_overlap import Inline, experiment

FULL = 8


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Runs of eight rounds that nothing ends, evaluated in every round and in every second one."""
    folder = tmp_path_factory.mktemp("full")
    return {every: fw.run(ends(every), folder / str(every)) for every in (1, 2)}


def ends(every=1, **changes):
    """Return an experiment whose accuracy goes up and down."""
    given = {"rounds": FULL, "lr": 0.3, "evaluate_every": every, "method": fw.methods.fedavg(3), **changes}
    return experiment(**given)


def by_hand(values, target=None, patience=None, clock=None, seconds=np.inf):
    """Return after which round a run with this accuracy after each round ends; NaN: not evaluated."""
    best, since = -1.0, 0
    for r, value in enumerate(values.tolist(), 1):
        if np.isnan(value) or r == len(values):
            continue
        if target is not None and value >= target:
            return r
        best, since = (value, r) if value > best else (best, since)
        if patience is not None and r - since >= patience:
            return r
        if clock is not None and clock[r - 1] >= seconds:
            return r
    return len(values)


def cases(full):
    """Return settings that end the run in its middle, with the round in which they do."""
    found = []
    for every, result in full.items():
        values = result.rounds["accuracy"]
        target = np.nanmax(values[:5])
        goals = [{"target": float(target), "stop_at_target": True}, {"patience": 1}, {"patience": 2}, {"patience": 3}]
        clock = result.rounds["clock"]
        for goal in (*goals, {"stop_after": float(clock[4])}, {"stop_after": float(clock[1]) + 1e-6}):
            last = by_hand(values, goal.get("target"), goal.get("patience"), clock, goal.get("stop_after", np.inf))
            if last < FULL:
                found.append((every, goal, last))
    return found


def reason(goal):
    """Return why a run with this goal ends."""
    return "target" if "target" in goal else "patience" if "patience" in goal else "time"


def cut(result, last):
    """Return the rows of a run up to a round."""
    tables = ({k: v for k, v in t.items() if k != "wall_seconds"} for t in (result.rounds, result.clients))
    return [{k: v[t["round"] <= last] for k, v in t.items()} for t in tables]


def test_a_run_ends_where_its_rows_say_and_is_as_if_cut_there(full, tmp_path):
    """One after another, and where a pool evaluates each model beside the next round, which is then dropped."""
    tried = cases(full)
    assert {reason(goal) for _, goal, _ in tried} == {"target", "patience", "time"}
    assert {every for every, *_ in tried} == {1, 2}
    for n, (every, goal, last) in enumerate(tried):
        whole, given = full[every], ends(every, **goal)
        alone = fw.run(given, tmp_path / f"alone {n}")
        pool = run_with(given, tmp_path / f"pool {n}", (), None, Inline())
        for found in (alone, pool):
            np.testing.assert_equal(cut(found, FULL), cut(whole, last))
            assert found.summary["ended_early"] == reason(goal)
            assert found.summary["rounds"] == last
        assert_same(pool, alone)
        if every == 1:
            assert alone.summary["digest"] == fw.run(ends(rounds=last)).summary["digest"]
    assert fw.run(ends(target=1.0, stop_at_target=True)).summary["ended_early"] is None


def test_clients_are_evaluated_after_the_last_round_whenever_that_comes(full):
    every, goal, last = cases(full)[0]
    found = fw.run(ends(every, client_eval=FULL, **goal))
    assert set(found.client_scores["round"]) == {last}
    short = fw.run(ends(every, client_eval=FULL, rounds=last))
    np.testing.assert_equal(found.client_scores, short.client_scores)
    pool = run_with(ends(every, client_eval=FULL, **goal), None, (), None, Inline())
    np.testing.assert_equal(pool.client_scores, short.client_scores)
    assert found.summary["client_worst"] == short.summary["client_worst"]


def test_what_goes_wrong_in_a_round_that_is_dropped_does_not_matter(full, monkeypatch):
    every, goal, last = cases(full)[0]
    train = simulator.Simulator.train

    def failing(self, assignment):
        replies = train(self, assignment)
        if assignment.round == last + 1:
            raise RuntimeError("after the end")
        return replies

    monkeypatch.setattr(simulator.Simulator, "train", failing)
    assert run_with(ends(every, **goal), None, (), None, Inline()).summary["rounds"] == last
    with pytest.raises(RuntimeError, match="after the end"):
        run_with(ends(every), None, (), None, Inline())


def copies_of(folder, tmp_path, monkeypatch, often=False):
    """Return a list that gets a copy of the folder at every crash point, or whenever one is passed.

    It is what a kill there leaves behind.
    """
    monkeypatch.setattr(run_folder, "SAVE_SECONDS", 0)
    monkeypatch.setattr(run_folder, "SAVE_SHARE", 1)
    found = []

    def copy(point):
        if folder.exists() and (often or point not in dict(found)):
            found.append((point, tmp_path / f"killed {len(found)}"))
            shutil.copytree(folder, found[-1][1])

    monkeypatch.setattr(crash_points, "strike", copy)
    return found


def test_a_kill_at_every_point_before_an_early_end(full, tmp_path, monkeypatch):
    every, goal, _ = cases(full)[0]
    copies = copies_of(tmp_path / "run", tmp_path, monkeypatch, often=True)
    whole = run_with(ends(every, **goal), tmp_path / "run", (), None, Inline())
    monkeypatch.setattr(crash_points, "strike", None)
    final = copies[-1 - [point for point, _ in reversed(copies)].index("trained") :]  # when the next one has trained
    assert {"trained", "evaluated", "recorded", "state written", "committed"} <= {point for point, _ in final}
    for _, left in final:
        assert_same(fw.resume(left), whole)


def test_a_run_that_ended_early_is_finished(full, tmp_path, capsys):
    every, goal, last = cases(full)[0]
    found, told = fw.run(ends(every, **goal), tmp_path / "run"), []
    for again in (fw.resume(tmp_path / "run", callbacks=told.append), fw.load_result(tmp_path / "run")):
        assert again.summary == found.summary
    assert not told
    assert fw.resume(tmp_path / "run", rounds=FULL + 4).summary["rounds"] == last, "a longer run would have ended there"
    assert not told
    (row,) = compare_rows([found])
    assert (row["ended_early"], row["unfinished"]) == (1, 0)
    assert "ended at the target or by patience" in str(terminal_table([found]).caption)
    (caveat,) = _caveats([row])
    assert "ended at the target or by patience, as asked (1 of 1 of fedavg)" in caveat
    cli._say([found], None, as_json=False)
    assert f"note: fedavg, seed 3 ended after {last} of {FULL} rounds: it reached the target" in capsys.readouterr().err


def test_the_end_of_the_time_is_the_same_for_all_and_no_caveat_unless_rounds_ran_out(full):
    seconds = float(full[1].rounds["clock"][3])
    (row,) = compare_rows([fw.run(ends(stop_after=seconds))])
    assert (row["stop_after"], row["ended_early"], row["unfinished"], row["short"]) == (seconds, 0, 0, 0)
    assert _caveats([row]) == []
    (row,) = compare_rows([fw.run(ends(rounds=3, stop_after=seconds))])
    assert (row["unfinished"], row["short"]) == (0, 1)
    (caveat,) = _caveats([row])
    assert "all their rounds before the time was over (1 of 1 of fedavg)" in caveat


@pytest.mark.parametrize("goal", [{"target": 0.0, "stop_at_target": True}, {"patience": 1, "lr": 1e-6}], ids=str)
def test_a_longer_run_that_ended_early_says_that_it_does_nothing_and_why(goal, tmp_path, capsys):
    last = fw.run(ends(**goal), tmp_path / "run").summary["rounds"]
    again = fw.resume(tmp_path / "run", rounds=FULL + 4, progress=True)
    why = "it reached the target" if "target" in goal else "its metric no longer improved"
    assert f"fedavg-seed3: ended after round {last}, because {why}\n" in capsys.readouterr().err
    assert again.summary["rounds"] == last < FULL


def test_over_flower_a_run_ends_with_the_same_round(tmp_path):
    whole = fw.run(on_digits(rounds=6))
    target = float(whole.rounds["accuracy"][:4].max())
    same = on_digits(rounds=6, target=target, stop_at_target=True)
    found, simulated = run_on(same, flower.LocalGrid(app(), CLIENTS), out=tmp_path / "run"), fw.run(same)
    assert found.summary["digest"] == simulated.summary["digest"]
    assert found.summary["rounds"] == simulated.summary["rounds"] == by_hand(whole.rounds["accuracy"], target) < 6
    again = run_on(same, flower.LocalGrid(app(), CLIENTS), out=tmp_path / "run")
    assert again.summary["rounds"] == found.summary["rounds"]
    longer = run_on(on_digits(rounds=2), flower.LocalGrid(app(), CLIENTS), out=tmp_path / "short")
    assert longer.summary["rounds"] == 2
    longer = run_on(on_digits(rounds=4), flower.LocalGrid(app(), CLIENTS), out=tmp_path / "short")
    assert longer.summary["digest"] == fw.run(on_digits(rounds=4)).summary["digest"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop_at_target": True}, "'stop_at_target' needs a 'target'"),
        ({"patience": 3, "evaluate": "train"}, "'patience' uses the metric on the test set"),
        ({"stop_after": 0}, "'stop_after' parameter of Experiment must be greater than 0"),
        ({"patience": 0}, "'patience' parameter of Experiment must be greater than 0"),
    ],
)
def test_ends_that_cannot_come_are_refused(changes, words):
    with pytest.raises(fw.BadInput, match=words):
        ends(**changes)


def test_rounds_one_by_one_evaluate_nothing():
    with pytest.raises(fw.BadInput, match=r"fedweave\.rounds evaluates nothing"):
        next(fw.rounds(ends(patience=2)))


# Another length


@pytest.mark.parametrize("changes", [{"evaluate": "train,test"}, {"patience": 1, "evaluate_every": 1}], ids=str)
def test_a_kill_at_every_point_of_an_extension(changes, tmp_path, monkeypatch):
    """The run has its old length or the new one, and goes on either way; the round that is done again is saved."""
    short = extended(fw.methods.scaffold(3), **changes)
    whole = fw.run(replace(short, rounds=5), tmp_path / "whole")
    fw.run(short, tmp_path / "run")
    copies = copies_of(tmp_path / "run", tmp_path, monkeypatch)
    assert_same(fw.resume(tmp_path / "run", rounds=5), whole)
    monkeypatch.setattr(crash_points, "strike", None)
    points = [point for point, _ in copies]
    assert {"extending", "extended"} <= set(points)
    for point, left in copies:
        with closing(RunFolder.open(left, write=False)) as store:
            length, state = store.experiment["rounds"], store.load_state(None)
            assert length == (3 if point == "extending" else 5)
            assert store.manifest["experiment"]["rounds"] == length
            assert state is not None
            assert store.columns("rounds")["round"][-1] == state.round
        assert_same(fw.resume(left, rounds=5) if point == "extending" else fw.resume(left), whole)


def test_the_last_state_before_an_extra_evaluation_is_kept_and_others_are_found(tmp_path):
    """Only one round is done again; where that state is not there, as of older runs, all of them."""
    short, rows = extended(fw.methods.fedavg(3)), []
    whole = fw.run(replace(short, rounds=5), tmp_path / "whole")
    for name in ("run", "older"):
        fw.run(short, tmp_path / name)
    assert sorted(p.name for p in (tmp_path / "run").glob("state-*")) == [
        "state-000002.safetensors",
        "state-000003.safetensors",
    ]
    assert_same(fw.resume(tmp_path / "run", rounds=5, callbacks=rows.append), whole)
    assert [row["round"] for row in rows] == [3, 4, 5]
    with closing(RunFolder.open(tmp_path / "older")) as store:
        store._db.execute("DELETE FROM states WHERE round = 2")
    rows.clear()
    assert_same(fw.resume(tmp_path / "older", rounds=5, callbacks=rows.append), whole)
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]


def test_an_interrupted_run_gets_another_length_and_a_later_resume_and_report_know(tmp_path):
    short = extended(fw.methods.fedavg(3), rounds=9)
    with pytest.raises(fw.Interrupted):
        fw.run(short, tmp_path / "run", StopAfter(3))
    with pytest.raises(fw.Interrupted):
        fw.resume(tmp_path / "run", rounds=6, callbacks=StopAfter(4))
    assert fw.load_result(tmp_path / "run").experiment["rounds"] == 6
    assert_same(fw.resume(tmp_path / "run"), fw.run(replace(short, rounds=6), tmp_path / "whole"))
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["rounds"] == 9, "the log is chained to it"
    (row,) = compare_rows([fw.load_result(tmp_path / "run")])
    assert row["unfinished"] == 0
    assert_same(fw.resume(tmp_path / "run", short, rounds=7), fw.run(replace(short, rounds=7), tmp_path / "whole 7"))


@pytest.mark.parametrize(
    ("changes", "rounds", "words"),
    [
        ({}, 2, "has done 3 of its 3 rounds, so 'rounds' must be more. Got 2"),
        ({}, 0, "'rounds' parameter of Experiment must be greater than 0"),
        (
            {"lr": "warmup:2, cosine:0.1"},
            5,
            "cosine:0.1:0.0 depends on the number of rounds: in a run of 5 instead of 3",
        ),
        ({"method": replace(fw.methods.fedavg(3), lr="cosine:0.1")}, 5, "depends on the number of rounds"),
    ],
)
def test_a_length_that_a_run_cannot_have_is_refused_and_changes_nothing(changes, rounds, words, tmp_path):
    before = fw.run(extended(**{"method": fw.methods.fedavg(3)} | changes), tmp_path / "run")
    with pytest.raises(fw.BadInput, match=words.replace(".", r"\.")):
        fw.resume(tmp_path / "run", rounds=rounds)
    assert fw.resume(tmp_path / "run").summary == before.summary
    assert fw.resume(tmp_path / "run", rounds=3).summary == before.summary, "the length that it has"


def test_an_extension_that_is_refused_for_other_reasons_changes_nothing(tmp_path, tiny):
    short = tiny(rounds=3, evaluate_every=2)
    fw.run(short, tmp_path / "run")
    with pytest.raises(fw.BadInput, match="The data has changed since this run began"):
        fw.resume(tmp_path / "run", replace(short, data=short.data.split(0.2)), rounds=5)
    left = fw.load_result(tmp_path / "run")
    assert (left.experiment["rounds"], left.summary["rounds"]) == (3, 3)


def test_a_whole_comparison_is_extended_also_after_a_kill(tmp_path, monkeypatch):
    methods, short = [fw.methods.fedavg(3), fw.methods.scaffold(3)], extended("fedavg", audit=True)
    whole = fw.compare(methods, replace(short, rounds=5), out=tmp_path / "whole").results
    fw.compare(methods, short, out=tmp_path / "c")
    copies = copies_of(tmp_path / "c", tmp_path, monkeypatch)
    fw.resume_comparison(tmp_path / "c", rounds=5)
    monkeypatch.setattr(crash_points, "strike", None)
    points = [point for point, _ in copies]
    where = [points.index("compare: extending"), points.index("extended"), points.index("compare: run finished")]
    for place in (tmp_path / "c", *(copies[at][1] for at in where)):
        done = fw.resume_comparison(place, rounds=5) if place == copies[where[0]][1] else fw.resume_comparison(place)
        for found, wanted in zip(done.results, whole, strict=True):
            assert_same(found, wanted)
    with pytest.raises(fw.BadInput, match="has done 5 of its 5 rounds"):
        fw.resume_comparison(tmp_path / "c", rounds=4)
    wavy = [replace(m, lr="cosine:0.1") for m in methods]
    fw.compare(wavy, short, out=tmp_path / "wavy")
    with pytest.raises(fw.BadInput, match="depends on the number of rounds"):
        fw.resume_comparison(tmp_path / "wavy", rounds=5)
    assert [r.summary["rounds"] for r in fw.resume_comparison(tmp_path / "wavy").results] == [3, 3]


def test_a_run_of_a_comparison_is_not_extended_alone(tmp_path, monkeypatch):
    """The others would have another length, and the comparison could neither go on nor compare; a copy can have it."""
    methods, short = [fw.methods.fedavg(3), fw.methods.scaffold(3)], extended("fedavg")
    fw.compare(methods, short, out=tmp_path / "c")
    before = files_in(tmp_path / "c")
    monkeypatch.chdir(tmp_path / "c" / "fedavg-seed0")
    for folder, whole in ((tmp_path / "c" / "fedavg-seed0", tmp_path / "c"), (Path(), "..")):
        with pytest.raises(fw.BadInput, match=rf"resume {whole} --rounds 5` extends all of them; .* copy"):
            fw.resume(folder, rounds=5)
    assert files_in(tmp_path / "c") == before
    assert fw.resume(tmp_path / "c" / "fedavg-seed0", rounds=3).summary["rounds"] == 3, "the length that all have"
    shutil.copytree(tmp_path / "c" / "fedavg-seed0", tmp_path / "copy")
    whole = fw.run(replace(short, method=methods[0], rounds=5), tmp_path / "whole")
    assert_same(fw.resume(tmp_path / "copy", rounds=5), whole)
    with pytest.raises(fw.Interrupted):
        fw.resume_comparison(tmp_path / "c", rounds=6, callbacks=StopAfter(4))
    assert fw.resume(tmp_path / "c" / "scaffold-seed0", rounds=6).summary["rounds"] == 6, "as the comparison will"
    assert [r.summary["rounds"] for r in fw.resume_comparison(tmp_path / "c").results] == [6, 6]


def test_no_part_of_a_sweep_is_extended(tiny, tmp_path):
    fw.sweep(["fedavg"], tiny(rounds=1), {"lr": [0.01, 0.1]}, out=tmp_path / "s")
    before, best = files_in(tmp_path / "s"), tmp_path / "s" / "best"
    for part in (tmp_path / "s" / "fedavg-lr0.1-seed0", best, best / "fedavg-seed1"):
        call = fw.resume_comparison if part == best else fw.resume
        with pytest.raises(fw.BadInput, match=r"part of the sweep \S*/s', which cannot be extended.*copy"):
            call(part, rounds=2)
    assert files_in(tmp_path / "s") == before
    assert len(fw.resume_comparison(tmp_path / "s").results) == 2
    assert next(run.name for run in _runs_in(tmp_path / "s")) == "fedavg-seed1", "verify finds those of the best points"
    shutil.copytree(best, tmp_path / "copy")
    assert [r.summary["rounds"] for r in fw.resume_comparison(tmp_path / "copy", rounds=2).results] == [2]


def files_in(folder):
    """Return the files of a comparison with their bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_how_to_repeat_a_run_names_the_rounds_that_it_was_extended_to(tmp_path):
    methods, short = [fw.methods.fedavg(3), fw.methods.fedprox(3)], extended("fedavg", audit=False)
    with pytest.raises(fw.Interrupted):
        fw.compare(methods, short, out=tmp_path / "c", callbacks=StopAfter(3), command="fedweave compare --rounds 3 -q")
    found, wanted = fw.resume_comparison(tmp_path / "c", rounds=5), "fedweave compare -q --rounds 5"
    assert {r.manifest["command"] for r in found.results} == {wanted}, "the second began later"
    loaded = [fw.load_result(r.folder) for r in found.results]
    assert re.findall("<code>(fedweave .*?)</code>", fw.Comparison(loaded).report(tmp_path / "p.html").read_text()) == [
        wanted
    ]


def test_how_to_repeat_a_comparison_that_was_given_seeds_and_rounds_is_one_command(tmp_path):
    methods, short = [fw.methods.fedavg(3), fw.methods.fedprox(3)], extended("fedavg", audit=False)
    fw.compare(methods, short, 2, tmp_path / "c", command="fedweave compare --rounds 3 --seeds 2 -q")
    fw.resume_comparison(tmp_path / "c", seeds=3)
    found = fw.resume_comparison(tmp_path / "c", seeds=4, rounds=5)
    for results in (found.results, [fw.load_result(r.folder) for r in found.results]):
        page = fw.Comparison(results).report(tmp_path / "p.html").read_text()
        assert re.findall("<code>(fedweave .*?)</code>", page) == ["fedweave compare -q --rounds 5 --seeds 4"]


def test_a_run_and_a_comparison_are_continued_by_functions_of_their_own(tmp_path):
    short = extended("fedavg", audit=False)
    fw.compare(["fedavg"], short, out=tmp_path / "c")
    with pytest.raises(fw.BadInput, match=r"c' holds several runs: `fedweave\.resume_comparison` continues them"):
        fw.resume(tmp_path / "c")
    with pytest.raises(fw.BadInput, match=r"holds a single run: `fedweave\.resume` continues it"):
        fw.resume_comparison(tmp_path / "c" / "fedavg-seed0")
    with pytest.raises(fw.BadInput, match=r"holds a comparison, which differs in its runs\."):
        fw.sweep(["fedavg"], short, {"lr": [0.1]}, out=tmp_path / "c")


@pytest.mark.parametrize(
    ("typed", "after"),
    [
        ("compare fedavg --rounds 3 --lr '0.1, 0.01@2'", "compare fedavg --lr '0.1, 0.01@2' --rounds 5"),
        ("run fedavg --rounds=3 --json", "run fedavg --json --rounds 5"),
        ("run three.toml --set rounds=3 --set lr=1", "run three.toml --set lr=1 --rounds 5"),
        ("run --set=rounds=3 three.toml", "run three.toml --rounds 5"),
        ("run three.toml", "run three.toml --rounds 5"),
        ("sweep fedavg --rounds 3 --over lr=1,2", "sweep fedavg --over lr=1,2 --rounds 5"),
    ],
)
def test_a_command_line_is_given_other_rounds(typed, after):
    assert run_folder.with_rounds(f"fedweave {typed}", 5) == f"fedweave {after}"


def test_other_commands_are_kept_as_they_are(tmp_path):
    short = extended(fw.methods.fedavg(3), audit=False)
    for n, command in enumerate((None, "python mine.py --rounds 3", "fedweave runs --rounds 3")):
        fw.run(short, tmp_path / str(n), command=command)
        assert fw.resume(tmp_path / str(n), rounds=4).manifest["command"] == command


# Ctrl-C


def test_an_interrupted_comparison_has_the_runs_so_far(tmp_path):
    """With a folder also those that an earlier call has begun, and are further down the list."""
    methods, short = ["fedavg", "fedprox", "scaffold"], extended("fedavg")
    for out in (None, tmp_path / "c"):
        with pytest.raises(fw.Interrupted) as stopped:
            fw.compare(methods, short, out=out, callbacks=StopAfter(2, run=2))
        assert isinstance(stopped.value.result, fw.Comparison)
        found = {r.summary["method"]: r.summary["rounds"] for r in stopped.value.result.results}
        assert found == {"fedavg": 3, "fedprox": 2}
        assert [row["unfinished"] for row in stopped.value.result.summary] == [0, 1]
        assert stopped.value.folder == out
    fw.resume_comparison(tmp_path / "c")
    with pytest.raises(fw.Interrupted) as stopped:
        fw.resume_comparison(tmp_path / "c", rounds=5, callbacks=StopAfter(4, run=1))
    found = [(r.summary["method"], r.summary["rounds"]) for r in stopped.value.result.results]
    assert found == [("fedavg", 4), ("fedprox", 3), ("scaffold", 3)]

    class AtOnce(fw.Callback):
        def begin(self, run):
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted) as stopped:
        fw.compare(methods, short, callbacks=AtOnce())
    assert list(stopped.value.result.results) == []
