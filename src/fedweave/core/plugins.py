"""Plug-ins: parts in a user's own modules, named as ``module:name``, or by entry points of installed packages."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedweave.core.errors import BadInput, brief, nearest
from fedweave.core.paths import check_import

T = TypeVar("T")
FORM = re.compile(r"(?!\d)\w+(\.(?!\d)\w+)*:(?!\d)\w+(\.(?!\d)\w+)*")
NAMED = ("type", "model", "data", "task")  # fields of a stored experiment that may name a plug-in
search_here = False  # set by the command line: modules of the current folder can be named

_found: set[str] = set()  # the names that somebody to be trusted gave in this process


def is_plugin(text: Any) -> bool:
    """Return whether a text has the form ``module:name``."""
    return isinstance(text, str) and FORM.fullmatch(text) is not None


def plugin_text(kind: str, text: str) -> str | None:
    """Return the ``module:name`` that a text is or that a package offers under it for this kind; None if neither.

    ``kind`` is methods, data, models, partitions, systems, tasks or uploads.
    """
    return text if is_plugin(text) else offered(kind).get(text)


def offered(kind: str, every: Any = None) -> dict[str, str]:
    """Return the plug-ins of a kind that installed packages bring as entry points, by name; nothing is imported.

    ``every``: what ``entry_points()`` returned, for callers that ask for several kinds: finding them takes a while.
    """
    points = (metadata.entry_points() if every is None else every).select(group=f"fedweave.{kind}")
    return {point.name: text for point in points if is_plugin(text := f"{point.module}:{point.attr}")}


def info(kind: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the known names and what they are, and those that installed packages add."""
    return {**{name: f"plug-in: {text}" for name, text in offered(kind).items() if name not in known}, **known}


def hint(text: Any) -> str:
    """Return how a plug-in is written, for an error about a text that looks like one."""
    written = " A plug-in is written module:name, such as my_module:my_name, and the module as it is imported."
    return written if isinstance(text, str) and ":" in text else ""


def find(text: str) -> Any:
    """Return what ``module:name`` stands for.

    The module is imported if whoever named it is to be trusted, or was when the same name was found before.
    """
    module_name, _, path = text.partition(":")
    if text not in _found:
        check_import(text)
    found, place = _imported(module_name), module_name
    for name in path.split("."):
        if not hasattr(found, name):
            public = [n for n in vars(found) if not n.startswith("_")] if hasattr(found, "__dict__") else []
            raise BadInput(f"There is no {name!r} in {place}.{nearest(name, public)}")
        found, place = getattr(found, name), f"{place}:{name}"
    _found.add(text)
    return found


def make(text: str, role: type[T], what: str, call: Callable[[Any], Any] = lambda make: make()) -> T:
    """Return the plug-in, or what it makes when it is called, which must have this role; ``what`` says so in errors."""
    found = find(text)
    if not isinstance(found, role) and callable(found):
        try:
            made = call(found)
        except Exception as e:
            raise failure(f"{text} failed", e) from e
        if not isinstance(made, role):
            raise BadInput(f"{text} must return {what}. It returned {brief(made)}.")
        return made
    if not isinstance(found, role):
        raise BadInput(f"{text} must be {what}, or a function that returns one. Got {brief(found)}.")
    return found


def needs(function: Callable[..., Any], name: str) -> bool:
    """Return whether a class or function has a parameter of this name without a default."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def module_of(cls: type) -> str:
    """Return the module of a class that is a plug-in; nothing for ours, and for those that cannot be imported."""
    importable = cls.__module__ not in ("__main__", "__mp_main__") and "<locals>" not in cls.__qualname__
    return cls.__module__ if importable and cls.__module__.partition(".")[0] != "fedweave" else ""


def fingerprints(plain: Any) -> dict[str, str]:
    """Return the version and the digest of each module whose plug-ins a plain experiment names."""
    modules = sorted({text.partition(":")[0] for text in _named(plain)})
    return {name: _fingerprint(sys.modules[name]) for name in modules if name in sys.modules}


def not_imported(plain: Any) -> list[str]:
    """Return the plug-ins that a plain experiment names and that this process has not imported."""
    named = dict.fromkeys(_named(plain))
    return [text for text in named if text not in _found and text.partition(":")[0] not in sys.modules]


def _named(plain: Any) -> Iterable[str]:
    if isinstance(plain, Mapping):
        yield from (text for key, text in plain.items() if key in NAMED and is_plugin(text))
    inner = plain.values() if isinstance(plain, Mapping) else plain if isinstance(plain, list | tuple) else ()
    for value in inner:
        yield from _named(value)


def _fingerprint(module: ModuleType) -> str:
    """Return the version of a module's package and the SHA-256 of its file, as far as it has them."""
    parts: list[str] = []
    with suppress(metadata.PackageNotFoundError):
        parts.append(metadata.version(module.__name__.partition(".")[0]))
    with suppress(AttributeError, OSError):
        parts.append("sha256:" + hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest())
    return " ".join(parts) or "unknown"


def _imported(name: str) -> ModuleType:
    if search_here and os.getcwd() not in sys.path:  # as `python -m` has it; worker processes inherit it
        sys.path.insert(0, os.getcwd())
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        missing = e.name or name
        if name != missing and not name.startswith(f"{missing}."):
            raise BadInput(f"The module {name} needs {missing}, which is not installed.") from e
        way = f"write it as {missing.replace('.', '/')}.py into the current folder, or install it"
        raise BadInput(f"There is no module {missing!r}.{_nearest_module(missing)} Otherwise {way}.") from None
    except (Exception, SystemExit) as e:
        raise failure(f"The module {name} cannot be imported", e) from e


def _nearest_module(name: str) -> str:
    """Return the nearest name of a module beside it, or in the folders that a user's own modules come from."""
    parent = name.rpartition(".")[0]
    folders = list(getattr(sys.modules.get(parent), "__path__", ())) if parent else [os.getcwd(), sys.path[0]]
    found = [entry for folder in folders if os.path.isdir(folder) for entry in sorted(Path(folder).iterdir())]
    modules = {entry.stem for entry in found if entry.suffix == ".py" or (entry / "__init__.py").is_file()}
    return nearest(name, [f"{parent}.{module}" if parent else module for module in modules])


def failure(what: str, error: BaseException) -> BadInput:
    """Return one sentence for an exception of the user's own code, with its place."""
    if isinstance(error, BadInput):
        return BadInput(*(f"{what}: {problem}" for problem in error.problems))
    line = brief((str(error).splitlines() or [""])[0], 300).rstrip(".")
    said = f"{type(error).__name__}: {line}" if line else type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({os.path.basename(place.filename)}:{place.lineno})"
    return BadInput(f"{what}: {said}{where}.")
