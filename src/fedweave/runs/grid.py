"""The grid of a sweep: which fields take which values, the experiments at its points, and the names of their runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedweave.core.settings import BadInput, nearest, shown
from fedweave.core.spec import FIELDS, build, describe, name_of, paths
from fedweave.method import Method
from fedweave.runs.experiment import Experiment
from fedweave.runs.plain import to_plain
from fedweave.runs.same_run import FREE

FIXED = {
    "method": "methods are given as a list of their own",
    "method.name": "it identifies the method",
    "seed": "every point runs with all seeds",
    "validation": "all points are evaluated on the same samples",
    **dict.fromkeys(sorted(FREE), "it changes no result"),
}
OPTIONS = {"clients": "partition.clients", "per_round": "method.sampler.per_round"}  # as the command line calls them
LONGEST_LABEL = 60  # characters of a value in tables
LONGEST = 32  # characters of a value in the name of a run
LONGEST_POINT = 120  # and of all values together


@dataclass(frozen=True)
class Axis:
    """A field that takes several values, of all methods or of some."""

    path: str
    values: tuple[Any, ...]
    labels: tuple[Any, ...]  # how they are shown: numbers and texts, all different
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A method at a point of the grid."""

    stem: str  # of the names of its runs
    point: Mapping[str, Any]  # labels by path
    experiment: Experiment


def grid_of(over: Mapping[str, Sequence[Any]], methods: Sequence[Method], experiment: Experiment) -> list[Place]:
    """Return every method at every point of a grid; everything that is wrong with it is reported at once."""
    problems = list[str]()
    if "test" not in experiment.evaluate:
        problems.append("A sweep chooses by the task's metric: 'evaluate' must include test.")
    axes, places = axes_of(over, methods, experiment, problems), list[Place]()
    try:
        places = places_of(axes, methods, experiment)
    except BadInput as e:
        problems += e.problems
    if problems:
        raise BadInput(*problems)
    return places


def axes_of(
    over: Mapping[str, Sequence[Any]], methods: Sequence[Method], experiment: Experiment, problems: list[str]
) -> list[Axis]:
    """Return the axes of a grid, given as ``{"lr": [0.01, 0.1], "fedprox:method.solver.mu": [0, 0.1]}``.

    Names of methods before a colon restrict an axis to them. Axes that are wrong are added to ``problems`` instead.
    """
    if not isinstance(over, Mapping) or not over:
        raise BadInput(f"A sweep needs fields and their values, such as {{'lr': [0.01, 0.1]}}. Got {shown(over)}.")
    axes, names = list[Axis](), [m.name for m in methods]
    for key, values in over.items():
        some, _, path = str(key).rpartition(":")
        path, chosen = path.replace("-", "_"), [name.strip() for name in some.split(",")] if some else names
        path = OPTIONS.get(path, path)
        wrong = [
            f"over {key!r}: {n!r} is no method of this sweep.{nearest(n, names)}" for n in chosen if n not in names
        ]
        wrong = wrong or _value_problems(key, values) or _path_problems(key, path, chosen, methods, experiment)
        wrong += [
            f"over {key!r}: {path!r} is swept twice for {name}."
            for name in chosen
            if any(_same(axis.path, path) and name in axis.methods for axis in axes)
        ]
        problems += wrong
        if not wrong:
            axes.append(Axis(path, tuple(values), tuple(_unique([label_of(v) for v in values])), tuple(chosen)))
    return axes


def _same(one: str, other: str) -> bool:
    """Return whether two fields are one: a method's own learning rate holds instead of the experiment's."""
    return one == other or {one, other} == {"lr", "method.lr"}


def _value_problems(key: str, values: Any) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
        return [f"over {key!r} takes a list of values. Got {shown(values)}."]
    plain = [_plain(v) for v in values]
    twice = [v for v, text in zip(values, plain, strict=True) if plain.count(text) > 1]
    return [f"over {key!r} has {shown(twice[0])} twice."] if twice and not callable(twice[0]) else []


def _plain(value: Any) -> str:
    """Return a text that equal values share: 1 and 1.0 are one point."""
    plain = describe(value)
    return repr(float(plain)) if isinstance(plain, int | float) else json.dumps(plain, default=repr, sort_keys=True)


def _path_problems(
    key: str, path: str, chosen: Sequence[str], methods: Sequence[Method], experiment: Experiment
) -> list[str]:
    if path in FIXED:
        return [f"over {key!r}: {path!r} cannot be swept, since {FIXED[path]}."]
    if path == "lr" and (own := [m.name for m in methods if m.name in chosen and m.lr is not None]):
        way = f"sweep {','.join(own)}:method.lr instead."
        return [f"over {key!r}: {_and(own)} {'has' if len(own) == 1 else 'have'} a learning rate of its own: {way}"]
    having = {m.name: replace(experiment, method=m) for m in methods}
    lacking = [name for name in chosen if not _has_field(having[name], path)]
    if not lacking:
        return []
    able = [name for name in having if _has_field(having[name], path)]
    if not able:
        known = [p for e in having.values() for p in paths(to_plain(e))]
        return [f"over {key!r}: there is no field {path!r}.{nearest(path, known)} {FIELDS}"]
    way = f"Sweep it for those that have it: {','.join(able)}:{path}"
    return [f"over {key!r}: {_and(lacking)} {'has' if len(lacking) == 1 else 'have'} no field {path!r}. {way}"]


