"""An experiment as plain data, as run folders keep it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedweave.core import plugins
from fedweave.core.paths import check_import, from_run_folder
from fedweave.core.settings import BadInput
from fedweave.core.spec import build, describe
from fedweave.runs.experiment import OPTIONS, Experiment


def to_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as JSON-able data; data given as arrays is named by its digest."""
    return describe(experiment)


def from_plain(spec: Mapping[str, Any], trust: bool = False) -> Experiment:
    """Return the experiment that ``to_plain`` described; one with arrays or own modules needs Python.

    Parts are looked up among those that this process knows. Only with ``trust`` it may name plug-ins to import and
    files to read, since it may come from somebody else.
    """
    if not isinstance(spec, Mapping) or not {"data", "model"} <= spec.keys():
        raise BadInput(f"An experiment is a table with 'data', 'model' and more. Got {str(spec)[:60]!r} instead.")
    refuse_old_fields(spec)
    given = {"arrays": spec["data"], "a model": spec["model"]}
    given |= {"a task": spec.get("task") or "", "start values": spec.get("start") or ""}
    if what := next((what for what, text in given.items() if not isinstance(text, str)), None):
        raise BadInput(
            f"This run used {what} given in Python: resume it there, with fedweave.resume(folder, experiment)."
        )
    with from_run_folder(trust):
        check_import(*plugins.not_imported(spec))
        return build(Experiment, spec, "experiment")


def refuse_old_fields(spec: Mapping[str, Any]) -> None:
    """Refuse the experiment of a run that another version of fedweave began."""
    known = ("type", "method", "pacing", *OPTIONS)
    if unknown := [repr(name) for name in spec if name not in known]:
        raise BadInput(
            f"Another version of fedweave began this run: an Experiment of this one has no {', '.join(unknown)}. "
            "Continue it with that version; `fedweave report` and `fedweave export` can read it."
        )
