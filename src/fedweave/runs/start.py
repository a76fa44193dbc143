"""Where a model begins: a state dict, given in Python or read from a file, in place of values drawn at random."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.core.paths import check_path
from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief, shown

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]
SUFFIXES = (".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class Start:
    """First values of a model: the path of a file, or arrays by name; they are compared by path and digest."""

    path: str | None
    sha256: str = ""  # of arrays; that of a file is taken when it is read
    values: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)

    def describe(self) -> Any:
        """Return how a run folder refers to these values."""
        return self.path or {"type": "arrays", "sha256": self.sha256}

    def read(self) -> tuple[Mapping[str, Array], str]:
        """Return the values, and their digest."""
        if self.path is None:
            return self.values, self.sha256
        try:
            content = Path(self.path).read_bytes()
        except OSError as e:
            raise BadInput(f"The start file {self.path!r} cannot be read: {e.strerror}.") from None
        found = _tensors(content, self.path)
        return _arrays(found, f"The start file {self.path!r}"), hashlib.sha256(content).hexdigest()


def check_start(given: Any) -> Start | None:
    """Return the start that a user gave: a file, or a state dict; refuse what cannot be one."""
    if given is None or isinstance(given, Start):
        return given
    if isinstance(given, Mapping):
        values = _arrays(given, "The 'start' of an Experiment")
        return Start(None, _digest(values), values)
    if not isinstance(given, str | Path) or not str(given).endswith(SUFFIXES):
        what = f"must be a state dict, or a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise ValueError(f"{what}. Got {shown(given)} instead.")
    check_path(given)
    path = os.path.abspath(os.path.expanduser(given))
    if not os.path.isfile(path):
        raise BadInput(f"There is no start file {path!r}.")
    return Start(path)


def _tensors(content: bytes, path: str) -> Any:
    """Return what a file holds; nothing in it is executed."""
    import torch
    from safetensors.torch import load

    try:
        if path.endswith(".safetensors"):
            return load(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as e:  # whatever a damaged or foreign file leads to
        line = brief((str(e).splitlines() or [type(e).__name__])[0], 200).rstrip(".")
        raise BadInput(f"The start file {path!r} cannot be read as a state dict: {line}.") from None


def _arrays(given: Any, who: str) -> dict[str, Array]:
    """Return copies of the tensors of a state dict."""
    if not isinstance(given, Mapping):
        raise BadInput(f"{who} must hold a state dict, names and tensors. It holds a {type(given).__name__}.")
    found: dict[str, Array] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not hasattr(value, "shape"):
            what = f"{brief(str(name))!r}, a {type(value).__name__}"
            raise BadInput(f"{who} must be a state dict, names and tensors: module.state_dict(). It has {what}.")
        found[name] = _array(value)
    return found


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()  # NumPy has no bfloat16
    return np.array(value)


def _digest(values: Mapping[str, Array]) -> str:
    sha = hashlib.sha256()
    for name, array in sorted(values.items()):
        sha.update(f"{name}{array.dtype}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def started(model: Callable[..., nn.Module], start: Start | None) -> tuple[Callable[..., nn.Module], Any]:
    """Return the function that makes the model with its first values set, and what the manifest says of them."""
    if start is None:
        return model, None
    values, sha256 = start.read()
    return Started(model, values), {"path": start.path, "sha256": sha256}


class Started:
    """A model that begins with given values, as a factory that can be sent to a worker."""

    def __init__(self, model: Callable[..., nn.Module], values: Mapping[str, Array]):
        self.__wrapped__ = model  # inspect.signature looks here: whether it takes a seed
        self._values = values

    def __call__(self, **arguments: Any) -> nn.Module:
        import torch
        from torch.nn.parameter import is_lazy

        from fedweave.local.torch.flat_module import copied

        module = copied(self.__wrapped__(**arguments))  # it may be handed out again
        mine = module.state_dict(keep_vars=True)
        shared = {id(mine[name]) for name in self._values if name in mine}  # files may keep such tensors once
        wanted = {name: tensor for name, tensor in mine.items() if name in self._values or id(tensor) not in shared}
        shapes = {name: None if is_lazy(tensor) else tuple(tensor.shape) for name, tensor in wanted.items()}
        given = {name: array.shape for name, array in self._values.items()}
        if problem := first_difference(given, shapes, "The start values", "the model"):
            raise BadInput(problem)
        module.load_state_dict({n: torch.from_numpy(array) for n, array in self._values.items()}, strict=False)
        return module


def first_difference(given: Mapping[str, Shape], wanted: Mapping[str, Shape | None], these: str, those: str) -> str:
    """Return a sentence about the first tensor in which names or shapes differ; a shape of None fits any."""
    for name, shape in wanted.items():
        if name not in given:
            return f"{these} lack {brief(name)!r}, which {those} has."
        if shape is not None and shape != given[name]:
            return f"{these} have {brief(name)!r} as {given[name]}, but in {those} it is {shape}."
    extra = next((name for name in given if name not in wanted), None)
    return "" if extra is None else f"{these} have {brief(extra)!r}, which {those} does not have."
