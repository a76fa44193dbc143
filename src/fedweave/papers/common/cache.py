"""Runs kept by content: an interrupted reproduction continues, and items share the runs that they have in common.

A run is named by a digest of everything that decides it: what was asked for, seed, data, the source of the parts that
it uses, versions and processor. Files are written atomically, so that a kill loses the runs under way and no others.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedweave
from fedweave.core.spec import describe
from fedweave.data import Dataset
from fedweave.engine.machine import SOFTWARE, processor, versions
from fedweave.papers.common.record import Record, pack, unpack
from fedweave.runs.experiment import Experiment, load_data
from fedweave.tables.files import write_file

ROOT = Path(fedweave.__file__).parent
# What every run goes through; parts (samplers, aggregators …) count where a run has them.
ALWAYS = ("core", "tables", "tasks", "local", "data", "models", "round", "client", "engine", "runs", "method.py")
SHOWING = ("cli", "report", "store", "fleet", "statistics.py")  # cannot change what a run computes
NAMING = ("methods.py", "runs/method_names.py", "system/names.py")  # parts by name: a run has the parts themselves
FREE = ("pool", "workers", "device", "tables")  # settings that change no bit, on a CPU


def cache_folder() -> Path:
    """Return where runs are kept: FEDWEAVE_CACHE, else ~/.cache/fedweave/reproduce."""
    return Path(os.environ.get("FEDWEAVE_CACHE") or "~/.cache/fedweave/reproduce").expanduser()


class Facts(NamedTuple):
    """What decides a run, by digests: what was asked for, and by which software and processor it is computed."""

    name: str  # of all of it: what the run is kept under
    settings: str  # of what was asked for: experiment, seed and data
    source: str  # of the parts that it uses
    versions: Mapping[str, str]
    processor: Mapping[str, str]


def run_facts(work: Callable[..., Record], arm: Any, seed: int) -> Facts:
    """Return what decides a run."""
    asked = {"work": f"{work.__module__}.{work.__qualname__}", "arm": describe_arm(arm), "seed": seed}
    source = _digest_of(*sorted({work.__module__, *_modules(arm)}))
    software = {name: number for name, number in versions().items() if name in SOFTWARE and name != "fedweave"}
    how = {"source": source, "versions": software, "processor": processor()}
    return Facts(_sha256(asked | how), _sha256(asked), **how)


def name_run(work: Callable[..., Record], arm: Any, seed: int) -> str:
    """Return the digest that a run is kept under."""
    return run_facts(work, arm, seed).name


@cache
def code_digest() -> str:
    """Return a digest of the library's whole source."""
    return _digest_of_files(sorted(ROOT.rglob("*.py")))


def _sha256(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def load_run(name: str) -> Record | None:
    """Return a kept run; None if there is none, or a damaged one."""
    try:
        content = _path(name).read_bytes()
    except OSError:
        return None
    return unpack(content[32:]) if hashlib.sha256(content[32:]).digest() == content[:32] else None


def keep_run(name: str, record: Record) -> None:
    """Keep a run; where the folder cannot be written, it is computed again next time."""
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = pack(record)
        write_file(path, hashlib.sha256(content).digest() + content)
    except OSError:
        return


def _path(name: str) -> Path:
    return cache_folder() / name[:2] / f"{name}.npz"


def describe_arm(arm: Any) -> Any:
    """Return what is asked for as plain data, without what changes no bit; arrays by their digests."""
    if isinstance(arm, Experiment):
        plain = describe(dataclasses.replace(arm, seed=0))
        return {
            **{k: v for k, v in plain.items() if k not in FREE},
            "data": describe_arm(load_data(arm)),
            "model": describe_arm(arm.model),
        }
    if isinstance(arm, Dataset):
        ways = ("group", "test_group", "mean", "std", "classes", "vocabulary", "transform")
        return {**arm.facts, **{way: describe_arm(getattr(arm, way)) for way in ways}}
    if isinstance(arm, np.ndarray):
        return [str(arm.dtype), arm.shape, hashlib.sha256(np.ascontiguousarray(arm).data).hexdigest()]
    if isinstance(arm, np.generic):
        return arm.item()
    if isinstance(arm, dict):
        return {str(key): describe_arm(value) for key, value in arm.items()}
    if isinstance(arm, list | tuple):
        return [describe_arm(value) for value in arm]
    if dataclasses.is_dataclass(arm):
        fields = {f.name: describe_arm(getattr(arm, f.name)) for f in dataclasses.fields(arm)}
        return {"type": type(arm).__name__, **fields}
    if callable(arm) and "<" in getattr(arm, "__qualname__", "<"):  # a lambda, an inner function, a partial
        raise TypeError(f"A run is kept by the names of its functions, and {arm!r} has none that stands for it.")
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
    """Return a digest of the source of these modules, of what every run uses, and of all that they import from us."""
    always = [path for name in ALWAYS for path in ((ROOT / name).rglob("*.py") if "." not in name else [ROOT / name])]
    files, waiting = set[Path](), [*always, *(path for module in modules if (path := _file(module)))]
    while waiting:
        path = waiting.pop()
        if path not in files and path.relative_to(ROOT).parts[0] not in SHOWING:
            files.add(path)
            ours = path.relative_to(ROOT).parts[0] == "papers"  # a work that builds methods itself
            waiting += [file for file in _imports(path) if ours or file.relative_to(ROOT).as_posix() not in NAMING]
    return _digest_of_files(sorted(files))


def _digest_of_files(files: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for path in files:
        sha.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()


@cache  # as are those below: hundreds of runs are named, and a file is read once
def _imports(path: Path) -> tuple[Path, ...]:
    """Return the files of ours that a file imports; a name that a package only passes on, where it is defined."""
    found = (_defined(module, name) for module, name, _ in _imported(path) if module.partition(".")[0] == "fedweave")
    return tuple(dict.fromkeys(file for file in found if file))


@cache
def _imported(path: Path) -> tuple[tuple[str, str, str], ...]:
    """Return what a file imports: module, name ("" for a whole module), and what it calls it."""
    found = list[tuple[str, str, str]]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "", "") for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name, alias.asname or alias.name) for alias in node.names]
    return tuple(found)


@cache
def _defined(module: str, name: str) -> Path | None:
    """Return the file that defines a name of a module of ours."""
    if found := _file(f"{module}.{name}") or _file(module):
        return found
    package = ROOT.parent.joinpath(*module.split("."), "__init__.py")
    if module == "fedweave" or not package.is_file():
        return None
    passed_on = ((source, original) for source, original, known_as in _imported(package) if known_as == name)
    return next((_defined(*origin) for origin in passed_on), package)


def _file(module: str) -> Path | None:
    """Return the file of one of our modules; None for a package."""
    path = ROOT.parent.joinpath(*module.split(".")).with_suffix(".py")
    return path if module.startswith("fedweave.") and path.is_file() else None
