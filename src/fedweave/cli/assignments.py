"""What --set changes: PATH=VALUE of all methods, METHOD:PATH=VALUE of some."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedweave.core.settings import BadInput, nearest
from fedweave.core.spec import build, change, paths
from fedweave.runs.experiment import Experiment
from fedweave.runs.plain import to_plain

Changes = Mapping[str, Mapping[str, str]]  # values by the paths of fields, by method


def changes_of(given: Sequence[tuple[str, str]], names: Sequence[str], problems: list[str]) -> Changes:
    """Return what is changed in each method; what is wrong is added to ``problems``."""
    found = {name: dict[str, str]() for name in names}
    for key, value in given:
        some, _, path = key.rpartition(":")
        chosen = [name.strip() for name in some.split(",")] if some else names
        if unknown := [name for name in chosen if name not in found]:
            problems.append(f"--set {key}: {unknown[0]!r} is none of the methods.{nearest(unknown[0], names)}")
        elif some and path.partition(".")[0] != "method":
            way = "method.lr" if path == "lr" else "method.solver"
            problems.append(f"--set {key}: only fields of methods can differ between methods, such as {way}.")
        else:
            for name in chosen:
                found[name][path] = value
    return found


def changed(experiments: Sequence[Experiment], changes: Changes, wrong: Collection[str]) -> list[Experiment]:
    """Return the experiments with their fields changed, but for those that were given wrongly elsewhere."""
    ours = {
        name: {path: value for path, value in own.items() if path.split(".")[0] not in wrong}
        for name, own in changes.items()
    }
    if problems := _lacking(experiments, ours):
        raise BadInput(*problems)
    return [_changed(e, ours[e.method.name]) for e in experiments]


def _lacking(experiments: Sequence[Experiment], changes: Changes) -> list[str]:
    """Return a sentence for every field that only some of the methods have."""
    fields = {e.method.name: paths(to_plain(e)) for e in experiments}
    problems = list[str]()
    for path in dict.fromkeys(path for own in changes.values() for path in own):
        able = [name for name in fields if path.replace("-", "_") in fields[name]]
        lacking = [name for name in fields if path in changes[name] and name not in able]
        if able and lacking:
            has = "has" if len(lacking) == 1 else "have"
            way = f"Set it for those that have it: {','.join(able)}:{path}"
            problems.append(f"--set {path}: {', '.join(lacking)} {has} no field {path!r}. {way}")
    return problems


def _changed(experiment: Experiment, changes: Mapping[str, str]) -> Experiment:
    if not changes:
        return experiment
    spec = change(to_plain(experiment), changes)
    try:
        return build(Experiment, spec, "experiment")
    except BadInput as e:
        raise BadInput(*(f"--set: {problem}" for problem in e.problems)) from None
