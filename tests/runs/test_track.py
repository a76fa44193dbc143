"""Trackers: every number of every round once, whatever happened to the run, and a sentence where one cannot be had."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import fedweave as fw
from event_files import events
from fedweave.runs import track
from interrupt import StopAfter

GUIDE = Path(__file__).parents[2] / "docs/how-to/tracking.md"


@pytest.fixture
def quadratic():
    return fw.Experiment("fedavg", data="quadratics", model="quadratic", rounds=5, workers=1, evaluate_every=2)


def numbers(rounds):
    """Return what is known of every round, by column and round, from a result's columns."""
    return {
        (name, number): float(value)
        for name, column in rounds.items()
        if name != "round" and np.ndim(column) == 1
        for number, value in zip(rounds["round"].tolist(), column, strict=True)
        if np.isfinite(value)
    }


def written(folder):
    """Return the same from the only event file of a folder; a number that is there twice is an error."""
    (path,) = folder.glob("events.out.tfevents.*")
    found = {}
    for event in events(path):
        for tag, value in event["values"].items():
            if isinstance(value, float):
                key = (tag.partition("/")[2], event["step"])
                assert key not in found
                found[key] = value
    return found


def same(found, rounds, but=()):
    """Compare in the precision of event files."""
    wanted = {key: np.float32(value) for key, value in numbers(rounds).items() if key[0] not in but}
    assert {key: np.float32(value) for key, value in found.items() if key[0] not in but} == wanted


def test_tensorboard_has_every_number_of_every_round_once(tiny, tmp_path):
    result = fw.run(tiny(rounds=3, evaluate_every=2), callbacks=fw.track.TensorBoard(tmp_path))
    same(written(tmp_path / "fedavg-seed0"), result.rounds)
    (path,) = (tmp_path / "fedavg-seed0").glob("events*")
    found = events(path)
    assert found[0]["version"] == "brain.Event:2"
    tags = {tag for event in found for tag, value in event["values"].items() if isinstance(value, float)}
    assert {"test/accuracy", "test/loss", "train/train_loss", "clients/asked", "cost/clock", "cost/bytes_up"} <= tags
    assert {"measures/diversity", "measures/step_length"} <= tags
    assert not {tag.split("/")[0] for tag in tags} - {"test", "train", "clients", "cost", "measures"}


def test_the_times_are_those_of_the_rounds(quadratic, tmp_path):
    result = fw.run(quadratic, callbacks=fw.track.TensorBoard(tmp_path))
    (path,) = (tmp_path / "fedavg-seed0").glob("events*")
    times = [event["time"] for event in events(path) if "cost/clock" in event["values"]]
    assert np.allclose(np.diff(times), np.diff(result.rounds["wall_seconds"]), atol=1e-6)


def test_tensorboard_has_the_settings_as_text_and_as_parameters(quadratic, tmp_path):
    fw.run(quadratic, callbacks=fw.track.TensorBoard(tmp_path))
    (path,) = (tmp_path / "fedavg-seed0").glob("events*")
    values = {tag: value for event in events(path) for tag, value in event["values"].items()}
    text = values["experiment/text_summary"].decode()
    assert {"| method.sampler | Uniform |", "| method.sampler.per_round | 5 |", "| rounds | 5 |"} <= {
        *text.splitlines()
    }
    assert b"method.sampler.per_round" in values["_hparams_/session_start_info"]
    assert b"test/loss" in values["_hparams_/experiment"]
    assert "_hparams_/session_end_info" in values, "it is complete"


