"""Checks of the fields of an Experiment, and the texts that stand for its parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BeforeValidator, Field

from fedweave import data as datasets
from fedweave import models
from fedweave.core import plugins
from fedweave.core.paths import check_path
from fedweave.core.settings import BadInput, brief, choice, nearest, shown
from fedweave.core.spec import build
from fedweave.data import Dataset
from fedweave.data.datasets import OTHERWISE
from fedweave.system.layers import layers_of

BATCH_SIZE = 20


def or_text(role: type, parse: Callable[[str], Any], example: str, optional: bool = False) -> BeforeValidator:
    """Return a check that takes a part, its table of a file, or its text of the command line; None if ``optional``."""

    def convert(given: Any) -> Any:
        if given is None and optional:
            return None
        if isinstance(given, Mapping) and isinstance(given.get("type"), str):
            return build(role, given, role.__name__)
        if not isinstance(given, str | role):
            raise ValueError(f"must be a {role.__name__}, or text such as {example!r}. Got {brief(given)} instead.")
        return parse(given) if isinstance(given, str) else given

    return BeforeValidator(convert)


def check_data(given: Any) -> Dataset | str:
    """Refuse what is no data set, and the name of one that does not exist; return names of plug-ins in full."""
    if not isinstance(given, str | Dataset):
        how = "fedweave.data.from_arrays, from_torch, from_frame or from_huggingface makes one"
        raise ValueError(f"must be a Dataset or the name of one. Got {shown(given)}: {how}.")
    if isinstance(given, str) and given not in datasets.names():
        if plugin := plugins.plugin_text("data", given):
            plugins.find(plugin)
            return plugin
        check_path(given)
        if not given or not os.path.isdir(os.path.expanduser(given)):
            raise BadInput(f"{choice('data set', given, _known('data'))} {OTHERWISE}{plugins.hint(given)}")
    return given


def check_model(given: Any) -> Any:
    """Refuse the name of a model that does not exist; return names of plug-ins in full."""
    if not isinstance(given, str) or given in ("auto", *models.names()):
        return given
    if plugin := plugins.plugin_text("models", given):
        found = plugins.find(plugin)
        if not callable(found):
            raise BadInput(f"{plugin} must be a function or class that makes a torch module. Got {brief(found)}.")
        return plugin
    raise BadInput(choice("model", given, ["auto", *_known("models")]) + plugins.hint(given))


def _known(kind: str) -> list[str]:
    return [*(datasets.names() if kind == "data" else models.names()), *plugins.offered(kind)]


def _split(given: Any) -> Any:
    """Return a list as typed, such as 1,0.5, one by one."""
    if given is None or isinstance(given, str):
        return [part.strip() for part in (given or "").split(",") if part.strip()]
    return given


SETS = ("train", "test")  # of samples on which a model is evaluated


def parse_sets(given: Any) -> Any:
    """Return the sets on which models are evaluated, in one order, each once."""
    given = _split(given)
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"must be train, test or both, such as 'train,test'. Got {shown(given)} instead.")
    if wrong := [name for name in given if name not in SETS]:
        raise BadInput(choice("set", wrong[0], SETS))
    return [name for name in SETS if name in given]


def split_submodels(given: Any) -> Any:
    """Return sub-models as typed, such as 1,0.5 or feddd_a1,feddd_a2, one by one, shares as numbers."""
    given = _split(given)
    return [_as_number(part) for part in given] if isinstance(given, list | tuple) else given


def _as_number(given: Any) -> Any:
    try:
        return float(given)
    except (TypeError, ValueError):
        return given


def check_submodels(given: tuple[float | str, ...]) -> tuple[float | str, ...]:
    """Refuse what is neither a share of the model's widths nor a model."""
    for one in given:
        if one not in models.names() and not (isinstance(one, float) and 0 < one <= 1):
            raise ValueError(f"must be shares in (0, 1] or models. Got {one!r}.{nearest(str(one), models.names())}")
    return given


def default_text(default: str) -> Any:
    """Return a default that is written as on the command line."""
    return Field(default=default, validate_default=True)


def without_effect(experiment: Any) -> list[str]:
    """Return a sentence for each field that is given but that the world replaces for every client."""
    *_, world = layers_of(experiment.system)
    replaced = world.replaces
    given = {"epochs": experiment.epochs, "steps": experiment.steps} if "steps" in replaced else {}
    if "batch_size" in replaced and experiment.batch_size != BATCH_SIZE:
        given["batch_size"] = experiment.batch_size
    who = type(world).__name__
    return [
        f"{name!r} has no effect under {who}, which sets it for every client: leave it out, or change 'system'."
        for name, value in given.items()
        if value is not None
    ]
