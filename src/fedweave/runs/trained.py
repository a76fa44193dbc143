"""The trained model of a run, as a torch module or as tensors by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedweave import models
from fedweave.core.records import Array, Layout
from fedweave.core.settings import BadInput, brief, choice
from fedweave.local.torch.flat_module import (
    build_module,
    constants_digest,
    has_lazy_layers,
    layout_of,
    named_tensors,
    travelling,
)
from fedweave.runs.results import primary_of
from fedweave.runs.start import first_difference

if TYPE_CHECKING:
    from fedweave.runs.results import Result

Which = Literal["last", "best"]


def trained_module(result: Result, factory: Callable[..., nn.Module] | None, which: Which) -> nn.Module:
    """Return a new module with the trained values, ready to be used (``eval``)."""
    x, layout = _vector(result, which), _layout(result)
    module = _fresh(result, factory, layout)
    tensors = named_tensors(layout, x)
    if has_lazy_layers(module):
        module.load_state_dict(tensors, strict=False)  # which gives them their sizes
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = {name: tuple(tensor.shape) for part in travelling(module) for name, tensor in part.items()}
    if why := first_difference(shapes, wanted, "The trained values", "this model"):
        raise BadInput(why)
    known = result.manifest["model"].get("constants")
    if known is not None and known != constants_digest(module):
        warnings.warn(
            "The model has other frozen parameters or constants than in the run: load those of the run into it, "
            "for instance its start values.",
            stacklevel=3,
        )
    with torch.no_grad():
        for part in travelling(module):
            for name, target in part.items():
                target.copy_(tensors[name])
    return module.eval()


def trained_tensors(result: Result, which: Which) -> tuple[dict[str, Tensor], bool]:
    """Return the tensors of the trained model by name, and whether these are all that its state dict has.

    Of a model that was given in Python only those are known that travelled between server and clients.
    """
    if is_named(result):
        return trained_module(result, None, which).state_dict(), True
    tensors = named_tensors(_layout(result), _vector(result, which))
    return {name: tensor.clone() for name, tensor in tensors.items()}, False


def is_named(result: Result) -> bool:
    """Return whether the model is one of the library."""
    return bool((result.manifest.get("model") or {}).get("sample"))


def _vector(result: Result, which: str) -> Array:
    if result.x is None:
        raise BadInput("This result has no model: only rows of the run were kept or could be read.")
    if which == "last":
        return result.x
    if which != "best":
        raise BadInput(choice("model", which, ["last", "best"]))
    metric, higher = primary_of(result.rounds, result.manifest.get("task"))
    values = result.rounds.get(metric, np.empty(0))
    seen = np.flatnonzero(np.isfinite(values))
    if not seen.size:
        raise BadInput("This run was never evaluated, so none of its models is known to be the best: take the last.")
    best = result.rounds["round"][seen[(np.argmax if higher else np.argmin)(values[seen])]]
    if not result.best or result.best["round"] != best:
        raise BadInput(
            f"The model of round {best}, the best of this run, was not kept: an older version of fedweave began the "
            "run. Take the last one."
        )
    return result.best["x"]


def _layout(result: Result) -> Layout:
    stored = result.manifest.get("model") or {}
    names, shapes = stored.get("names"), stored.get("shapes")
    if names is None or shapes is None:
        raise BadInput(
            "An older version of fedweave began this run and did not keep the names and shapes of its model: it cannot "
            "be taken out."
        )
    layout = Layout(tuple(names), tuple(map(tuple, shapes)), stored["parameters"])
    assert result.x is not None
    if len(names) != len(shapes) or len(set(names)) < len(names) or layout.dim != result.x.size:
        raise BadInput(f"The manifest describes another model than the {result.x.size:,} values of the last state.")
    return layout


def _fresh(result: Result, factory: Callable[..., nn.Module] | None, layout: Layout) -> nn.Module:
    """Return a new module of the run's model, with the constants that it had in the run."""
    factory = factory or result.factory
    if factory is not None:
        return build_module(factory, int(result.experiment["seed"]))
    stored = result.manifest["model"]
    if not is_named(result):
        raise BadInput(
            f"The model {brief(stored['name'])} of this run was given in Python: give the function that makes it, "
            "result.model(function)."
        )
    sample: dict[str, Any] = {k: stored["sample"][k] for k in ("shape", "classes", "tokens", "each", "outputs")}
    try:
        with torch.device("meta"):  # before memory is taken for what a manifest claims
            same = layout_of(models.build(stored["name"], **sample)).shapes == layout.shapes
    except (RuntimeError, TypeError, ValueError, OverflowError) as e:
        raise BadInput(f"The manifest describes a model that cannot be built: {brief(str(e), 200)}") from None
    if not same:
        raise BadInput(f"The manifest describes another model than {stored['name']} is.")
    return build_module(lambda: models.build(stored["name"], **sample), int(result.experiment["seed"]))
