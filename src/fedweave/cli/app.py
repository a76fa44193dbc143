"""The commands that train and those that show what came out: run, compare, resume, report and export."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from fedweave.cli import plan as plan_command
from fedweave.cli.completion import completer
from fedweave.cli.loading import uncollected
from fedweave.cli.options import NO_OPTIONS, Typed, experiments_of
from fedweave.cli.output import beside_progress
from fedweave.cli.parameters import NORMAL, Json, Talk, help_text
from fedweave.cli.root import app as app
from fedweave.cli.root import main as main
from fedweave.cli.signals import resumable
from fedweave.core.settings import BadInput
from fedweave.store.export import write_model, write_tables
from fedweave.tables.files import writable

if TYPE_CHECKING:
    from fedweave.runs.callbacks import Callback
    from fedweave.runs.results import Result

Set = Annotated[
    tuple[str, ...],
    Parameter(
        "--set",
        negative="",
        show_default=False,
        metavar="PATH=VALUE",
        help="Any field by its path, such as method.sampler.per_round=3 or partition.alpha=1.",
    ),
]
Out = Annotated[Path | None, help_text("Folder to keep the run in. [runs/NAME-DATE]", "RUN")]
Method = Annotated[str, Parameter(completer=completer("methods"))]
Folder = Annotated[Path, Parameter(metavar="RUN")]
Track = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        show_default=False,
        metavar="tensorboard:DIR|mlflow|wandb",
        help="Also write every round to TensorBoard files in DIR, to MLflow or to Weights & Biases.",
    ),
]
ENDED = {"target": "it reached the target", "patience": "its metric no longer improved"}
STALLED = "the hull of the clients' momenta came close to the origin; docs/guide.md says what helps"


def run(
    method: Method,
    /,
    *,
    options: Typed = NO_OPTIONS,
    set_: Set = (),
    plan: Annotated[
        Path | None,
        help_text(
            "Draw clients by a plan, the output of `fedweave plan --json`, instead of the method's sampler.", "FILE"
        ),
    ] = None,
    out: Out = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Run one method: a name of `fedweave list methods`, a TOML experiment file, or your own, module:name."""
    (experiment,), checked = experiments_of([method], options.given(), set_)
    if checked.seeds != 1:
        raise BadInput("--seeds is for compare, which runs every method with every seed. Use --seed here.")
    if plan is not None:
        if "per_round" in options.given():
            raise BadInput("--per-round and --plan exclude each other: a plan has its own cohort size.")
        experiment = plan_command.follow(experiment, plan)
    trackers, (running, _) = _trackers(track), _training()
    folder = out or _folder(experiment.method.name)
    with resumable(folder):
        callbacks = [*trackers, *beside_progress(talk)]
        result = running.run(experiment, folder, callbacks, _command(), progress=not talk.quiet)
        _say([result], None, json)


