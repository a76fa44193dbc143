"""Settings as plain data and back: what a run folder keeps, what ``--set`` changes, what travels to another process."""

from __future__ import annotations

import dataclasses
import inspect
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fedweave.core import plugins
from fedweave.core.settings import BadInput, brief, choice, nearest

T = TypeVar("T")
FIELDS = "All fields are in experiment.json of any run folder."


def describe(value: Any) -> Any:
    """Return ``value`` as JSON-able data; a part becomes the name of its class and its fields."""
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type_name(type(value)), **fields}
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
    Others are imported if they are named as ``module:Class`` by somebody to be trusted.
    """
    if not isinstance(spec, Mapping) or "type" not in spec:
        known = ", ".join(kinds(role))
        raise BadInput(f"{path} must be a table with a 'type', one of {known}. Got {reprlib.repr(spec)} instead.")
    try:
        cls = _class_of(role, spec["type"])
    except BadInput as e:
        raise BadInput(*(f"{path}: {problem}" for problem in e.problems)) from e.__cause__
    hints, problems, arguments = get_type_hints(cls), [], {}
    for name, value in spec.items():
        try:
            part = _role_in(hints.get(name)) if isinstance(value, Mapping) and "type" in value else None
            arguments[name] = build(part, value, f"{path}.{name}") if part else value
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(*problems)
    arguments.pop("type")
    try:
        return cls(**arguments)
    except BadInput as e:
        raise BadInput(*(f"{path}: {problem}" for problem in e.problems)) from e.__cause__
    except (TypeError, KeyError) as e:  # a nested part without its type, or a table where a number belongs
        raise BadInput(f"{path} cannot be read: {e}.") from None


def _class_of(role: type[T], name: Any) -> type[T]:
    """Return the class of a role with this name: known by its full name, then by its own, or imported."""
    known = {type_name(cls): cls for cls in _concrete(role)}
    cls = (known.get(name) or kinds(role).get(name)) if isinstance(name, str) else None
    if cls is None and plugins.is_plugin(name):
        cls = plugins.find(name)
        if not isinstance(cls, type) or not issubclass(cls, role) or cls not in _concrete(cls):
            raise BadInput(f"{name} must be a class of {role.__name__}, declared with @settings. Got {brief(cls)}.")
    if cls is None:
        raise BadInput(choice(role.__name__.lower(), name, kinds(role)) + plugins.hint(name))
    return cls


def _role_in(hint: Any) -> type | None:
    """Return the class that a field is declared with, which may be optional; None where it has none or several."""
    several = get_origin(hint) in (Union, UnionType)
    found = [part for part in get_args(hint) if part is not NoneType] if several else [hint]
    return found[0] if len(found) == 1 and isinstance(found[0], type) else None


def type_name(cls: type) -> str:
    """Return how stored settings name a class: ours by its name, a user's own as ``module:Class``."""
    module = plugins.module_of(cls)
    return f"{module}:{cls.__qualname__}" if module else cls.__name__


def kinds(role: type[T]) -> dict[str, type[T]]:
    """Return the concrete classes of a role by name; where several have one name, ours."""
    found: dict[str, type[T]] = {}
    for cls in _concrete(role):
        if cls.__name__ not in found or cls.__module__.startswith("fedweave."):
            found[cls.__name__] = cls
    return found


def _concrete(role: type[T]) -> list[type[T]]:
    every = [role]
    for cls in every:  # which grows by those that inherit from it
        every += [below for below in cls.__subclasses__() if below not in every]
    declared = (cls for cls in every if "__dataclass_fields__" in vars(cls))  # not only what it inherits from
    return [cls for cls in declared if not inspect.isabstract(cls)]


def change(spec: dict[str, Any], assignments: Mapping[str, str]) -> dict[str, Any]:
    """Return ``spec`` with values replaced by path, such as ``method.sampler.per_round``; unknown paths are errors."""
    spec, problems = json.loads(json.dumps(spec)), []
    for path, text in assignments.items():
        *parents, last = path.replace("-", "_").split(".")
        node: Any = spec
        for name in parents:
            node = node.get(name) if isinstance(node, Mapping) else None
        if isinstance(node, dict) and last in node:
            node[last] = read_value(text)
        else:
            problems.append(f"--set: there is no field {path!r}.{nearest(path, paths(spec))} {FIELDS}")
    if problems:
        raise BadInput(*problems)
    return spec


def read_value(text: str) -> Any:
    """Read a value as JSON where it is JSON (numbers, true, null, lists), else as a word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def paths(spec: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the paths of all fields of plain settings, such as ``method.sampler.per_round``."""
    inner = [p for k, v in spec.items() if isinstance(v, Mapping) for p in paths(v, f"{prefix}{k}.")]
    return [prefix + k for k in spec] + inner
