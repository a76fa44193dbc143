"""A loss and a metric of your own: find the bright pixels of images. Run: python examples/own_task.py"""

import numpy as np
import torch.nn.functional as F
from torch import nn

import fedweave as fw


def loss(output, batch):
    """Return a number for each sample."""
    return F.binary_cross_entropy_with_logits(output, batch.y, reduction="none").mean(1)


def iou(output, batch):
    """Return two sums: the metric is their ratio over the whole test set, not a mean of ratios."""
    found, wanted = output > 0, batch.y > 0
    return (found & wanted).sum(), (found | wanted).sum()


def net():
    """Return any torch module; what it returns is what ``loss`` and ``iou`` see."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Flatten())


def noisy_digits():
    """Return the digits with noise, and for each the mask of its bright pixels."""
    digits = fw.data.load("digits")
    rng = np.random.default_rng(0)
    parts = []
    for x in (digits.x, digits.test_x):
        clean = digits.prepare(x).numpy().reshape(len(x), 1, 8, 8)
        noisy = (clean + 0.3 * clean.std() * rng.standard_normal(clean.shape)).astype("float32")
        parts += [noisy, (clean > clean.mean()).reshape(len(x), 64).astype("float32")]
    x, y, test_x, test_y = parts
    return fw.data.from_arrays(x, y, test_x=test_x, test_y=test_y)


if __name__ == "__main__":
    task = fw.Task(loss, {"iou": iou}, primary="iou", higher_is_better=True)
    experiment = fw.Experiment(
        "fedavg", data=noisy_digits(), partition="iid", model=net, task=task, rounds=20, lr=0.5, client_eval=10
    )
    result = fw.run(experiment)
    print(f"intersection over union {result.rounds['iou'][-1]:.3f}, {result.rounds['client_worst'][-1]:.3f} at worst")
