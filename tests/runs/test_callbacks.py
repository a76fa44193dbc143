"""Callbacks: told of the beginning, of every round, and of the end, whatever it is."""

from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
from fedweave.runs.callbacks import Running
from interrupt import StopAfter


class Diary(fw.Callback):
    def __init__(self):
        self.entries = []

    def begin(self, run):
        self.entries.append(("begin", run.name, run.rounds_done))

    def round(self, run, row, state):
        assert state.round == row["round"]
        self.entries.append(("round", run.name, row["round"], state.x.copy()))

    def end(self, run, result, error):
        self.entries.append(("end", run.name, result.summary["rounds"], type(error)))

    def told(self):
        return [entry[:3] for entry in self.entries]


def rounds(*numbers, name="fedavg"):
    return [("round", name, number) for number in numbers]


def test_a_run_is_told_in_order_with_the_model_after_each_round(tiny):
    diary, rows = Diary(), []
    result = fw.run(tiny(rounds=3), callbacks=[diary, rows.append])
    assert diary.told() == [("begin", "fedavg", 0), *rounds(1, 2, 3), ("end", "fedavg", 3)]
    assert np.array_equal(diary.entries[-2][3], result.x)
    assert [row["accuracy"] for row in rows] == result.rounds["accuracy"].tolist()


def test_the_end_is_told_when_a_run_is_interrupted_and_continued(tiny, tmp_path):
    diary = Diary()
    with pytest.raises(fw.Interrupted) as stopped:
        fw.run(tiny(rounds=3), tmp_path / "run", [StopAfter(2), diary])
    assert diary.told() == [("begin", "fedavg", 0), *rounds(1), ("end", "fedavg", 2)]
    assert diary.entries[-1][3] is KeyboardInterrupt
    assert stopped.value.result.rounds["round"].tolist() == [1, 2], "what was done is at hand, also without a folder"
    fw.resume(tmp_path / "run", callbacks=diary)
    assert diary.told()[3:] == [("begin", "fedavg", 2), *rounds(3), ("end", "fedavg", 3)]


def test_what_a_callback_raises_ends_the_run_and_is_told_to_all_that_began(tiny, tmp_path):
    class Refuses(fw.Callback):
        def begin(self, run):
            raise RuntimeError("no room")

    first, last = Diary(), Diary()
    with pytest.raises(RuntimeError, match="no room"):
        fw.run(tiny(rounds=3), tmp_path / "run", [first, Refuses(), last])
    assert first.told() == [("begin", "fedavg", 0), ("end", "fedavg", 0)]
    assert last.told() == []
    assert fw.resume(tmp_path / "run").summary["digest"] == fw.run(tiny(rounds=3)).summary["digest"]


def test_an_end_that_fails_silences_nobody_and_does_not_hide_what_came_before(tiny):
    class Fails(fw.Callback):
        def end(self, run, result, error):
            raise ValueError("no connection")

    diary = Diary()
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(rounds=2), callbacks=[StopAfter(1), Fails(), diary])
    assert diary.told()[-1] == ("end", "fedavg", 1)
    with pytest.raises(ValueError, match="no connection"):
        fw.run(tiny(rounds=1), callbacks=[Fails(), diary])
    assert diary.told()[-1] == ("end", "fedavg", 1)


def test_the_runs_of_a_comparison_share_their_callbacks(tiny):
    diary = Diary()
    fw.compare(["fedavg", "fedprox"], tiny(rounds=1), callbacks=diary)
    assert [entry for entry in diary.told() if entry[0] != "round"] == [
        (what, name, done) for name in ("fedavg", "fedprox") for what, done in (("begin", 0), ("end", 1))
    ]


@pytest.mark.parametrize(
    ("folder", "label"),
    [(None, "fedavg-seed3"), ("runs/first", "fedavg-seed3"), ("sweep/lr=0.1-fedavg-seed3", "lr=0.1-fedavg-seed3")],
)
def test_a_run_is_called_as_in_the_folder_that_it_shares(folder, label, tiny):
    assert Running(tiny(seed=3), {}, folder and Path(folder), 0).label == label


def test_a_run_that_is_continued_knows_its_past(tiny, tmp_path):
    begun = []
    look = type("Look", (fw.Callback,), {"begin": lambda self, run: begun.append(run)})()
    with pytest.raises(fw.Interrupted):
        fw.run(tiny(rounds=3), tmp_path / "run", [look, StopAfter(2)])
    result = fw.resume(tmp_path / "run", callbacks=look)
    assert [run.past["round"].tolist() for run in begun] == [[], [1, 2]]
    assert begun[1].past["accuracy"].tolist() == result.rounds["accuracy"][:2].tolist()


@pytest.mark.parametrize("wrong", [3, fw.Callback, [None], "print"])
def test_what_is_no_callback_is_refused(tiny, wrong):
    with pytest.raises(fw.BadInput, match=r"A callback is a fedweave\.Callback, or a function of a round's row"):
        fw.run(tiny(), callbacks=wrong)
