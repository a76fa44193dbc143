"""Functions that make the models of an experiment, in this process and in workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedweave import models
from fedweave.core import plugins
from fedweave.data import Dataset
from fedweave.runs.experiment import Experiment

if TYPE_CHECKING:
    from torch import nn


def own_model(model: str | Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that makes a model, given itself or as ``module:name``; None for a model of the library."""
    found: Any = plugins.find(model) if isinstance(model, str) and plugins.is_plugin(model) else model
    return None if isinstance(found, str) else found


def model_factory(experiment: Experiment, data: Dataset) -> tuple[str, Callable[[], nn.Module]]:
    """Return the model's name and a function that makes it for this data; a misfit is an error now."""
    own = own_model(experiment.model)
    if own is not None:
        return getattr(own, "__name__", "custom"), own
    fitting = "quadratic" if data.name == "quadratics" else models.default_for(*data.sample)
    name = fitting if experiment.model == "auto" else str(experiment.model)
    models.check(name, *data.sample)
    return name, _Named(name, data)


def submodel_factories(
    experiment: Experiment, model: Callable[[], nn.Module], data: Dataset
) -> list[Callable[[], nn.Module]]:
    """Return functions that make the sub-models; a misfit is an error now."""
    factories: list[Callable[[], nn.Module]] = []
    for given in experiment.submodels:
        if isinstance(given, str):
            models.check(given, *data.sample)
            factories.append(_Named(given, data))
        else:
            factories.append(_Narrow(model, data.shape, given))
    return factories


class _Narrow:
    """A model made narrower, as a factory that can be sent to a worker."""

    def __init__(self, model: Callable[[], nn.Module], shape: tuple[int, ...], share: float):
        self.arguments = (model, shape, share)

    def __call__(self) -> nn.Module:
        from fedweave.local.submodels import shrunk

        return shrunk(*self.arguments)


class _Named:
    """A model by name, as a factory that can be sent to a worker."""

    def __init__(self, name: str, data: Dataset):
        self.arguments = (name, *data.sample)

    def __call__(self) -> nn.Module:
        return models.build(*self.arguments)
