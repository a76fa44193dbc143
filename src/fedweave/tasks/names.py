"""The tasks by name, and the one that fits data without being told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedweave.core import plugins
from fedweave.core.settings import BadInput, choice
from fedweave.tasks.classification import Classification
from fedweave.tasks.next_token import NextToken
from fedweave.tasks.regression import Regression
from fedweave.tasks.task import Task

TASKS: dict[str, Callable[..., Task]] = {
    "classification": Classification,
    "regression": Regression,
    "next_token": NextToken,
}


def info() -> dict[str, str]:
    """Return one line about each task."""
    return {name: (task.__doc__ or "").strip().split("\n")[0] for name, task in TASKS.items()}


def parse(text: str) -> Task:
    """Return the task of this name; ``next_token:0`` says that the token 0 is padding."""
    name, _, padding = text.partition(":")
    if name not in TASKS:
        if plugin := plugins.plugin_text("tasks", text):
            return plugins.make(plugin, Task, "a Task").named(plugin)
        raise BadInput(choice("task", name, [*TASKS, *plugins.offered("tasks")]) + plugins.hint(text))
    if not padding:
        return TASKS[name]()
    if name != "next_token" or not padding.removeprefix("-").isdecimal():
        raise BadInput(f"The task {text!r} cannot be read. Write {name}, or next_token:0 where 0 is the padding.")
    return NextToken(int(padding))


def _one_hot(rows: Any) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(1) == 1).all())


def default_for(y: Any) -> Task:
    """Return the task that fits these labels: classes (n,), tokens (n, T), or numbers of any shape."""
    kind, axes = getattr(getattr(y, "dtype", None), "kind", None), getattr(y, "ndim", 0)
    if kind == "f":
        if axes == 2 and y.shape[1] > 1 and _one_hot(y[:1000]):
            raise BadInput(
                "The targets look like one-hot labels. Give y.argmax(1) for a classification, or say task='regression'."
            )
        return Regression()
    if kind in ("i", "u") and axes in (1, 2):
        return Classification() if axes == 1 else NextToken()
    raise BadInput(
        "No task fits these labels without being told: classification takes whole numbers (n,), next_token (n, T), "
        "regression floats. Give the experiment a 'task', for instance fw.Task(loss=your_function)."
    )
