"""fedweave: federated learning for uneven clients.

A method is a composition of parts (``fedweave.methods``, ``fedweave.Method``); an ``Experiment`` is a method with data,
a model and a world; ``run``, ``resume`` and ``compare`` do the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedweave import aggregate as aggregate
from fedweave import data as data
from fedweave import methods as methods
from fedweave import models as models
from fedweave import pacing as pacing
from fedweave import sample as sample
from fedweave import server as server
from fedweave import solve as solve
from fedweave import system as system
from fedweave import tasks as tasks
from fedweave import theory as theory
from fedweave import upload as upload
from fedweave.core.settings import BadInput as BadInput
from fedweave.core.settings import settings as settings
from fedweave.data import partition as partition
from fedweave.local import solvers as solvers
from fedweave.method import Method as Method
from fedweave.runs.experiment import Experiment as Experiment
from fedweave.runs.results import Result as Result
from fedweave.tasks import Task as Task

if TYPE_CHECKING:
    from fedweave.runs.compare import Comparison as Comparison
    from fedweave.runs.compare import compare as compare
    from fedweave.runs.compare import resume_comparison as resume_comparison
    from fedweave.runs.loop import Interrupted as Interrupted
    from fedweave.runs.loop import load_result as load_result
    from fedweave.runs.loop import resume as resume
    from fedweave.runs.loop import rounds as rounds
    from fedweave.runs.loop import run as run

__version__ = "0.1.0"

_NEEDS_TORCH = ("Comparison", "Interrupted", "compare", "load_result", "resume", "resume_comparison", "rounds", "run")


def __getattr__(name: str) -> Any:
    """Import what trains only when it is used: torch and matplotlib take seconds to load."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'fedweave' has no attribute {name!r}")
    try:
        from fedweave.runs import compare as comparing
        from fedweave.runs import loop as running
    except ModuleNotFoundError as e:
        if e.name not in ("torch", "cloudpickle"):
            raise
        raise ImportError(f"fedweave.{name} needs torch: pip install 'fedweave[torch]'") from None
    return getattr(running if hasattr(running, name) else comparing, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEEDS_TORCH} - {"Any", "TYPE_CHECKING", "annotations"})
