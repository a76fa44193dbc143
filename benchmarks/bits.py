"""Same bits whoever trains: digests for any number of workers, for Ray actors and for a fleet in this process.

Eight networks with uneven steps, two rounds each. --imitate does the same in processes that imitate older processors
(ATEN_CPU_CAPABILITY, MKL_ENABLE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA). Exit code 1 if digests differ on one processor.

Use: python benchmarks/bits.py [--imitate] [--no-ray]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

import fedweave as fw
from fedweave import flower
from fedweave.core.records import Population
from fedweave.core.roles import System
from fedweave.local.torch import trainer

CLIENTS, FORM, WORKERS = 10, "dirichlet:0.5", (1, 2, 3, 4, 8)
LEVELS = {
    "SSE": ("default", "SSE4_2", "SSE41"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX-512": ("avx512", "AVX512", "AVX512_CORE"),
}


def flat(*widths: int) -> Callable[[], nn.Module]:
    """Return a maker of a dense network of these widths."""

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


def batch_norm() -> nn.Module:
    """Return a network with running averages."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def dropout() -> nn.Module:
    """Return a network that draws random numbers while it trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 10))


def one_feature() -> fw.data.Dataset:
    """Return samples of a single feature in three classes, 4,000 of them."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4000, 1)).astype(np.float32), rng.integers(0, 3, 4000)
    return fw.data.from_arrays(x, y, test_x=x[:200], test_y=y[:200])


def cases() -> dict[str, tuple[Any, Any, int]]:
    """Return data, model and batch size of each case."""
    digits, mnist = fw.data.load("digits"), fw.data.load("mnist5k")
    return {
        "logistic": (digits, "logistic", 20),
        "mlp": (digits, "mlp", 20),
        "cnn_small": (digits, "cnn_small", 20),
        "lenet5": (mnist, "lenet5", 20),
        "784-128-1-10": (mnist, flat(784, 128, 1, 10), 64),
        "one feature": (one_feature(), flat(1, 3), 300),
        "batch norm": (digits, batch_norm, 20),
        "dropout": (digits, dropout, 20),
    }


@fw.settings
class Uneven(System):
    """Clients take one to six steps, other numbers in every round."""

    def population(self, base: Population, round: int, seed: int) -> Population:
        return replace(base, steps=1 + (7 * np.arange(base.size) + 5 * round) % 6)


def digests(data: Any, model: Any, batch_size: int, ray: bool) -> dict[str, str]:
    """Return the digest of two uneven rounds by who trains."""
    base = fw.Experiment(
        method=fw.methods.fedavg_full(),
        data=data,
        partition=fw.partition.parse(FORM, CLIENTS),
        model=model,
        batch_size=batch_size,
        rounds=2,
        system=Uneven(),
        device="cpu",
    )
    found = {f"{n} workers": fw.run(replace(base, workers=n)).summary["digest"] for n in WORKERS}
    if ray:
        found["2 Ray actors"] = fw.run(replace(base, pool="ray", workers=2)).summary["digest"]
    app = flower.client(model, flower.dealt(data, FORM), device="cpu")
    found["Flower"] = flower.run(base, flower.LocalGrid(app, CLIENTS)).summary["digest"]
    return found


def main() -> None:
    """Print which digests agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imitate", action="store_true")
    trainer.WORTHWHILE = 2**10  # rounds as small as these would not go to workers
    parser.add_argument("--no-ray", action="store_true")
    given = parser.parse_args()
    wrong = 0
    if given.imitate:
        names = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
        for level, values in LEVELS.items():
            print(f"{level}:", flush=True)
            environment = {**os.environ, **dict(zip(names, values, strict=True))}
            wrong += subprocess.run([sys.executable, __file__, "--no-ray"], env=environment).returncode
        sys.exit(min(wrong, 1))
    for name, (data, model, batch_size) in cases().items():
        found = digests(data, model, batch_size, not given.no_ray)
        good = len(set(found.values())) == 1
        wrong += not good
        print(f"  {name:14} {'same bits' if good else found}  {found['1 workers'][:12]}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
