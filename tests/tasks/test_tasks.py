"""Tasks: losses and metrics against their formulas, sums over slices, and a task of a user's own in training."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.tasks import Classification, Regression, Task
from fedweave.tasks.task import Batch, add_up
from jobs import jobs_of
from local.test_trainer import regression_data

RNG = np.random.default_rng(0)


def logits(n=40, classes=5, missing=3):
    """Return outputs and labels among which one class does not occur."""
    labels = RNG.choice([c for c in range(classes) if c != missing], n)
    return torch.from_numpy(RNG.standard_normal((n, classes))), torch.from_numpy(labels)


def log_likelihood(output, y):
    p = np.exp(output.numpy()) / np.exp(output.numpy()).sum(1, keepdims=True)
    return np.log(p[np.arange(len(y)), y.numpy()])


def test_classification_is_cross_entropy_and_accuracy():
    output, y = logits()
    task, batch = Classification(), Batch(None, y)
    expected = -log_likelihood(output, y)
    assert np.allclose(task.loss(output, batch), expected)
    assert task.reduced_loss(output, batch) == pytest.approx(expected.mean())
    metrics = task.finish({n: tuple(map(np.asarray, pair)) for n, pair in task.measure(output, batch).items()})
    hit = output.numpy().argmax(1) == y.numpy()
    assert metrics["loss"] == pytest.approx(expected.mean())
    assert metrics["accuracy"] == hit.mean()
    for c, share in enumerate(metrics["class_accuracy"]):
        assert np.isnan(share) if c == 3 else share == hit[y.numpy() == c].mean()
    assert metrics[task.primary] == metrics["accuracy"]
    assert task.higher_is_better


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_regression_is_the_squared_error(shape):
    output, y = torch.from_numpy(RNG.standard_normal(shape)), torch.from_numpy(RNG.standard_normal(30))
    task, batch = Regression(), Batch(None, y)
    expected = (output.numpy().reshape(30) - y.numpy()) ** 2
    assert np.allclose(task.loss(output, batch), expected)
    assert task.reduced_loss(output, batch, "sum") == pytest.approx(expected.sum())
    assert task.finish(task.measure(output, batch))["loss"] == pytest.approx(expected.mean())
    assert task.primary == "loss"
    assert not task.higher_is_better


def test_slices_add_up_to_the_whole():
    (output, y), task = logits(), Classification()
    slices = [task.measure(output[i : i + 7], Batch(None, y[i : i + 7])) for i in range(0, 40, 7)]
    whole, found = task.measure(output, Batch(None, y)), add_up(slices)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"][0] == pytest.approx(whole["loss"][0])
    assert all(torch.equal(a, b) for a, b in zip(found["class_accuracy"], whole["class_accuracy"], strict=True))


class Absolute(Task):
    """The absolute error, judged by the share of predictions that are closer than one."""

    primary, higher_is_better = "close", True

    def loss(self, output, batch):
        return (output.reshape(batch.y.shape) - batch.y).abs()

    def measure(self, output, batch):
        return super().measure(output, batch) | {"close": ((self.loss(output, batch) < 1).sum(), len(output))}


def test_a_task_of_ones_own_trains_by_its_loss_and_is_measured_by_its_metrics():
    data = regression_data()
    torch.manual_seed(0)
    module = nn.Linear(6, 1)
    x = initial_vector(module)
    trainer = TorchTrainer(module, data, SGD(), 0, task=Absolute())
    update = trainer.train(x, jobs_of((0, 1, 23))).updates[0]  # one step over all its samples
    features, targets = data.x[data.parts[0]], data.y[data.parts[0]]
    sign = np.sign(features @ x[:6] + x[6] - targets)
    gradient = np.append((sign[:, None] * features).mean(0), sign.mean())
    assert np.allclose(update, -0.1 * gradient, atol=1e-6)
    error = np.abs(data.test_x @ x[:6] + x[6] - data.test_y)
    metrics = trainer.task.finish(add_up([trainer.evaluate(x, 0, 10), trainer.evaluate(x, 10, 30)]))
    assert metrics["loss"] == pytest.approx(error.mean(), rel=1e-5)
    assert metrics["close"] == (error < 1).mean()


def test_tasks_and_the_role_of_a_trainer_need_no_torch():
    code = (
        "import sys, fedweave, fedweave.tasks; from fedweave.local import batches, client_data, trainer;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
