"""Settings as plain data and back: what a run folder keeps, what ``--set`` changes, what travels to another process."""

from __future__ import annotations

import dataclasses
import inspect
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedweave.core.settings import BadInput, choice, nearest

T = TypeVar("T")


def describe(value: Any) -> Any:
    """Return ``value`` as JSON-able data; a part becomes its class name and its fields."""
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return {"type": "python", "name": name_of(value)}
    return value


def name_of(function: Any) -> str:
    """Return what a function is called; one without a name, such as a partial, by its type: the same in any process."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def build(role: type[T], spec: Any, path: str) -> T:
    """Return the part of this role that ``spec`` describes. ``path`` names it in errors.

    Class names are looked up among the subclasses of the role: a part that is imported is known, there is no list.
    """
    known = kinds(role)
    if not isinstance(spec, Mapping) or "type" not in spec:
        raise BadInput(
            f"{path} must be a table with a 'type', one of {', '.join(known)}. Got {reprlib.repr(spec)} instead."
        )
    cls = known.get(spec["type"]) if isinstance(spec["type"], str) else None
    if cls is None:
        raise BadInput(f"{path}: " + choice(role.__name__.lower(), spec["type"], known))
    hints, problems, arguments = get_type_hints(cls), [], {}
    for name, value in spec.items():
        try:
            nested = isinstance(value, Mapping) and "type" in value and isinstance(hints.get(name), type)
            arguments[name] = build(hints[name], value, f"{path}.{name}") if nested else value
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(*problems)
    arguments.pop("type")
    try:
        return cls(**arguments)
    except BadInput as e:
        raise BadInput(*(f"{path}: {problem}" for problem in e.problems)) from None
    except (TypeError, KeyError) as e:  # a nested part without its type, or a table where a number belongs
        raise BadInput(f"{path} cannot be read: {e}.") from None


def kinds(role: type[T]) -> dict[str, type[T]]:
    """Return the concrete classes of a role by name."""
    return {
        c.__name__: c
        for c in (role, *role.__subclasses__())
        if not inspect.isabstract(c) and dataclasses.is_dataclass(c)
    }


def change(spec: dict[str, Any], assignments: Mapping[str, str]) -> dict[str, Any]:
    """Return ``spec`` with values replaced by path, such as ``method.sampler.per_round``; unknown paths are errors."""
    spec, problems = json.loads(json.dumps(spec)), []
    for path, text in assignments.items():
        *parents, last = path.replace("-", "_").split(".")
        node: Any = spec
        for name in parents:
            node = node.get(name) if isinstance(node, Mapping) else None
        if isinstance(node, dict) and last in node:
            node[last] = _value(text)
        else:
            problems.append(f"--set: there is no field {path!r}.{nearest(path, _paths(spec))}")
    if problems:
        raise BadInput(*problems)
    return spec


def _value(text: str) -> Any:
    """Read a value as JSON where it is JSON (numbers, true, null, lists), else as a word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _paths(spec: Mapping[str, Any], prefix: str = "") -> list[str]:
    inner = [p for k, v in spec.items() if isinstance(v, Mapping) for p in _paths(v, f"{prefix}{k}.")]
    return [prefix + k for k in spec] + inner
