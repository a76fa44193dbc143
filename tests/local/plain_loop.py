"""Local training as anybody would write it, with torch.optim: what the fast paths are compared with."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedweave.core.randomness import Stream, rng_for
from fedweave.local.batches import batches
from fedweave.local.solvers import SGD
from fedweave.local.torch.flat_module import FlatModule, initial_vector
from fedweave.local.torch.trainer import TorchTrainer

LR = 0.1


def strided():
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4))


def trainer_of(model, data, solver=None, seed=0):
    torch.manual_seed(0)
    module = model()
    return TorchTrainer(module, data, solver or SGD(), seed), initial_vector(module)


def each(jobs):
    """Return the jobs one by one."""
    return [jobs.take([i]) for i in range(jobs.client.size)]


class Reference(NamedTuple):
    """What a client does in a plain loop."""

    update: np.ndarray
    loss: float  # mean over the steps
    losses: list[np.ndarray]  # of each sample, step by step


def reference(model, data, x, job, lr=0.1, seed=0):
    """Train one client as anybody would, with torch.optim, on the same batches and the same draws of its layers.

    Dropout draws in the order in which a batch lies in memory, which is channels last where there are convolutions.
    """
    torch.manual_seed(0)
    module = model()
    nn.utils.vector_to_parameters(torch.from_numpy(x.copy()), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr)
    (plan,) = batches(seed, job, data.parts)
    torch.manual_seed(int(rng_for(seed, int(job.dispatch[0]), Stream.NOISE, int(job.client[0])).integers(2**63)))
    if channels_last := any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        FlatModule(module)  # which keeps weights so
    losses, every = [], []
    for t in range(int(job.steps[0])):
        rows = plan.where[t, : plan.size[t]]
        xb = torch.from_numpy(data.x[rows]).float()
        if data.mean:
            xb = (xb / 255 - data.mean[0]) / data.std[0]
        if channels_last:
            xb = xb.contiguous(memory_format=torch.channels_last)
        yb, out = torch.from_numpy(data.y[rows]), module(xb)
        loss = F.cross_entropy(out, yb) if not yb.is_floating_point() else F.mse_loss(out[:, 0], yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            each = (out[:, 0] - yb) ** 2 if yb.is_floating_point() else F.cross_entropy(out, yb, reduction="none")
            every.append(each.numpy())
    update = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy() - x
    return Reference(update, np.mean(losses), every)
