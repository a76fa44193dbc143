"""``fedweave sweep``: a grid over any fields × methods × seeds."""

from __future__ import annotations

import json as json_format
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fedweave.cli.common import (
    AtOnce,
    Method,
    Out,
    Set,
    Track,
    command_line,
    new_folder,
    print_json,
    problems_beside,
    trackers,
    training,
)
from fedweave.cli.options import NO_OPTIONS, CommandOptions, Texts, Typed, current_name, experiments_of, gather
from fedweave.cli.output import beside_progress, screen
from fedweave.cli.parameters import NORMAL, Json, Talk
from fedweave.cli.signals import resumable
from fedweave.core.settings import BadInput
from fedweave.core.spec import read_value
from fedweave.runs.experiment import Experiment
from fedweave.runs.grid import grid_of
from fedweave.tables.files import writable

if TYPE_CHECKING:
    from fedweave.runs.sweep import Sweep

Over = Annotated[
    tuple[str, ...],
    Parameter(
        "--over",
        negative="",
        show_default=False,
        metavar="PATH=VALUES",
        help="A field and its values, separated by commas: lr=0.01,0.1. The path is that of --set. If values contain "
        "commas, write a JSON list. To vary it for some methods only, put their names and a colon in front: "
        "fedprox:method.solver.mu=0,0.1. May be repeated.",
    ),
]


def sweep(
    *methods: Method,
    over: Over = (),
    options: Typed = NO_OPTIONS,
    set_: Set = (),
    at_once: AtOnce = None,
    out: Out = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Run methods at every point of a grid; leaves a table and report.html with the best point of each.

    The best point of each method is chosen on a part of the training data that is held out (--validation). It is then
    trained on all training data, with other seeds, and scored on the test set.
    METHODS are names, TOML files or your own, module:name.
    """
    problems = problems_beside(track, talk, at_once=at_once)
    experiments, checked, grid = read(methods, over, options, set_, problems)
    callbacks, _ = [*trackers(track), *beside_progress(talk)], training()
    from fedweave.runs import sweep as sweeping

    folder = out or new_folder("sweep")
    with resumable(folder):
        plan = sweeping.plan_sweep([e.method for e in experiments], experiments[0], grid, checked.seeds)
        several = int(at_once) if at_once else None
        found = plan.run(folder, callbacks, command_line(), several, progress=not talk.quiet)
        say(found, folder / "report.html", json)


def read(
    methods: Sequence[str], over: Sequence[str], options: Texts, assignments: Sequence[str], problems: list[str]
) -> tuple[list[Experiment], CommandOptions, dict[str, list[Any]]]:
    """Return the experiments and the grid as typed; all that is wrong is reported with the problems found before."""
    grid = dict[str, list[Any]]()
    with gather(problems):
        grid = read_over(over)
    if not methods:
        problems.append("sweep needs at least one method, such as: fedweave sweep fedavg --over lr=0.01,0.1")

    def check(experiments: list[Experiment], wrong: set[str]) -> None:
        axes = {key: values for key, values in grid.items() if key.rpartition(":")[2].split(".")[0] not in wrong}
        try:
            if axes:
                grid_of(axes, [e.method for e in experiments], experiments[0])
        except BadInput as e:
            raise BadInput(*map(_as_typed, e.problems)) from None

    experiments, checked = experiments_of(methods, options.given(), assignments, problems, check)
    return experiments, checked, grid


def _as_typed(problem: str) -> str:
    """Return a sentence about a field of a grid as one about what was typed."""
    return re.sub(r"^over '([^']*)'", r"--over \1", problem).replace("'evaluate'", "--evaluate")


def report(folders: Sequence[Path], html: Path | None, curves: Path | None, json: bool) -> None:
    """Do what `fedweave report` does, of a sweep."""
    from fedweave.runs.sweep import load_sweep

    if len(folders) > 1:
        raise BadInput("report takes one sweep at a time, or any number of runs and comparisons.")
    found, page = load_sweep(folders[0]), html or folders[0] / "report.html"
    if curves is not None:
        with writable(curves):
            found.curves(curves)
    with writable(page):
        say(found, page, json)
    if curves is not None and not json:
        print(f"curves: {curves}")


def read_over(given: Sequence[str]) -> dict[str, list[Any]]:
    """Return the axes as typed, their values by path."""
    if not given:
        raise BadInput("sweep needs --over PATH=VALUES, such as --over lr=0.01,0.05,0.1; without it use compare.")
    problems, found = list[str](), dict[str, list[Any]]()
    for text in given:
        key, equals, values = text.partition("=")
        some, colon, path = key.rpartition(":")
        name = f"{some}{colon}{current_name(path, f'--over {path}')}"
        if not equals or not path:
            problems.append(f"--over takes PATH=VALUES, such as lr=0.01,0.1. Got {text!r} instead.")
        elif name in found:
            problems.append(f"--over {name} is given twice: write all its values in one --over.")
        else:
            found[name] = _values(values)
    if problems:
        raise BadInput(*problems)
    return found


def _values(text: str) -> list[Any]:
    """Return values as typed: separated by commas, or as a JSON list."""
    try:
        found = json_format.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, list) else [read_value(part.strip()) for part in text.split(",")]


def say(found: Sweep, page: Path, as_json: bool) -> None:
    """Print what a sweep came to, and write its page."""
    from fedweave.report import paired_table, sweep_tables, write_sweep
    from fedweave.report.sweep import edges

    write_sweep(found, page)
    if as_json:
        runs = [{**run.summary, "point": point} for run, point in zip(found.results, found.points, strict=True)]
        tested = [dict(run.summary) for run in found.tested.results] if found.tested else []
        print_json({"runs": runs, "summary": found.summary, "best": found.best, "tested": tested, "report": str(page)})
        return
    for table in sweep_tables(found):
        screen().print(table)
    if found.tested and (table := paired_table(found.tested.results)):
        screen().print(table)
    for edge in edges(found.best, found.summary):
        print(f"warning: {edge}", file=sys.stderr)
    print(f"report: {page}")
