"""What several commands share: options, the folder of a new run, and how results are printed."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fedweave.cli.completion import completer
from fedweave.cli.loading import uncollected
from fedweave.cli.options import Text, as_option, gather
from fedweave.cli.output import check
from fedweave.cli.parameters import NORMAL, Talk, help_text, whole_number
from fedweave.core.settings import BadInput

if TYPE_CHECKING:
    from fedweave.runs.callbacks import Callback

Set = Annotated[
    tuple[str, ...],
    Parameter(
        "--set",
        negative="",
        show_default=False,
        metavar="PATH=VALUE",
        help="Any field by its path, such as method.sampler.per_round=3 or partition.alpha=1; of some methods: "
        "fedprox:method.solver.mu=0.1.",
    ),
]
Out = Annotated[Path | None, help_text("Folder to keep the run in. [runs/NAME-DATE]", "RUN")]
AtOnce = Annotated[
    Text, help_text("With --pool ray: how many runs train at the same time. [one per CPU of the cluster]", "COUNT")
]
Method = Annotated[str, Parameter(completer=completer("methods"))]
Track = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        show_default=False,
        metavar="TRACKER",
        help="Also write every round to a tracker: tensorboard:DIR (files in that folder), mlflow, or wandb (Weights & "
        "Biases). May be repeated.",
    ),
]


def training() -> tuple[ModuleType, ModuleType]:
    """Import what runs and compares, which takes seconds, only once the input is known to be good."""
    try:
        with uncollected():
            from fedweave.runs import compare as comparing
            from fedweave.runs import loop as running
    except ModuleNotFoundError as e:
        if e.name not in ("torch", "cloudpickle"):
            raise
        raise BadInput("Training needs torch: pip install 'fedweave[torch]'") from None
    return running, comparing


def problems_beside(track: Sequence[str] = (), talk: Talk = NORMAL, **numbers: str | None) -> list[str]:
    """Return what is wrong with the options that belong to no experiment; ``numbers`` must be whole ones."""
    problems: list[str] = []
    with gather(problems):
        check(talk)
    with gather(problems):
        if track:
            from fedweave.runs.track import check_trackers

            check_trackers(track)
    for name, text in numbers.items():
        if text is not None:
            whole_number(as_option(name), text, problems)
    return problems


def trackers(given: Sequence[str]) -> Sequence[Callback]:
    """Return the callbacks that write rounds to these trackers."""
    if not given:
        return ()
    from fedweave.runs.track import trackers_of

    return trackers_of(given)


def new_folder(name: str) -> Path:
    """Return a folder that is not there yet, also for the second run of a second."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def command_line() -> str:
    """Return what was typed."""
    return shlex.join(["fedweave", *sys.argv[1:]])


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(value, default=float, allow_nan=False))