def test_an_interrupted_run_goes_on_where_it_was_also_if_nobody_watched_before(quadratic, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with pytest.raises(fw.Interrupted) as stopped:  # the tracker is told last, so it does not hear of round 3
        fw.run(quadratic, tmp_path / "run", [StopAfter(3), fw.track.TensorBoard(first)])
    same(written(first / "fedavg-seed0"), stopped.value.result.rounds)
    result = fw.resume(tmp_path / "run", callbacks=[fw.track.TensorBoard(first), fw.track.TensorBoard(second)])
    for folder in (first, second):
        assert [place.name for place in folder.iterdir()] == ["fedavg-seed0"]
        same(written(folder / "fedavg-seed0"), result.rounds)
        (path,) = (folder / "fedavg-seed0").glob("events*")
        (restart,) = [event for event in events(path) if event["restart"]]
        assert restart["step"] == 1, "TensorBoard drops what it has shown from there on"


def test_another_run_of_the_same_name_has_its_own_folder(quadratic, tmp_path):
    board = fw.track.TensorBoard(tmp_path)
    for lr in (0.1, 0.2):
        last = fw.compare(["fedavg", "fedprox"], fw.Experiment(**{**vars(quadratic), "lr": lr}), callbacks=board)
    names = {place.name for place in tmp_path.iterdir()}
    assert names == {"fedavg-seed0", "fedavg-seed0-2", "fedprox-seed0", "fedprox-seed0-2"}
    same(written(tmp_path / "fedavg-seed0-2"), last.results[0].rounds)


def test_what_cannot_be_written_is_said_before_anything_is_trained(quadratic, tmp_path):
    (tmp_path / "file").write_text("mine")
    told = []
    with pytest.raises(OSError, match=r"file.* cannot be written: Not a directory"):
        fw.run(quadratic, callbacks=[told.append, fw.track.TensorBoard(tmp_path / "file")])
    assert told == []


class FakeMlflow(ModuleType):
    """MLflow's client, as far as it is used: it keeps what it is told, and refuses what MLflow refuses."""

    def __init__(self):
        super().__init__("mlflow")
        self.experiments, self.runs, self.said = {}, {}, []
        self.entities = SimpleNamespace(
            Param=lambda key, value: SimpleNamespace(key=key, value=value),
            Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
        )
        self.MlflowClient = lambda: self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment_id, tags, run_name):
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=f"run{len(self.runs)}"), tags=tags, name=run_name, status="RUNNING",
            params={}, metrics=[], experiment=experiment_id,
        )  # fmt: skip
        return self.runs.setdefault(run.info.run_id, run)

    def search_runs(self, experiment_ids, filter_string):
        name, _, value = filter_string.removeprefix("tags.").partition(" = ")
        return [r for r in self.runs.values() if r.experiment in experiment_ids and r.tags[name] == value.strip("'")]

    def update_run(self, run_id, status):
        self.runs[run_id].status = status

    def get_metric_history(self, run_id, key):
        return [m for m in self.runs[run_id].metrics if m.key == key]

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(params) <= 100
        assert len(metrics) <= 1000
        assert all(isinstance(m.step, int) and np.isfinite(m.value) for m in metrics)
        self.runs[run_id].params |= {p.key: p.value for p in params}
        self.runs[run_id].metrics += metrics

    def set_terminated(self, run_id, status):
        self.runs[run_id].status = status

    # the fluent half, which the guide's example uses
    def start_run(self, run_name):
        self.current = self.create_run("0", {}, run_name)

    def log_params(self, params):
        self.current.params |= params

    def log_metrics(self, metrics, step):
        self.current.metrics += [self.entities.Metric(key, value, 0, step) for key, value in metrics.items()]

    def end_run(self, status):
        self.current.status = status

    def found(self):
        """Return the runs as (name, status, numbers); a number that is there twice is an error."""
        for run in self.runs.values():
            keys = [(m.key.partition("/")[2] or m.key, m.step) for m in run.metrics]
            assert len(keys) == len(set(keys))
            yield run.name, run.status, dict(zip(keys, (m.value for m in run.metrics), strict=True))


