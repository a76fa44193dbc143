"""The tasks by name, and the one that fits data without being told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedweave.core.settings import BadInput, choice
from fedweave.tasks.classification import Classification
from fedweave.tasks.next_token import NextToken
from fedweave.tasks.regression import Regression
from fedweave.tasks.task import Task

TASKS: dict[str, Callable[[], Task]] = {
    "classification": Classification,
    "regression": Regression,
    "next_token": NextToken,
}


def names() -> list[str]:
    """Return the names of the tasks."""
    return list(TASKS)


def parse(name: str) -> Task:
    """Return the task of this name."""
    if name not in TASKS:
        raise BadInput(choice("task", name, TASKS))
    return TASKS[name]()


def default_for(y: Any) -> Task:
    """Return the task that fits these labels: classes (n,), tokens (n, T), or numbers of any shape."""
    kind, axes = getattr(getattr(y, "dtype", None), "kind", None), getattr(y, "ndim", 0)
    if kind == "f":
        return Regression()
    if kind in ("i", "u") and axes in (1, 2):
        return Classification() if axes == 1 else NextToken()
    raise BadInput(
        "No task fits these labels without being told: classification takes whole numbers (n,), next_token (n, T), "
        "regression floats. Give the experiment a 'task', for instance fw.Task(loss=your_function)."
    )
