"""Runs kept by content: an interrupted reproduction continues, and items share the runs that they have in common.

A run is named by a digest of everything that decides it: what was asked for, seed, data, the source of the parts that
it uses, versions and processor. Files are written atomically, so that a kill loses the runs under way and no others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedweave
from fedweave.core.spec import describe
from fedweave.data import Dataset
from fedweave.engine.machine import SOFTWARE, processor, versions
from fedweave.papers.common.record import Record, pack, unpack
from fedweave.runs.experiment import Experiment
from fedweave.tables.files import write_file

ROOT = Path(fedweave.__file__).parent
# What every run goes through; parts (samplers, aggregators …) count where a run has them.
ALWAYS = ("core", "tables", "tasks", "local", "data", "models", "round", "client", "engine", "runs", "method.py")
FREE = ("pool", "workers", "device", "tables")  # settings that change no bit


def cache_folder() -> Path:
    """Return where runs are kept: FEDWEAVE_CACHE, else ~/.cache/fedweave/reproduce."""
    return Path(os.environ.get("FEDWEAVE_CACHE") or "~/.cache/fedweave/reproduce").expanduser()


def name_run(work: Callable[..., Record], arm: Any, seed: int) -> str:
    """Return the digest that a run is kept under."""
    facts = {
        "work": f"{work.__module__}.{work.__qualname__}",
        "arm": _describe(arm),
        "seed": seed,
        "source": _digest_of(*sorted({work.__module__, *_modules(arm)})),
        "versions": {name: number for name, number in versions().items() if name in SOFTWARE and name != "fedweave"},
        "processor": processor(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def load_run(name: str) -> Record | None:
    """Return a kept run; None if there is none, or a damaged one."""
    try:
        return unpack(_path(name).read_bytes())
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None


def keep_run(name: str, record: Record) -> None:
    """Keep a run; where the folder cannot be written, it is computed again next time."""
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, pack(record))
    except OSError:
        return


def _path(name: str) -> Path:
    return cache_folder() / name[:2] / f"{name}.npz"


def _describe(arm: Any) -> Any:
    """Return what is asked for as plain data, without what changes no bit; arrays by their digests."""
    if isinstance(arm, Experiment):
        plain = describe(dataclasses.replace(arm, seed=0))
        data = arm.data.facts if isinstance(arm.data, Dataset) else arm.data
        return {**{k: v for k, v in plain.items() if k not in FREE}, "data": data}
    if isinstance(arm, np.ndarray):
        return [str(arm.dtype), arm.shape, hashlib.sha256(np.ascontiguousarray(arm).data).hexdigest()]
    if isinstance(arm, np.generic):
        return arm.item()
    if isinstance(arm, dict):
        return {str(key): _describe(value) for key, value in arm.items()}
    if isinstance(arm, list | tuple):
        return [_describe(value) for value in arm]
    if dataclasses.is_dataclass(arm):
        fields = {f.name: _describe(getattr(arm, f.name)) for f in dataclasses.fields(arm)}
        return {"type": type(arm).__name__, **fields}
    return describe(arm)


def _modules(value: Any) -> Iterator[str]:
    """Yield the modules of the classes and functions that a run is made of."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _modules(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Dataset):
        yield type(value).__module__
        for field in dataclasses.fields(value):
            yield from _modules(getattr(value, field.name))
    elif callable(value):
        yield value.__module__


@cache
def _digest_of(*modules: str) -> str:
    """Return a digest of the source of these modules, of what they import from us, and of what every run uses."""
    files = {path for name in ALWAYS for path in ((ROOT / name).rglob("*.py") if "." not in name else [ROOT / name])}
    waiting = [path for module in modules if (path := _file(module))]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            found = re.findall(r"^\s*(?:from|import) (fedweave[\w.]*)(?: import ([\w, ]+))?", path.read_text(), re.M)
            names = [n for module, names in found for n in (module, *(f"{module}.{x}" for x in names.split(", ")))]
            waiting += [file for name in names if (file := _file(name)) and _is_part(file)]
    sha = hashlib.sha256()
    for path in sorted(files):
        sha.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()


def _file(module: str) -> Path | None:
    """Return the file of one of our modules; packages that only collect names have none."""
    path = ROOT.parent.joinpath(*module.split(".")).with_suffix(".py")
    return path if module.startswith("fedweave.") and path.is_file() else None


def _is_part(path: Path) -> bool:
    """Return whether a file can change what a run computes; the zoo, and what shows results, cannot."""
    first = path.relative_to(ROOT).parts[0]
    return first not in ("cli", "report", "store", "fleet", "papers", "methods.py", "statistics.py")