def places_of(axes: Sequence[Axis], methods: Sequence[Method], experiment: Experiment) -> list[Place]:
    """Return every method at every point of the grid; values that fields do not take are errors, all at once."""
    problems, found, taken = dict[str, str](), list[Place](), set[str]()
    shorts = short_names(axis.path for axis in axes)
    for method in methods:
        own = [axis for axis in axes if method.name in axis.methods]
        for number, choice in enumerate(itertools.product(*(range(len(axis.values)) for axis in own)), 1):
            point = {axis.path: axis.labels[i] for axis, i in zip(own, choice, strict=True)}
            stem = _stem(method.name, {shorts[path]: label for path, label in point.items()}, number, taken)
            values = {axis.path: axis.values[i] for axis, i in zip(own, choice, strict=True)}
            try:
                found.append(Place(stem, point, with_fields(replace(experiment, method=method), values)))
            except BadInput as e:
                for problem in e.problems:
                    problems.setdefault(problem, f"{stem}: {problem}")
    if problems:
        raise BadInput(*problems.values())
    return found


def with_fields(settings: Any, values: Mapping[str, Any]) -> Any:
    """Return settings with fields replaced by their paths, each value as the field takes it."""
    own, inner = dict[str, Any](), dict[str, dict[str, Any]]()
    for path, value in values.items():
        head, _, rest = path.partition(".")
        if not _has_field(settings, head):
            raise BadInput(f"{type(settings).__name__} has no field {head!r}.")
        if rest:
            inner.setdefault(head, {})[rest] = value
        else:
            own[head] = value.item() if isinstance(value, np.generic) else value
    tables = {h: v for h, v in own.items() if isinstance(v, Mapping) and not isinstance(settings, Experiment)}
    if tables:  # parts as --set and files have them, {"type": "Yogi"}
        own = {head: value for head, value in own.items() if head not in tables}
        settings = build(type(settings), describe(settings) | tables, type(settings).__name__.lower())
    if both := own.keys() & inner.keys():  # a part that is replaced, and then changed
        settings = replace(settings, **{head: own.pop(head) for head in both})
    own |= {head: with_fields(getattr(settings, head), changes) for head, changes in inner.items()}
    return replace(settings, **own)


def _has_field(settings: Any, path: str) -> bool:
    head, _, rest = path.partition(".")
    if not dataclasses.is_dataclass(settings) or head not in {f.name for f in dataclasses.fields(settings)}:
        return False
    return not rest or _has_field(getattr(settings, head), rest)


def label_of(value: Any) -> Any:
    """Return how a value is shown: a number, a word or a short text."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if value.isprintable() else shown(value)
    if isinstance(value, Mapping) and "type" in value:
        return f"{value['type']}({', '.join(f'{k}={v!r}' for k, v in value.items() if k != 'type')})"[:LONGEST_LABEL]
    if dataclasses.is_dataclass(value):  # by what is not as it always is
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        own = [f"{f.name}={fields[f.name]!r}" for f in dataclasses.fields(value) if not _is_default(f, fields[f.name])]
        text = f"{type(value).__name__}({', '.join(own)})" if own else type(value).__name__
        return text if len(text) <= LONGEST_LABEL and text.isprintable() else shown(value, LONGEST_LABEL)
    return name_of(value) if callable(value) else shown(value, LONGEST_LABEL)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = getattr(field.default, "default", field.default)  # some are declared with pydantic's Field
    return type(default) is type(value) and default == value


def label_text(label: Any) -> str:
    """Return a value of a swept field as it is written in tables."""
    if isinstance(label, bool) or label is None:
        return str(label).lower()
    return f"{label:g}" if isinstance(label, float) else str(label)


def _unique(labels: Iterable[Any]) -> list[Any]:
    """Return labels of which none occurs twice: different values may be shown alike."""
    found: list[Any] = []
    for label in labels:
        numbers = itertools.chain([label], (f"{label} ({n})" for n in itertools.count(2)))
        found.append(next(each for each in numbers if str(each) not in map(str, found)))
    return found


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return what the fields of a sweep are called: the last word of each path; whole paths where two end alike."""
    words = {path: path.rpartition(".")[2] for path in paths}
    return {path: word if list(words.values()).count(word) == 1 else path for path, word in words.items()}


def point_text(point: Mapping[str, Any]) -> str:
    """Return a point in words: lr = 0.1, mu = 0."""
    return ", ".join(f"{name} = {label_text(point[path])}" for path, name in short_names(point).items())


def _stem(method: str, point: Mapping[str, Any], number: int, taken: set[str]) -> str:
    """Return a folder's name for a method at a point, without its seed, that no other has."""
    words = "-".join(f"{name}{_word(value)}" for name, value in point.items())
    name = f"{method}-{words if len(words) <= LONGEST_POINT else f'point{number}'}" if point else method
    names = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
    found = next(each for each in names if each.lower() not in taken)  # also where case makes no difference
    taken.add(found.lower())
    return found


def _word(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", label_text(value)).strip("_")[:LONGEST] or "_"


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
