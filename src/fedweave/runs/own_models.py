"""The model of an experiment is tried on a few samples before anything else: what cannot be trained is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief
from fedweave.data import Dataset
from fedweave.local.torch.flat_module import build_module, initial_vector, travelling
from fedweave.local.torch.threads import one_thread


@one_thread()  # as everywhere: other threads would not survive a fork of this process
def first_vector(name: str, model: Callable[[], nn.Module], data: Dataset, seed: int) -> Array:
    """Return the model's initial values, drawn at the experiment's own address, once it is known to fit the data."""
    module = _built(name, model, seed)
    _check_parameters(name, module)
    count = 3 if data.classes == 2 else 2  # another number than that of the classes
    try:
        with torch.enable_grad():
            out = module.eval()(torch.zeros(count, *data.shape))
    except Exception as e:
        shape = "×".join(map(str, data.shape))
        raise BadInput(f"The model {name} does not take samples of shape {shape}: {_line(e)}") from None
    _check_output(name, out, (count, data.classes) if data.classes else (count,), data)
    return initial_vector(module)


def _built(name: str, model: Any, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        raise BadInput("The 'model' of an Experiment must be a name or a function that makes a module: lambda: module.")
    try:
        module = build_module(model, seed)
    except BadInput:
        raise
    except Exception as e:  # the user's own code: its traceback is worth keeping
        raise BadInput(f"The function that makes the model {name} failed: {type(e).__name__}: {_line(e)}.") from e
    if not isinstance(module, nn.Module):
        raise BadInput(f"The 'model' of an Experiment must be a name or make a torch module. It made {brief(module)}.")
    return module


def _check_parameters(name: str, module: nn.Module) -> None:
    for layer in module.modules():
        if any(is_lazy(t) for t in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            raise BadInput(
                f"The model {name} has a {type(layer).__name__} whose size is not known yet. Give sizes to its layers, "
                "or let the function that makes it try the module on a sample first."
            )
    weights, _ = travelling(module)
    if not weights:
        why = ": all of them are frozen" if any(True for _ in module.parameters()) else ""
        raise BadInput(f"The model {name} has no parameter to train{why}.")
    for key, tensor in weights.items():
        if tensor.dtype != torch.float32:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise BadInput(f"The model {name} has {key} as {kind}, but trains in float32. Use module.float().")
        if not tensor.isfinite().all():
            raise BadInput(f"The model {name} begins with values in {key} that are not finite.")


def _check_output(name: str, out: Any, wanted: tuple[int, ...], data: Dataset) -> None:
    if not isinstance(out, Tensor):
        keys = f" of {brief(', '.join(map(str, out)))}" if isinstance(out, Mapping) else ""
        what = "None" if out is None else f"a {type(out).__name__}{keys}"
        raise BadInput(f"The model {name} must return one tensor. It returned {what}. Wrap it in a module that does.")
    if tuple(out.shape) not in (wanted, *(((*wanted, 1),) if not data.classes else ())):
        raise BadInput(
            f"The model {name} must return {wanted} for {wanted[0]} samples of {data.name}. "
            f"It returned {tuple(out.shape)}."
        )
    if not out.is_floating_point():
        kind = str(out.dtype).removeprefix("torch.")
        raise BadInput(f"The model {name} must return floating-point numbers. It returned {kind}.")
    if not out.requires_grad:
        raise BadInput(f"What the model {name} returns does not depend on its parameters: nothing could be trained.")


def _line(error: Exception) -> str:
    """Return the first line of an error, on which torch says what is wrong."""
    return brief((str(error).splitlines() or [""])[0], 300).rstrip(".")
