"""The model of an experiment is tried on a few samples before anything else: what cannot be trained is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.settings import BadInput, brief
from fedweave.data import Dataset
from fedweave.local.client_data import ClientData
from fedweave.local.torch.flat_module import build_module, constants_digest, initial_vector, travelling
from fedweave.local.torch.samples import first_samples, run
from fedweave.local.torch.threads import drawing_from, one_thread
from fedweave.tasks import Batch, Classification, NextToken, Regression, Task
from fedweave.tasks.task import check_names


@one_thread()  # other threads would not survive a fork of this process
def first_vector(name: str, model: Callable[[], nn.Module], data: Dataset, seed: int, task: Task) -> tuple[Array, str]:
    """Return the model's initial values, drawn at the experiment's own address, once it is known to fit the data.

    With them comes the digest of its constants, which are no part of the vector.
    """
    try:
        batch = first_samples(ClientData.of(data, []), 3 if data.classes == 2 else 2)  # not the number of classes
    except Exception as e:
        raise BadInput(f"The first samples of {data.name} cannot be read: {type(e).__name__}: {_line(e)}.") from e
    module = _built(name, model, seed, ClientData.of(data, []))
    _check_parameters(name, module)
    try:
        with drawing_from(rng_for(seed, 0, Stream.MEASURE)), torch.enable_grad():
            out = run(module.eval(), batch.x)
    except Exception as e:
        raise BadInput(f"The model {name} does not take samples of {_shapes(batch.x)}: {_line(e)}") from None
    _check_output(name, out, batch, data, task)
    _check_task(name, task, out, batch)
    return initial_vector(module), constants_digest(module)


def _built(name: str, model: Any, seed: int, data: ClientData) -> nn.Module:
    if isinstance(model, nn.Module):
        raise BadInput("The 'model' of an Experiment must be a name or a function that makes a module: lambda: module.")
    try:
        module = build_module(model, seed, data)
    except BadInput:
        raise
    except Exception as e:  # the user's own code: its traceback is worth keeping
        raise BadInput(f"The function that makes the model {name} failed: {type(e).__name__}: {_line(e)}.") from e
    if not isinstance(module, nn.Module):
        raise BadInput(f"The 'model' of an Experiment must be a name or make a torch module. It made {brief(module)}.")
    return module


def _check_parameters(name: str, module: nn.Module) -> None:
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


def _check_output(name: str, out: Any, batch: Batch, data: Dataset, task: Task) -> None:
    """Refuse outputs that do not fit a task of the library; a task of one's own takes what it likes."""
    wanted = _wanted(batch, data, task)
    if not wanted:
        return
    if not isinstance(out, Tensor):
        keys = f" of {brief(', '.join(map(str, out)))}" if isinstance(out, Mapping) else ""
        what = "None" if out is None else f"a {type(out).__name__}{keys}"
        raise BadInput(
            f"The model {name} must return one tensor for {task}. It returned {what}. Wrap it in a module that does, "
            "or give the experiment a task of your own: fw.Task(loss=your_function)."
        )
    if tuple(out.shape) not in wanted:
        raise BadInput(
            f"The model {name} must return {wanted[0]} for {batch.size} samples of {data.name}. "
            f"It returned {tuple(out.shape)}."
        )
    if not out.is_floating_point():
        kind = str(out.dtype).removeprefix("torch.")
        raise BadInput(f"The model {name} must return floating-point numbers. It returned {kind}.")
    if not out.requires_grad:
        raise BadInput(f"What the model {name} returns does not depend on its parameters: nothing could be trained.")


def _wanted(batch: Batch, data: Dataset, task: Task) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of output that a task of the library takes; none for a task of one's own."""
    if type(task) is Classification:
        return ((batch.size, data.classes),)
    if type(task) is Regression:
        return tuple(batch.y.shape), (*batch.y.shape, 1)
    return ((*batch.y.shape, data.classes),) if type(task) is NextToken else ()


def _check_task(name: str, task: Task, out: Any, batch: Batch) -> None:
    """Refuse a task whose loss or metrics fail on a few samples, or cannot be minimised."""
    try:
        loss = task.loss(out, batch)
        with torch.no_grad():
            found = task.finish(task.measure(out, batch))
    except BadInput:
        raise
    except Exception as e:
        raise BadInput(
            f"The task {task} failed on {batch.size} samples with what the model {name} returned: "
            f"{type(e).__name__}: {_line(e)}.{_hint(e, task, batch)}"
        ) from e
    if not isinstance(loss, Tensor) or loss.dim() > 1 or (loss.dim() and len(loss) != batch.size):
        got = tuple(loss.shape) if isinstance(loss, Tensor) else brief(loss)
        raise BadInput(
            f"The loss of {task} must be a number for each of {batch.size} samples, or their mean. Got {got}."
        )
    if not loss.requires_grad:
        raise BadInput(f"The loss of {task} does not depend on the parameters of {name}: nothing could be trained.")
    _check_metrics(task, found)


def _hint(error: Exception, task: Task, batch: Batch) -> str:
    """Return what most likely is wrong with the functions of a task of one's own; "" for tasks of the library."""
    if type(task) is not Task:
        return ""
    if isinstance(error, RuntimeError) and isinstance(batch.y, Tensor) and not batch.y.is_floating_point():
        return " The labels are whole numbers: where a loss needs floats, give y.astype('float32')."
    return " A loss is called as loss(output, batch): its labels are batch.y. So is a metric."


def _check_metrics(task: Task, found: Mapping[str, Any]) -> None:
    """Refuse metrics that cannot be columns of a run."""
    own = {metric: value for metric, value in found.items() if metric != "class_accuracy"}
    check_names(list(own))
    for metric, value in own.items():
        if not isinstance(value, int | float) and getattr(value, "ndim", 1):
            raise BadInput(f"The metric {metric!r} of {task} must be a number. It is {brief(value)}.")
    if task.primary not in own:
        raise BadInput(f"{task} is judged by {task.primary!r}, which it does not measure.")


def _shapes(x: Any) -> str:
    if isinstance(x, Mapping):
        return ", ".join(f"{name} {_shapes(part)}" for name, part in x.items())
    return "shape " + "×".join(map(str, x.shape[1:]))


def _line(error: Exception) -> str:
    """Return the first line of an error, on which torch says what is wrong."""
    return brief((str(error).splitlines() or [""])[0], 300).rstrip(".")
