"""A client's bits do not depend on who trains beside it, nor a run's on how many workers there are.

For any number of rows and on any processor that can be imitated: in short form a part of the test suite;
FEDWEAVE_FAULTS=1 (`make faults`) tries all networks, batches and processors.
"""

import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise, product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave.engine.pool.processes import Workers
from fedweave.local.client_data import ClientData
from fedweave.local.solvers import SGD
from fedweave.local.torch import trainer
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.local.trainer import Trained
from fedweave.runs.loop import run_with
from jobs import jobs_of

LONG = bool(os.environ.get("FEDWEAVE_FAULTS"))
CLIENTS, CLASSES = 10, 10
STEPS = (5, 3, 3, 3, 2, 2, 1, 1, 1, 1)  # the first is alone in the end, in whichever company


def dense(*widths, between=nn.ReLU, bias=True):
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b, bias=bias), between())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def conv(first, second, side, kernel, padding=0):
    body = nn.Sequential(
        nn.Conv2d(1, first, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(body, nn.Linear(body(torch.zeros(1, 1, side, side)).shape[1], CLASSES))


NETWORKS = {  # by name: the module and the shape of a sample; of width one, of odd widths, and the usual ones
    "784-128-1-10": (lambda: dense(784, 128, 1, 10), (784,)),
    "1-10": (lambda: dense(1, 10), (1,)),
    "65-17-10": (lambda: dense(65, 17, 10), (5, 13)),
    "convolutions of odd widths": (lambda: conv(11, 5, 12, 3), (1, 12, 12)),
    "33-7-10 with tanh": (lambda: dense(33, 7, 10, between=nn.Tanh), (33,)),
    "784-10": (lambda: dense(784, 10), (784,)),
    "784-100-64-10": (lambda: dense(784, 100, 64, 10), (784,)),
    "17-1-10": (lambda: dense(17, 1, 10), (17,)),
    "1-1-1-10": (lambda: dense(1, 1, 1, 10), (1,)),
    "3-5-10": (lambda: dense(3, 5, 10), (3,)),
    "65-13-7-10": (lambda: dense(65, 13, 7, 10), (65,)),
    "convolutions of width one": (lambda: conv(1, 1, 12, 3, padding=1), (1, 12, 12)),
    "cnn_small": (lambda: conv(10, 20, 28, 5), (1, 28, 28)),
    "lenet5": (lambda: conv(6, 16, 28, 5, padding=2), (1, 28, 28)),
    "784-128-1-10 with tanh": (lambda: dense(784, 128, 1, 10, between=nn.Tanh), (784,)),
    "65-10 without bias": (lambda: dense(65, 10, bias=False), (65,)),
    "dropout": (lambda: nn.Sequential(nn.Linear(33, 9), nn.Dropout(0.5), nn.Linear(9, 10)), (33,)),
}
OF_TORCH = {name for name in NETWORKS if "tanh" in name or "without bias" in name}  # others have compiled kernels
BATCHES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 20, 31, 32, 33, 64, 100, 128, 255, 256, 299, 300)
SHORT = [  # network, batch, and whether Numba is there: the kernels' bits depend on no library
    ("784-128-1-10", 5, True),
    ("784-128-1-10", 64, False),
    ("784-128-1-10 with tanh", 64, True),
    ("1-10", 300, True),
    ("1-10", 300, False),
    ("65-17-10", 1, False),
    ("65-17-10", 33, True),
    ("convolutions of odd widths", 7, True),
    ("convolutions of odd widths", 7, False),
    ("33-7-10 with tanh", 64, True),
]
ALONE = [name for name in NETWORKS if "-1-" in name or name == "1-10"]  # of width one: torch's products tell rows apart
CASES = [*product(NETWORKS, BATCHES, [True]), *product(ALONE, BATCHES, [False])] if LONG else SHORT


def companies():
    """Yield the rows that train together: neighbours, and clients from far apart."""
    for size in (1, 2, 3, 5):
        for order in (np.arange(CLIENTS), np.random.default_rng(size).permutation(CLIENTS)):
            yield from (np.sort(order[i : i + size]) for i in range(0, CLIENTS, size))


def differences(name, batch, numba):
    """Return where clients get other bits in smaller companies than all together, in words."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    rng, per_client = np.random.default_rng(batch), batch + (batch + 1) // 2  # the second batch is not full
    n = CLIENTS * per_client
    x, y = rng.standard_normal((n, *shape)).astype(np.float32), rng.integers(0, CLASSES, n)
    data = ClientData(x, y, x[:1], y[:1], (), (), np.split(np.arange(n), CLIENTS))
    module = build()
    with nullcontext() if numba else patch("fedweave.local.torch.trainer.find_spec", lambda name: None):
        start, trainer = initial_vector(module), TorchTrainer(module, data, SGD(momentum=0.5), 0)
    assert (trainer.network is None) == (name in OF_TORCH or not numba)
    jobs = jobs_of(*zip(range(CLIENTS), STEPS, [batch] * CLIENTS, strict=True), measure=True)
    together = trainer.train(start, jobs)
    assert np.isfinite(together.updates).all()
    found = []
    for rows in companies():
        trained = trainer.train(start, jobs.take(rows))
        for column in Trained._fields[:-1]:
            ours, theirs = getattr(trained, column), getattr(together, column)[rows]
            found += [
                f"{name}, batch {batch}, Numba {numba}: {column} of client {client} in a company of {rows.size}"
                for client, a, b in zip(rows, ours, theirs, strict=True)
                if not np.array_equal(a, b)
            ]
    return found


RUNS = (
    list(product(NETWORKS, (64,), (4, 16)))
    if LONG
    else [("784-128-1-10", 64, 4), ("784-128-1-10 with tanh", 64, 4), ("dropout", 5, 4)]
)


def runs_that_differ():
    """Return whose digest depends on the number of workers, and the vectors that the processor of the runs has."""
    digests, vectors = {case: set() for case in RUNS}, set()
    for count in (1, 2, 3):
        with Workers(count) as workers:
            for (name, batch, clients), seen in digests.items():
                build, shape = NETWORKS[name]
                rng, n = np.random.default_rng(0), clients * 2 * batch
                x, y = rng.standard_normal((n, *shape)).astype(np.float32), rng.integers(0, CLASSES, n)
                data = fw.data.from_arrays(x, y, test_x=x[:9], test_y=y[:9], classes=CLASSES)
                dealt = fw.partition.IID(clients)
                experiment = fw.Experiment(fw.methods.fedavg_full(), data, dealt, build, batch_size=batch, rounds=2)
                result = run_with(experiment, None, (), None, workers)
                seen.add(result.summary["digest"])
                assert ("compiled" in result.manifest["trainer"]) == (name not in OF_TORCH)
                vectors.add(result.manifest["processor"]["vectors"])
    return [f"{name}, {clients} clients" for (name, _, clients), seen in digests.items() if len(seen) > 1], vectors


def test_the_number_of_workers_changes_no_bit_of_a_run():
    assert runs_that_differ() == ([], {HERE})


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in CASES))
def test_no_company_changes_a_single_bit(name):
    assert not [found for case in CASES if case[0] == name for found in differences(*case)]


KNOBS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
LEVELS = {
    "DEFAULT": ("default", "SSE4_2", "SSE41"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX512": ("avx512", "AVX512", "AVX512_CORE"),
}
HERE = torch.backends.cpu.get_cpu_capability()
ABLE = list(LEVELS)[: list(LEVELS).index(HERE) + 1] if HERE in LEVELS else []  # more would be an illegal instruction
SETTINGS = [dict(zip(KNOBS, LEVELS[level], strict=True)) for level in ABLE]
if LONG:
    SETTINGS += [{knob: value} for some in SETTINGS for knob, value in some.items()]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(setting.values()))
def test_nothing_of_it_changes_a_single_bit_on_another_processor(setting):
    """The libraries choose their products by processor; here they take this one for an older or simpler one."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = os.environ | setting | {"PYTHONPATH": paths}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == setting.get("ATEN_CPU_CAPABILITY", HERE).upper()


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer.WORTHWHILE = 2**10  # as in conftest.py: small rounds use their workers
    others, vectors = runs_that_differ()
    sys.stdout.write(" ".join(vectors))
    alone = [found for case in CASES for found in differences(*case)]
    sys.exit("\n".join([*alone, *(f"{name}: a run by the number of workers" for name in others)]) or 0)
