"""Metrics over uneven slices against their formulas, next tokens with padding, and which task fits which labels."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import fedweave as fw
from fedweave.tasks import Classification, NextToken, Regression, Task, default_for, info, parse
from fedweave.tasks.task import Batch, add_up

RNG = np.random.default_rng(0)
SLICES = (7, 1, 12, 3)  # samples of each slice, one of them alone


def over_slices(task, output, y):
    """Return the metrics of outputs that are measured slice by slice, as a simulator does."""
    edges = np.cumsum([0, *SLICES])
    assert edges[-1] == len(y)
    return task.finish(add_up([task.measure(output[a:b], Batch(None, y[a:b])) for a, b in pairwise(edges)]))


def per_sample(kind):
    """Return a metric that gives a value for each sample, of this type."""
    return lambda output, batch: (output.argmax(1) == batch.y).to(kind)


def mean_of(kind):
    return lambda output, batch: (output.argmax(1) == batch.y).double().mean().to(kind)


def union(output, batch):
    """Return a ratio of sums: chosen and wanted, over chosen or wanted."""
    chosen, wanted = output[:, 0] > 0, batch.y == 0
    return (chosen & wanted).sum(), (chosen | wanted).sum()


METRICS = {
    "bools": per_sample(torch.bool),
    "whole": per_sample(torch.int64),
    "floats": per_sample(torch.float32),
    "column": lambda output, batch: per_sample(torch.bool)(output, batch)[:, None],
    "several": lambda output, batch: (output > 0) == (batch.y[:, None] > 0),  # (B, 4) truths
    "mean": mean_of(torch.float64),
    "number": lambda output, batch: float((output.argmax(1) == batch.y).double().mean()),
    "numpy": lambda output, batch: np.float32((output.argmax(1) == batch.y).double().mean()),
    "array": lambda output, batch: (output.argmax(1) == batch.y).numpy(),
    "union": union,
}


def test_metrics_of_any_form_are_over_all_samples_however_they_are_sliced():
    output, y = torch.from_numpy(RNG.standard_normal((23, 4))), torch.from_numpy(RNG.integers(0, 4, 23))
    task = Task(loss=lambda out, batch: out.square().mean(), metrics=METRICS, primary="union")
    found = over_slices(task, output, y)
    hit, chosen, wanted = (output.argmax(1) == y).numpy(), (output[:, 0] > 0).numpy(), (y == 0).numpy()
    expected = dict.fromkeys(("bools", "whole", "floats", "column", "mean", "number", "numpy", "array"), hit.mean())
    expected |= {
        "loss": (output.numpy() ** 2).mean(),
        "several": ((output > 0) == (y[:, None] > 0)).numpy().mean(),
        "union": (chosen & wanted).sum() / (chosen | wanted).sum(),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-6)


def tokens(ignore):
    """Return logits (23, 5, 6) and labels with padding: one sample has nothing else, one has none."""
    output, y = torch.from_numpy(RNG.standard_normal((23, 5, 6))), torch.from_numpy(RNG.integers(1, 6, (23, 5)))
    y[torch.from_numpy(RNG.random((23, 5)) < 0.3)] = ignore
    y[4], y[7] = ignore, 3
    return output, y


@pytest.mark.parametrize("ignore", [-100, 0])
def test_next_tokens_are_those_of_a_plain_loop(ignore):
    (output, y), task = tokens(ignore), NextToken(ignore)
    each, total, hits, count = [], 0.0, 0, 0
    for logits, labels in zip(output.numpy(), y.numpy(), strict=True):
        mine = []
        for row, label in zip(logits, labels, strict=True):
            if label != ignore:
                mine.append(np.log(np.exp(row).sum()) - row[label])
                hits += row.argmax() == label
        each.append(np.mean(mine) if mine else 0.0)
        total, count = total + sum(mine), count + len(mine)
    assert task.loss(output, Batch(None, y)).numpy() == pytest.approx(np.array(each))
    assert task.reduced_loss(output, Batch(None, y)) == pytest.approx(np.mean(each))
    found = over_slices(task, output, y)
    expected = {"loss": total / count, "accuracy": hits / count, "perplexity": np.exp(total / count)}
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)
    assert (task.primary, task.higher_is_better) == ("perplexity", False)


def test_nothing_but_padding_has_no_loss_and_a_hopeless_model_a_finite_perplexity():
    output, y = tokens(-100)
    nothing = NextToken().finish(NextToken().measure(output, Batch(None, torch.full_like(y, -100))))
    assert all(np.isnan(value) for value in nothing.values())
    assert np.isfinite(NextToken().finish({"loss": (1e9, 1)})["perplexity"])


@pytest.mark.parametrize("shape", [(23,), (23, 1), (23, 3), (23, 2, 2)])
def test_regression_of_any_number_of_outputs(shape):
    output, y = (torch.from_numpy(RNG.standard_normal(shape)) for _ in range(2))
    error = (output - y).numpy().reshape(23, -1)
    assert Regression().loss(output, Batch(None, y)).numpy() == pytest.approx((error**2).mean(1))
    expected = {"loss": (error**2).mean(), "mae": np.abs(error).mean()}
    assert over_slices(Regression(), output, y) == pytest.approx(expected)


FITTING = {
    "classes": (np.arange(5), Classification),
    "tokens": (np.zeros((5, 3), np.int64), NextToken),
    "numbers": (np.zeros(5, np.float32), Regression),
    "several numbers": (np.ones((5, 2), np.float32), Regression),
    "one column": (np.ones((5, 1), np.float32), Regression),
}


@pytest.mark.parametrize(("y", "task"), FITTING.values(), ids=FITTING)
def test_the_task_that_fits_the_labels(y, task):
    assert type(default_for(y)) is task


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ({"a": np.arange(3)}, "No task fits these labels"),
        (np.zeros((3, 2, 2), np.int64), "No task fits these labels"),
        (np.eye(3, dtype=np.float32), r"look like one-hot labels\. Give y\.argmax\(1\)"),
    ],
)
def test_labels_that_no_task_fits_are_told(y, message):
    with pytest.raises(fw.BadInput, match=message) as error:
        default_for(y)
    assert "\n" not in str(error.value)


def test_tasks_by_name():
    assert {name: type(parse(name)).__name__ for name in info()} == {
        "classification": "Classification",
        "regression": "Regression",
        "next_token": "NextToken",
    }
    assert all(about and "\n" not in about for about in info().values())
    assert parse("next_token:0").ignore == 0
    assert parse(parse("next_token:-7").describe()).ignore == -7
    for wrong, message in {
        "clasification": "no task 'clasification'. Did you mean 'classification'",
        "regression:0": "cannot be read",
        "next_token:x": "cannot be read",
        "next_token:--1": "cannot be read",
    }.items():
        with pytest.raises(fw.BadInput, match=message):
            parse(wrong)


def loss(output, batch):
    return output.square().mean()


WRONG = {
    "no loss": ({}, "'loss' of a Task must be a function"),
    "text": ({"loss": "mse"}, "'loss' of a Task must be a function"),
    "metric": ({"loss": loss, "metrics": {"iou": 3}}, "'iou' of a Task must be a function"),
    "metrics": ({"loss": loss, "metrics": loss}, "'metrics' of a Task must be functions by name"),
    "metric list": ({"loss": loss, "metrics": [loss]}, "'metrics' of a Task must be functions by name"),
    "a column": ({"loss": loss, "metrics": {"bytes_up": loss}}, "cannot be called 'bytes_up'"),
    "a measure": ({"loss": loss, "metrics": {"diversity": loss}}, "cannot be called 'diversity'"),
    "the loss again": ({"loss": loss, "metrics": {"loss": loss}}, "cannot be called 'loss'"),
    "no word": ({"loss": loss, "metrics": {"top 5": loss}}, "cannot be called 'top 5'"),
    "primary": ({"loss": loss, "metrics": {"iou": loss}, "primary": "io"}, "no metric 'io'. Did you mean 'iou'"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_task_is_refused(arguments, message):
    with pytest.raises(fw.BadInput, match=message) as error:
        Task(**arguments)
    assert "\n" not in str(error.value)


BATCH = Batch(None, torch.zeros(5))
NO_VALUE = {  # what an own function may return for a later batch
    "None": None,
    "a text": "x",
    "a list": [1.0] * 5,
    "a table": torch.ones(3, 4),
    "another length": torch.ones(4),
    "NumPy of another length": np.ones(4),
    "a pair of arrays": (torch.ones(3, 4), 12),
    "a pair with a text": (1.0, "x"),
    "three": (1, 2, 3),
}


@pytest.mark.parametrize("value", NO_VALUE.values(), ids=NO_VALUE)
def test_a_metric_of_another_shape_is_named(value):
    task = Task(loss=loss, metrics={"iou": lambda output, batch: value})
    with pytest.raises(
        fw.BadInput, match=r"^The metric 'iou' of Task\(loss\) must return a value for each of 5 "
    ) as error:
        task.measure(torch.zeros(5), BATCH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("verb", ["training_loss", "reduced_loss"])
@pytest.mark.parametrize("value", [*NO_VALUE.values(), 1.0, torch.ones(5, 1)], ids=[*NO_VALUE, "a number", "a column"])
def test_a_loss_of_another_shape_is_named(value, verb):
    task = Task(loss=lambda output, batch: value)
    with pytest.raises(fw.BadInput, match=r"^The loss of Task\(.*\) must be a number for each of 5 samples, or their"):
        getattr(task, verb)(torch.zeros(5), BATCH)


@pytest.mark.parametrize(
    "value", [0.5, np.float64(0.5), torch.tensor(0.5), torch.full((5,), 0.5), np.full(5, 0.5), (1, 2)]
)
def test_a_metric_is_a_mean_or_a_value_for_each_sample_or_a_pair(value):
    task = Task(loss=loss, metrics={"iou": lambda output, batch: value})
    assert float(task.finish(task.measure(torch.zeros(5), BATCH))["iou"]) == 0.5


def test_the_direction_of_a_task():
    assert not Task(loss=loss).higher_is_better
    assert Task(loss=loss, metrics={"iou": loss}, primary="iou").higher_is_better
    assert not Task(loss=loss, metrics={"error": loss}, primary="error", higher_is_better=False).higher_is_better


class Smoothed(Classification):
    """A classification with another loss."""

    def loss(self, output, batch):
        return torch.nn.functional.cross_entropy(output, batch.y, reduction="none", label_smoothing=0.1)


@pytest.mark.parametrize("kind", [Classification, Regression, NextToken])
def test_a_changed_task_of_the_library_does_not_pass_for_the_original(kind):
    changed = type("Changed", (kind,), {})
    assert isinstance(kind().describe(), str)
    assert changed().describe() == {"type": "python", "name": "Changed"}


def test_a_changed_loss_is_the_one_that_is_minimised_and_measured():
    output, y = torch.from_numpy(RNG.standard_normal((6, 4))), torch.from_numpy(RNG.integers(0, 4, 6))
    task, batch = Smoothed(), Batch(None, y)
    each = task.loss(output, batch)
    assert task.reduced_loss(output, batch) == pytest.approx(float(each.mean()))
    assert task.finish(task.measure(output, batch))["loss"] == pytest.approx(float(each.mean()))
