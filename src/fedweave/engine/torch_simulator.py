"""A simulator whose clients train in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import nn

from fedweave.core.roles import Solver, Upload
from fedweave.engine.pool.processes import Workers
from fedweave.engine.pool.protocol import Pool
from fedweave.engine.simulator import Simulator
from fedweave.local.adversaries import Adversary, with_adversary
from fedweave.local.client_data import ClientData
from fedweave.local.submodels import SubmodelTrainer
from fedweave.local.torch.flat_module import build_module
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.local.trainer import Trainer
from fedweave.tasks import Task


def torch_simulator(
    model: Callable[[], nn.Module],
    data: ClientData,
    solver: Solver,
    seed: int,
    pool: Pool,
    device: str = "cpu",
    upload: Upload | None = None,
    submodels: Sequence[Callable[[], nn.Module]] = (),
    skip: bool = False,
    task: Task | None = None,
    adversary: Adversary | None = None,
    roll: int = 0,
) -> Simulator:
    """Return a simulator of clients that train ``model``, or in turn one of the ``submodels`` of it.

    Sub-models begin ``roll`` channels further on each round.
    """
    build = partial(_build_trainer, model, tuple(submodels), solver, seed, device, task, adversary, roll)
    trainer = build(data)
    if isinstance(trainer, TorchTrainer) and isinstance(pool, Workers):
        trainer.threads = pool.count  # what is not worth a worker has the processors to itself
    return Simulator(trainer, upload, pool, build, data, skip)


def _build_trainer(
    model: Callable[[], nn.Module],
    submodels: Sequence[Callable[[], nn.Module]],
    solver: Solver,
    seed: int,
    device: str,
    task: Task | None,
    adversary: Adversary | None,
    roll: int,
    data: ClientData,
) -> Trainer:
    if not submodels:
        trainer: Trainer = TorchTrainer(build_module(model, seed, data), data, solver, seed, device, task)
    else:
        parts = [build_module(part, seed, data) for part in submodels]
        kind = np.arange(len(data.parts)) % len(submodels)
        whole = build_module(model, seed, data)
        trainer = SubmodelTrainer(whole, parts, kind, data, solver, seed, device, task, roll)
    return with_adversary(trainer, adversary, len(data.parts))
