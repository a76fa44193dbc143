"""Digest and rows of every method of the zoo: does a change of the code change a result?

Each method runs three rounds on digits and, where it can, on quadratics, and a few in further settings. With
--against the same is done with another checkout of fedweave in this environment, and every difference is listed.

Use: python benchmarks/digests.py --against ../another-checkout
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedweave as fw

parse = fw.partition.parse
ALIASES = {"fedmd"}  # old names of methods that are listed under their new name
RENAMED = {"fedavg_md": "fedmd"}  # so that both sides have one key
UNTIMED = {"wall_seconds"}  # columns that differ from run to run


def zoo() -> dict[str, Any]:
    """Return the named methods by the names of 0.1."""
    found = {n: f for n, f in inspect.getmembers(fw.methods, inspect.isfunction) if f.__module__ == fw.methods.__name__}
    both = {RENAMED.get(n, n): f for n, f in found.items() if n not in ALIASES or "fedavg_md" not in found}
    return {n: f for n, f in sorted(both.items()) if not n.startswith("_")}


def experiments() -> Iterator[tuple[str, Any]]:
    """Yield a name and a function that makes the experiment."""

    def made(method: Any, data: Any, **changes: Any) -> Any:
        base = {"partition": parse("dirichlet:0.5", 12), "system": fw.system.Dynamic(), "rounds": 3, "workers": 1}
        return lambda: fw.Experiment(method=method(4), data=data, **{**base, "seed": 3, **changes})

    digits, quadratics = fw.data.load("digits"), fw.data.load("quadratics")
    for name, method in zoo().items():
        yield f"{name} on digits", made(method, digits)
        yield f"{name} on quadratics", made(method, quadratics, partition=parse("natural", None))
    wireless = {"system": fw.system.Wireless(), "epochs": 1.0}
    for name in ("fedavg", "feddd", "scaffold", "fedpracdelta", "fedcs", "oort"):
        yield f"{name}, wireless, cnn_small", made(zoo()[name], digits, model="cnn_small", **wireless)
    for name in ("fedavg", "feddd"):
        yield f"{name}, sub-models", made(zoo()[name], digits, model="mlp", submodels=(1.0, 0.5), **wireless)
    for name in ("fedavg_is", "fedacs", "fednova"):
        yield f"{name}, calibrated", made(zoo()[name], digits, calibrate=True)
    late = {"system": fw.system.Latency(), "steps": 4, "deadline": 0.6, "over_selection": 1.5}
    yield "fedavg, deadline and over-selection", made(zoo()["fedavg"], digits, **late)
    yield "fedaware, true gradients", made(zoo()["fedaware"], digits, true_gradients=True, tables="disk")


def outcome(make: Any) -> dict[str, Any]:
    """Return the digest and the rows of a run, or why it was refused."""
    try:
        result = fw.run(make())
    except ValueError as e:
        return {"refused": str(e).splitlines()[0]}
    tables = {
        f"{table}.{name}": hashlib.sha256(np.ascontiguousarray(column).tobytes()).hexdigest()[:16]
        for table, columns in (("rounds", result.rounds), ("clients", result.clients))
        for name, column in columns.items()
        if name not in UNTIMED
    }
    return {"digest": result.summary["digest"], **tables}


def main() -> None:
    """Print the outcomes as JSON, or the differences to another checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of fedweave")
    given = parser.parse_args()
    other = None
    if given.against:
        environment = {**os.environ, "PYTHONPATH": str(given.against / "src")}
        run = [sys.executable, __file__]
        other = subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, text=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = {name: outcome(make) for name, make in experiments()}
    if other is None:
        print(json.dumps(ours, indent=1))
        return
    theirs = json.loads(other.communicate()[0])
    differing = 0
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name, {}), theirs.get(name, {})
        fields = [f for f in a.keys() | b.keys() if a.get(f) != b.get(f)]
        differing += bool(fields)
        for field in sorted(fields):
            print(f"{name}: {field}: {b.get(field)} there, {a.get(field)} here")
    print(f"{len(ours)} runs, {differing} differ, {sum('refused' in o for o in ours.values())} refused")


if __name__ == "__main__":
    main()
