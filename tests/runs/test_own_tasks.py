"""A task of one's own in a run: what cannot be minimised or measured is refused, the rest is recorded and resumed."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedweave as fw
from fedweave.tasks import Classification, Regression

RNG = np.random.default_rng(0)
DATA = fw.data.from_arrays(RNG.standard_normal((60, 5)), np.arange(60) % 3)


def cross_entropy(output, batch):
    return F.cross_entropy(output, batch.y, reduction="none")


def hits(output, batch):
    return output.argmax(1) == batch.y


class Named(Classification):
    """A classification with one more number."""

    def __init__(self, name, value, primary="accuracy"):
        self.extra, self.primary = {name: value}, primary

    def measure(self, output, batch):
        return super().measure(output, batch) | self.extra


WRONG = {
    "raises": (fw.Task(lambda out, batch: batch.z), "AttributeError.*'z'"),
    "a loss of labels": (
        fw.Task(torch.nn.BCEWithLogitsLoss()),
        r"BCEWithLogitsLoss.* failed.*A loss is called as loss\(output, batch\): its labels are batch.y.",
    ),
    "whole numbers": (
        fw.Task(lambda out, batch: F.binary_cross_entropy_with_logits(out[:, 0], batch.y)),
        r"RuntimeError.*The labels are whole numbers: where a loss needs floats, give y.astype\('float32'\).",
    ),
    "each token": (fw.Task(lambda out, batch: out), r"loss of .* must be a number for each of 2 samples.*\(2, 3\)"),
    "no tensor": (fw.Task(lambda out, batch: 3.0), "must be a number for each of 2 samples, or their mean. Got 3.0"),
    "detached": (fw.Task(lambda out, batch: cross_entropy(out.detach(), batch)), "nothing could be trained"),
    "metric raises": (fw.Task(cross_entropy, {"iou": lambda out, batch: 1 / 0}), "ZeroDivisionError"),
    "three numbers": (fw.Task(cross_entropy, {"iou": lambda out, batch: (1, 2, 3)}), "'iou'.*a sum and a weight"),
    "a list": (fw.Task(cross_entropy, {"iou": lambda out, batch: [0.0, 1.0]}), "'iou'.*a sum and a weight"),
    "no number": (fw.Task(cross_entropy, {"iou": lambda out, batch: "good"}), "'iou'.*a sum and a weight"),
    "several": (Named("iou", (np.ones(3), 1)), "'iou' .* must be a number"),
    "a column": (Named("round", (1, 1)), "cannot be called 'round'"),
    "no primary": (Named("iou", (1, 1), primary="iuo"), "judged by 'iuo', which it does not measure"),
    "another's labels": (Regression(), r"must return \(2,\).*returned \(2, 3\)"),
}


@pytest.mark.parametrize(("task", "message"), WRONG.values(), ids=WRONG)
def test_a_task_that_cannot_be_minimised_or_measured_is_refused(task, message, tmp_path):
    with pytest.raises(fw.BadInput, match=message) as error:
        fw.run(fw.Experiment("fedavg", DATA, "iid", rounds=1, workers=1, task=task), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_task_that_is_none_is_refused():
    with pytest.raises(fw.BadInput, match=r"'task'.*must be a Task, or text such as 'next_token'"):
        fw.Experiment("fedavg", DATA, task=cross_entropy)


def experiment(**changes):
    task = fw.Task(cross_entropy, {"hits": hits}, primary="hits")
    return fw.Experiment(
        **{"method": "fedavg", "data": DATA, "partition": "iid", "rounds": 4, "workers": 1, "task": task} | changes
    )


def test_metrics_are_columns_and_the_primary_one_counts(tmp_path):
    plain, own = fw.run(experiment(task=None)), fw.run(experiment(target=0.1), tmp_path / "run")
    assert np.array_equal(plain.rounds["accuracy"], own.rounds["hits"])
    assert np.isnan(own.rounds["accuracy"]).all()
    assert own.rounds["loss"] == pytest.approx(plain.rounds["loss"])
    assert own.x == pytest.approx(plain.x, abs=1e-5)  # not in lockstep, so not the same bits
    summary = own.summary
    assert (summary["metric"], summary["higher_is_better"]) == ("hits", True)
    assert summary["hits"] == summary["value"], "also by its own name"
    assert (summary["value"], summary["best"]) == (own.rounds["hits"][-1], own.rounds["hits"].max())
    assert summary["rounds_to_target"] == 1 + np.flatnonzero(own.rounds["hits"] >= 0.1)[0]
    assert fw.load_result(tmp_path / "run").summary == summary


def test_a_lower_target_is_reached_from_above(tmp_path):
    lower = fw.Task(cross_entropy, {"misses": lambda out, batch: ~hits(out, batch)}, "misses", higher_is_better=False)
    result = fw.run(experiment(task=lower, rounds=6))
    values = result.rounds["misses"]
    again = fw.run(experiment(task=lower, rounds=6, target=float(np.sort(values)[1])))
    assert again.summary["rounds_to_target"] == 1 + np.flatnonzero(values <= np.sort(values)[1])[0]
    assert again.summary["best"] == values.min()


def test_a_run_with_an_own_task_is_resumed_with_it_alone(tmp_path):
    """Data and model have names, so the task is all that the folder lacks."""
    whole = fw.run(experiment(data="digits", rounds=3))

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        fw.run(experiment(data="digits", rounds=3), tmp_path / "run", callbacks=stop)
    with pytest.raises(fw.BadInput, match=r"used a task given in Python: resume it there"):
        fw.resume(tmp_path / "run")
    with pytest.raises(fw.BadInput, match=r"differs .* in task"):
        fw.resume(tmp_path / "run", experiment(data="digits", rounds=3, task=None))
    resumed = fw.resume(tmp_path / "run", experiment(data="digits", rounds=3))
    assert resumed.summary["digest"] == whole.summary["digest"]
    assert np.array_equal(resumed.rounds["hits"], whole.rounds["hits"])
    assert torch.is_grad_enabled()


def test_functions_without_a_name_are_described_alike_in_every_process():
    from functools import partial

    tasks = [fw.Task(partial(F.cross_entropy, label_smoothing=s), {}) for s in (0.1, 0.2)]
    assert tasks[0].describe() == tasks[1].describe() == {"type": "python", "name": "partial"}
    assert "0x" not in repr(tasks[0])
