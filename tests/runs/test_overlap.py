"""Evaluating a model beside the next round's training: rows, states and errors are those of evaluating it at once."""

import json
import shutil
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

import fedweave as fw
from fedweave.core import crash_points
from fedweave.engine import simulator
from fedweave.runs.callbacks import callbacks_of
from fedweave.runs.loop import run_with, workers_of
from fedweave.store import run_folder

ROUNDS, SLICES = 4, 4


@pytest.fixture(autouse=True)
def _slices(monkeypatch):
    monkeypatch.setattr(simulator, "EVALUATION_BATCH", 100)  # of the 360 test samples


class Inline(AbstractContextManager["Inline"]):
    """A pool whose only worker is this process; it notes which calls are handed out together."""

    count, worthwhile, patience, holds = 1, True, 0.0, None

    def __init__(self):
        self.maps = []

    def join(self):
        """There is nobody to join."""

    def load(self, build, data, pieces):
        self.holds, self._trainer = build, build(data)
        return True

    def map(self, x, calls):
        self.maps.append([getattr(work, "func", work).__name__ for work, _ in calls])
        for n, (work, arguments) in reversed(list(enumerate(calls))):  # any order will do
            yield n, work(self._trainer, x, *arguments)

    def __exit__(self, *_):
        pass


def experiment(workers=1, **changes):
    given = {"data": "digits", "rounds": ROUNDS, "audit": True, "seed": 3, "evaluate": ("test",), **changes}
    method = given.pop("method", None) or fw.methods.fedyogi(3)
    return fw.Experiment(method=method, partition=fw.partition.Dirichlet(8, 0.5), workers=workers, **given)


def kept(result):
    rounds = {name: column for name, column in result.rounds.items() if name != "wall_seconds"}
    log = [json.loads(line) for line in (result.folder / "audit.jsonl").read_text().splitlines()]
    log = [{k: v for k, v in line.items() if k != "chain"} for line in log]  # which begins with the experiment
    return rounds, result.clients, result.client_scores, result.x, result.best, log


def assert_same(found, wanted):
    for ours, theirs in zip(kept(found), kept(wanted), strict=True):
        np.testing.assert_equal(ours, theirs)
    assert found.summary["digest"] == wanted.summary["digest"]


CASES = {
    "every round": {},
    "every second": {"evaluate_every": 2},
    "also trained and own": {"evaluate": ("test", "train"), "client_eval": 2},
    "probes": {"method": fw.Method(fw.sample.PowerOfChoice(3, candidates=5))},
    "lost links": {"system": fw.system.Dynamic()},
}


@pytest.fixture(params=CASES)
def changes(request):
    return CASES[request.param]


def test_beside_the_next_round_is_as_at_once(changes, tmp_path):
    pool, seen = Inline(), []
    at_once = fw.run(experiment(**changes), tmp_path / "at once")
    later = run_with(experiment(**changes), tmp_path / "later", callbacks_of(seen.append), None, pool)
    assert_same(later, at_once)
    assert [row["round"] for row in seen] == list(range(1, ROUNDS + 1))
    assert (
        any({"_evaluate", "_receive"} <= set(names) for names in pool.maps)
        or "method" in changes
        or ("train" in changes["evaluate"])
    ), "nothing was evaluated beside a round"
    evaluated = np.isfinite(later.rounds["accuracy"]).sum()
    assert sum(names.count("_evaluate") for names in pool.maps) == evaluated * SLICES, "each model is evaluated once"


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers(workers, tmp_path):
    assert_same(fw.run(experiment(workers), tmp_path / "several"), fw.run(experiment(), tmp_path / "one"))


def test_a_kill_at_every_point_between(tmp_path, monkeypatch):
    """A copy of the folder at some point is what a kill there leaves behind."""
    monkeypatch.setattr(run_folder, "SAVE_SECONDS", 0)
    monkeypatch.setattr(run_folder, "SAVE_SHARE", 1)
    copies, folder = [], tmp_path / "run"

    def copy(point):
        if folder.exists():
            copies.append((point, tmp_path / f"killed {len(copies)}"))
            shutil.copytree(folder, copies[-1][1])

    monkeypatch.setattr(crash_points, "strike", copy)
    whole = run_with(experiment(rounds=3), folder, (), None, Inline())
    monkeypatch.setattr(crash_points, "strike", None)
    assert {"trained", "stepped", "evaluated", "recorded", "state written", "committed"} <= {p for p, _ in copies}
    for _, left in copies:
        assert_same(fw.resume(left), whole)


class PlannedError(Exception):
    """What goes wrong in these tests."""


def task(fails):
    """Classification with one more metric, which may fail."""

    def trouble(output, _):
        if len(output) > 3 and fails():  # and not when it is tried on a few samples
            raise PlannedError("the metric")
        return torch.zeros(len(output))

    own = fw.tasks.Classification()
    return fw.Task(loss=own.loss, metrics={"accuracy": lambda o, b: (o.argmax(1) == b.y).float(), "own": trouble})


def test_an_error_of_a_metric_loses_only_its_round(tmp_path):
    def rounds_of(pool, folder):
        evaluated = []

        def fails():
            evaluated.append(1)
            return len(evaluated) > 2 * SLICES

        with pytest.raises(PlannedError, match="the metric"):
            run_with(experiment(task=task(fails)), folder, (), None, pool)
        return fw.load_result(folder).rounds["round"].tolist()

    with workers_of(experiment()) as alone:
        assert rounds_of(alone, tmp_path / "at once") == [1, 2]
    assert rounds_of(Inline(), tmp_path / "later") == [1, 2]


@pytest.mark.parametrize(("error", "kept_rounds"), [(PlannedError, [1, 2]), (KeyboardInterrupt, [1])])
def test_what_stops_a_round_and_the_one_before_it(error, kept_rounds, tmp_path, monkeypatch):
    """An error keeps the round before, whose evaluation is under way; whoever interrupts does not wait for it."""
    passed = []

    def strike(point):
        passed.append(point)
        if passed.count("sampled") == 3 and point == "sampled":
            raise error

    folder = tmp_path / "run"
    monkeypatch.setattr(crash_points, "strike", strike)
    with pytest.raises(error):
        run_with(experiment(), folder, (), None, Inline())
    monkeypatch.setattr(crash_points, "strike", None)
    assert fw.load_result(folder).rounds["round"].tolist() == kept_rounds
    assert_same(fw.resume(folder), fw.run(experiment(), tmp_path / "whole"))


def test_a_watcher_that_stops_a_run(tmp_path):
    """It is called with the rows in order, and what it saw is kept."""

    def watch(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted) as stopped:
        run_with(experiment(), tmp_path / "run", callbacks_of(watch), None, Inline())
    assert stopped.value.round == 2
    assert fw.load_result(tmp_path / "run").rounds["round"].tolist() == [1, 2]
    assert_same(fw.resume(tmp_path / "run"), fw.run(experiment(), tmp_path / "whole"))
