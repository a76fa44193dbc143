"""fedweave: federated learning for uneven clients.

A method is a composition of parts (``fedweave.methods``, ``fedweave.Method``); an ``Experiment`` is a method with data,
a model and a world; ``run``, ``resume``, ``compare`` and ``sweep`` do the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedweave import aggregate as aggregate
    from fedweave import data as data
    from fedweave import methods as methods
    from fedweave import models as models
    from fedweave import pacing as pacing
    from fedweave import sample as sample
    from fedweave import schedule as schedule
    from fedweave import server as server
    from fedweave import solve as solve
    from fedweave import system as system
    from fedweave import tasks as tasks
    from fedweave import theory as theory
    from fedweave import upload as upload
    from fedweave.core.settings import BadInput as BadInput
    from fedweave.core.settings import settings as settings
    from fedweave.data import partition as partition
    from fedweave.local import adversaries as adversaries
    from fedweave.local import solvers as solvers
    from fedweave.method import Method as Method
    from fedweave.runs import track as track
    from fedweave.runs.callbacks import Callback as Callback
    from fedweave.runs.compare import Comparison as Comparison
    from fedweave.runs.compare import compare as compare
    from fedweave.runs.compare import resume_comparison as resume_comparison
    from fedweave.runs.experiment import Experiment as Experiment
    from fedweave.runs.loop import Interrupted as Interrupted
    from fedweave.runs.loop import load_result as load_result
    from fedweave.runs.loop import resume as resume
    from fedweave.runs.loop import rounds as rounds
    from fedweave.runs.loop import run as run
    from fedweave.runs.results import Result as Result
    from fedweave.runs.sweep import Sweep as Sweep
    from fedweave.runs.sweep import sweep as sweep
    from fedweave.tasks import Task as Task

__version__ = "0.2.0"

_WHERE = {  # names of this package that are no modules of it
    "BadInput": "core.settings",
    "adversaries": "local",
    "Callback": "runs.callbacks",
    "Comparison": "runs.compare",
    "Experiment": "runs.experiment",
    "Interrupted": "runs.loop",
    "Method": "method",
    "Result": "runs.results",
    "Sweep": "runs.sweep",
    "Task": "tasks",
    "compare": "runs.compare",
    "load_result": "runs.loop",
    "partition": "data",
    "resume": "runs.loop",
    "resume_comparison": "runs.compare",
    "rounds": "runs.loop",
    "run": "runs.loop",
    "settings": "core.settings",
    "solvers": "local",
    "sweep": "runs.sweep",
    "track": "runs",
}
_MODULES = ("aggregate", "data", "methods", "models", "pacing", "sample", "schedule", "server", "solve")
_MODULES += ("system", "tasks", "theory", "upload")


def __getattr__(name: str) -> Any:
    """Import what is used when it is used: all of it takes a third of a second, and torch seconds."""
    if name.startswith("_"):
        raise AttributeError(f"module 'fedweave' has no attribute {name!r}")
    try:
        found = import_module(f"fedweave.{_WHERE.get(name, name)}")
        if name in _WHERE:
            found = getattr(found, name) if hasattr(found, name) else import_module(f"{found.__name__}.{name}")
    except ModuleNotFoundError as e:
        if e.name == f"fedweave.{name}":
            raise AttributeError(f"module 'fedweave' has no attribute {name!r}") from None
        if e.name not in ("torch", "cloudpickle"):
            raise
        raise ImportError(f"fedweave.{name} needs torch: pip install 'fedweave[torch]'") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({"__version__", *_WHERE, *_MODULES})