def compare(
    *methods: Method,
    options: Typed = NO_OPTIONS,
    set_: Set = (),
    at_once: Annotated[
        int | None, help_text("With --pool ray: runs that go on at the same time. [one per CPU of the cluster]")
    ] = None,
    out: Out = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Run several methods on the same data, worlds and seeds; leaves a table and report.html.

    METHODS are names, TOML files or your own, module:name; without any: fedavg fedprox fedavgm fedyogi.
    """
    wanted = methods or ("fedavg", "fedprox", "fedavgm", "fedyogi")
    experiments, checked = experiments_of(wanted, options.given(), set_)
    trackers, (_, comparing) = _trackers(track), _training()
    folder, zoo = out or _folder("compare"), [e.method for e in experiments]
    with resumable(folder):
        callbacks, shown = [*trackers, *beside_progress(talk)], not talk.quiet
        results = comparing.compare(
            zoo, experiments[0], checked.seeds, folder, callbacks, _command(), at_once, progress=shown
        ).results
        _say(results, folder / "report.html", json)


def resume(
    folder: Folder,
    /,
    *,
    trust: Annotated[
        bool, Parameter(negative="", show_default=False, help="Import the plug-ins and read the files that RUN names.")
    ] = False,
    rounds: Annotated[
        int | None,
        help_text("Give it so many rounds in all: it comes to what a run of that length would have come to.", "R"),
    ] = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Continue an interrupted run or comparison, bit for bit, or extend a finished one with --rounds."""
    with resumable(folder):
        trackers, (running, comparing) = _trackers(track), _training()
        callbacks, shown = [*trackers, *beside_progress(talk)], not talk.quiet
        several = comparing.is_comparison(folder)
        if several:
            results = comparing.resume_comparison(folder, callbacks, trust, rounds, progress=shown).results
        else:
            results = [running.resume(folder, callbacks=callbacks, trust=trust, rounds=rounds, progress=shown)]
        _say(results, folder / "report.html" if several else None, json)


def report(
    *folders: Folder,
    html: Annotated[Path | None, help_text("Where to write the page. [report.html in the first RUN]")] = None,
    curves: Annotated[
        Path | None,
        help_text("Also write the curves over rounds, simulated time and bytes to this .png, .svg or .pdf file."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a table and write one self-contained HTML page over runs or comparisons."""
    if not folders:
        raise BadInput("report needs at least one run folder, such as: fedweave report runs/fedavg-20260101-120000")
    running, comparing = _training()
    results = [running.load_result(run) for folder in folders for run in comparing.begun_in(folder)]
    if curves is not None:
        from fedweave.report import write_curves

        with writable(curves):
            write_curves(results, curves)
    page = html or folders[0] / "report.html"
    with writable(page):
        _say(results, page, json)


def export(
    folder: Folder,
    /,
    *,
    to: Literal["csv", "parquet", "safetensors", "pt"] = "csv",
    which: Annotated[
        Literal["last", "best"],
        help_text("The last model, or the best among the evaluated rounds by the task's metric. [last]"),
    ] = "last",
    json: Json = False,
) -> None:
    """Write tables or the trained model into the run folder.

    csv and parquet are the rows per round and per client; safetensors and pt are a state dict, model.safetensors or
    model.pt. Of a model that was given in Python it has the trained tensors and the buffers that travel, without frozen
    parameters and counters.
    """
    if which == "best" and to in ("csv", "parquet"):
        raise BadInput("--which is for a model: use it with --to safetensors or --to pt.")
    running, comparing = _training()
    files: list[str] = []
    for run in comparing.begun_in(folder):
        result = running.load_result(run)
        with writable(run):
            if to in ("csv", "parquet"):
                files += map(str, write_tables(run, result.rounds, result.clients, to, result.client_scores))
            else:
                files.append(_export_model(result, run, to, which))
    if json:
        _print_json({"files": files})
    else:
        print("\n".join(files))


def _export_model(result: Result, run: Path, to: Literal["safetensors", "pt"], which: Literal["last", "best"]) -> str:
    from fedweave.runs.trained import trained_tensors

    tensors, complete = trained_tensors(result, which)
    path = write_model(run, tensors, to)
    if not complete:
        print(
            f"note: {path} has the trained tensors and the buffers that travel. Frozen parameters, counters and second "
            "names of shared tensors are not in it: load it with strict=False.",
            file=sys.stderr,
        )
    return str(path)


def _training() -> tuple[ModuleType, ModuleType]:
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


def _trackers(given: Sequence[str]) -> Sequence[Callback]:
    if not given:
        return ()
    from fedweave.runs.track import trackers_of

    return trackers_of(given)


def _folder(name: str) -> Path:
    """Return a folder that is not there yet, also for the second run of a second."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def _command() -> str:
    return shlex.join(["fedweave", *sys.argv[1:]])


def _say(results: Sequence[Result], page: Path | None, as_json: bool) -> None:
    """Print what came out, and write the page if one is wanted."""
    from fedweave.report import client_table, compare_rows, cost_table, paired_table, terminal_table, write

    if page is not None:
        write(results, page)
    if as_json:
        runs = [dict(r.summary) for r in results]
        _print_json(runs[0] if page is None else {"runs": runs, "summary": compare_rows(results), "report": str(page)})
        return
    for make in (terminal_table, paired_table, cost_table, client_table):
        if table := make(results):
            Console().print(table)
    for result in results:
        if not result.rounds["asked"].any():
            print(f"warning: nobody was ever available in {result.folder}: nothing was trained", file=sys.stderr)
        if why := result.summary.get("ended_early"):
            who = f"{result.summary['method']}, seed {result.summary['seed']}"
            planned = f"{result.summary['rounds']} of {result.experiment['rounds']} rounds"
            print(f"note: {who} ended after {planned}: {ENDED[why]}", file=sys.stderr)
        if (since := result.summary.get("stalled_since")) is not None:
            who = f"{result.summary['method']}, seed {result.summary['seed']}"
            print(f"warning: {who} has stalled since round {since}: {STALLED}", file=sys.stderr)
    print(f"run: {results[0].folder}" if page is None else f"report: {page}")


def _print_json(value: Any) -> None:
    print(json.dumps(value, default=float, allow_nan=False))