class FakeWandb(ModuleType):
    """Weights & Biases, as far as it is used: steps never go back, and a run goes on under its id."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = {}

    def init(self, project, name, config, id=None, resume=None, reinit=None, group=None):
        json.dumps(config)
        key = id or str(len(self.runs))
        assert key not in self.runs or resume == "allow"
        run = self.runs.setdefault(key, FakeWandbRun(project, name, config))
        run.code = None
        return run

    def found(self):
        """Return the runs as (name, exit code, numbers)."""
        for run in self.runs.values():
            numbers = {
                (key.partition("/")[2] or key, step): value for step, row in run.rows for key, value in row.items()
            }
            yield run.name, run.code, numbers


class FakeWandbRun:
    def __init__(self, project, name, config):
        self.project, self.name, self.config, self.rows, self.code = project, name, config, [], None

    @property
    def step(self):
        return self.rows[-1][0] + 1 if self.rows else 0

    def log(self, row, step):
        assert step >= self.step, "W&B drops such rows"
        self.rows.append((step, row))

    def finish(self, exit_code=0):
        self.code = exit_code


@pytest.mark.parametrize(
    ("kind", "fake", "stopped", "done"),
    [(track.MLflow, FakeMlflow, "KILLED", "FINISHED"), (track.WandB, FakeWandb, 1, 0)],
)
def test_mlflow_and_wandb_have_every_number_once(kind, fake, stopped, done, quadratic, tmp_path, monkeypatch):
    library = fake()
    monkeypatch.setitem(sys.modules, library.__name__, library)
    with pytest.raises(fw.Interrupted) as error:
        fw.run(quadratic, tmp_path / "run", [StopAfter(3), kind()])
    ((name, status, found),) = library.found()
    assert (name, status) == ("fedavg-seed0", stopped)
    same(found, error.value.result.rounds)
    (run,) = library.runs.values()
    again = dict.fromkeys(("cost/clock", "cost/seconds"), 0.0)  # of a round that was lost when the program was killed
    if fake is FakeMlflow:
        library.log_batch(run.info.run_id, metrics=[library.entities.Metric(tag, v, 0, 4) for tag, v in again.items()])
        assert run.params["method.sampler.per_round"] == "5"
    else:
        run.log(again, step=4)
        assert run.config["method.sampler.per_round"] == 5
    result = fw.resume(tmp_path / "run", callbacks=kind())
    ((_, status, found),) = library.found()
    assert status == done
    assert max(number for _, number in found) == 5
    fourth = {key for key in found if key[1] == 4}
    assert fourth == {("clock", 4), ("seconds", 4)}, "it had this one"
    wanted = {key: value for key, value in numbers(result.rounds).items() if key[1] != 4}
    assert {key: value for key, value in found.items() if key[1] != 4} == wanted
    fw.compare(["fedavg", "fedprox"], quadratic, callbacks=kind())
    assert [name for name, _, _ in library.found()] == ["fedavg-seed0", "fedavg-seed0", "fedprox-seed0"]


@pytest.mark.parametrize(("name", "fake"), [("mlflow", FakeMlflow), ("wandb", FakeWandb)])
def test_the_guide_writes_such_trackers_by_hand(name, fake, quadratic, monkeypatch):
    library = fake()
    monkeypatch.setitem(sys.modules, name, library)
    parts = [part.split("```")[0] for part in GUIDE.read_text().split("```python")[1:]]
    (code,) = [part for part in parts if f"import {name}" in part]
    assert len(code.strip().splitlines()) <= 22
    exec(code, names := {"fw": fw, "np": np, "experiment": quadratic})
    result = names["result"]
    ((_, status, found),) = library.found()
    assert status in ("FINISHED", 0)
    same(found, {column: result.rounds[column] for column in ("round", "loss", "clock")})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tensorboard", "--track tensorboard needs a folder, such as --track tensorboard:logs."),
        ("tensorbord:x", "--track: There is no tracker 'tensorbord'. Did you mean 'tensorboard'?"),
        ("mlflow", "--track: The tracker MLflow needs the package mlflow. Install it with: pip install mlflow"),
        ("wandb:mine", "--track: The tracker WandB needs the package wandb. Install it with: pip install wandb"),
    ],
)
def test_what_is_wrong_or_missing_is_one_sentence(text, sentence, monkeypatch):
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(fw.BadInput) as error:
        track.trackers_of([text])
    assert str(error.value).startswith(sentence)


def test_all_wrong_trackers_are_told_at_once():
    with pytest.raises(fw.BadInput) as error:
        track.trackers_of(["tensorboard:", "neptune", "comet"])
    assert len(error.value.problems) == 3
