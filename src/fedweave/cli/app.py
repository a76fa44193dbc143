"""The commands that train and those that show what came out: run, compare, resume, report and export."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fedweave.cli import plan as plan_command
from fedweave.cli import sweep as sweep_command
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
from fedweave.cli.options import NO_OPTIONS, Text, Typed, experiments_of
from fedweave.cli.output import beside_progress, screen
from fedweave.cli.parameters import NORMAL, Json, Talk, help_text
from fedweave.cli.root import app as app
from fedweave.cli.root import main as main
from fedweave.cli.signals import resumable
from fedweave.core.settings import BadInput
from fedweave.runs.folders import begun_in, is_comparison, is_sweep
from fedweave.store.export import write_model, write_summary, write_tables
from fedweave.tables.files import shown_path, writable

if TYPE_CHECKING:
    from fedweave.runs.results import Result

Folder = Annotated[Path, Parameter(metavar="RUN")]
STALLED = "the hull of the clients' momenta came close to the origin; docs/how-to/diverse-clients.md says what helps"


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
    problems = problems_beside(track, talk)
    if plan is not None and "per_round" in options.given():
        problems.append("--per-round and --plan exclude each other: a plan has its own cohort size.")
    (experiment,), checked = experiments_of([method], options.given(), set_, problems)
    if checked.seeds != 1:
        raise BadInput("--seeds is for compare, which runs every method with every seed. Use --seed here.")
    callbacks, (running, _) = [*trackers(track), *beside_progress(talk)], training()
    if plan is not None:
        experiment, check = plan_command.follow(experiment, plan)
        callbacks.append(check)
    folder = out or new_folder(experiment.method.name)
    with resumable(folder):
        result = running.run(experiment, folder, callbacks, command_line(), progress=not talk.quiet)
        _say([result], None, json)


def compare(
    *methods: Method,
    options: Typed = NO_OPTIONS,
    set_: Set = (),
    at_once: AtOnce = None,
    out: Out = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Run several methods on the same data, worlds and seeds; leaves a table and report.html.

    METHODS are names, TOML files or your own, module:name; without any: fedavg fedprox fedavgm fedyogi.
    """
    wanted = methods or ("fedavg", "fedprox", "fedavgm", "fedyogi")
    problems = problems_beside(track, talk, at_once=at_once)
    experiments, checked = experiments_of(wanted, options.given(), set_, problems)
    callbacks, (_, comparing) = [*trackers(track), *beside_progress(talk)], training()
    folder, zoo = out or new_folder("compare"), [e.method for e in experiments]
    with resumable(folder):
        shown, several = not talk.quiet, int(at_once) if at_once else None
        results = comparing.compare(
            zoo, experiments[0], checked.seeds, folder, callbacks, command_line(), several, progress=shown
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
        Text,
        help_text("Extend it to this number of rounds in all, with the result of a run that long.", "R"),
    ] = None,
    seeds: Annotated[Text, help_text("Give a comparison so many seeds in all, each like the others.", "COUNT")] = None,
    track: Track = (),
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Continue an interrupted run, comparison or sweep, bit for bit, or extend a finished one: --rounds, --seeds."""
    problems = problems_beside(track, talk, rounds=rounds, seeds=seeds)
    there = os.path.lexists(folder)
    if seeds and there and not is_comparison(folder):
        problems.append(f"--seeds is for a comparison, and {str(folder)!r} is none.")
    if problems and not there:
        problems.append(f"There is no folder {shown_path(folder)}.")
    if problems:
        raise BadInput(*problems)
    length, more = (int(text) if text else None for text in (rounds, seeds))
    with resumable(folder):
        callbacks, (running, comparing) = [*trackers(track), *beside_progress(talk)], training()
        several, shown = is_comparison(folder), not talk.quiet
        if several:
            found = comparing.resume_comparison(folder, callbacks, trust, length, progress=shown, seeds=more)
        else:
            found = running.resume(folder, callbacks=callbacks, trust=trust, rounds=length, progress=shown)
        if is_sweep(folder):
            sweep_command.say(found, folder / "report.html", json)
        else:
            _say(found.results if several else [found], folder / "report.html" if several else None, json)


def report(
    *folders: Folder,
    html: Annotated[Path | None, help_text("Where to write the page. [report.html in the first RUN]")] = None,
    curves: Annotated[
        Path | None,
        help_text("Also write the curves over rounds, simulated time and bytes to this .png, .svg or .pdf file."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a table and write one self-contained HTML page over runs or comparisons, or over one sweep."""
    if not folders:
        raise BadInput("report needs at least one run folder, such as: fedweave report runs/fedavg-20260101-120000")
    running, _ = training()
    if any(map(is_sweep, folders)):
        sweep_command.report(folders, html, curves, json)
        return
    results = [running.load_result(run) for folder in folders for run in begun_in(folder)]
    if curves is not None:
        from fedweave.report import write_curves

        with writable(curves):
            write_curves(results, curves)
    page = html or folders[0] / "report.html"
    with writable(page):
        _say(results, page, json)
    if curves is not None and not json:
        print(f"curves: {curves}")


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

    csv and parquet are the rows per round and per client, of a comparison or sweep also summary.csv, the means over
    seeds; safetensors and pt are a state dict, model.safetensors or
    model.pt, and model-best.safetensors or model-best.pt with --which best. Of a model that was given in Python it has
    the trained tensors and the buffers that travel, without frozen parameters and counters.
    """
    if which == "best" and to in ("csv", "parquet"):
        raise BadInput("--which is for a model: use it with --to safetensors or --to pt.")
    running, _ = training()
    files, models = list[str](), list[dict[str, Any]]()
    for run in begun_in(folder):
        result = running.load_result(run)
        with writable(run):
            if to in ("csv", "parquet"):
                files += map(str, write_tables(run, result.rounds, result.clients, to, result.client_scores))
            else:
                models.append(_export_model(result, run, to, which))
    if is_comparison(folder) and to in ("csv", "parquet"):
        with writable(folder):
            files.append(str(write_summary(folder / "summary.csv", _table(folder))))
    files += [model["file"] for model in models]
    if json:
        print_json({"files": files} | ({"models": models} if models else {}))
    else:
        print("\n".join(files))


def _table(folder: Path) -> list[dict[str, Any]]:
    """Return the means over seeds of a comparison, or the points of a sweep, as plain rows."""
    running, comparing = training()
    if is_sweep(folder):
        from fedweave.runs.sweep import load_sweep

        return load_sweep(folder).table
    return comparing.Comparison([running.load_result(run) for run in begun_in(folder)]).table


def _export_model(
    result: Result, run: Path, to: Literal["safetensors", "pt"], which: Literal["last", "best"]
) -> dict[str, Any]:
    from fedweave.runs.trained import trained_tensors

    tensors, complete = trained_tensors(result, which)
    round = int(result.best["round"] if which == "best" else result.rounds["round"][-1])
    path = run / f"model{'-best' if which == 'best' else ''}.{to}"
    write_model(path, tensors, {"which": which, "round": str(round)})
    if not complete:
        print(
            f"note: {path} has the trained tensors and the buffers that travel. Frozen parameters, counters and second "
            "names of shared tensors are not in it: load it with strict=False.",
            file=sys.stderr,
        )
    return {"file": str(path), "which": which, "round": round}


def _say(results: Sequence[Result], page: Path | None, as_json: bool) -> None:
    """Print what came out, and write the page if one is wanted."""
    from fedweave.report import compare_rows, comparison_tables, write
    from fedweave.report.headline import headline
    from fedweave.runs.results import ENDED

    if page is not None:
        write(results, page)
    if as_json:
        runs = [dict(r.summary) for r in results]
        print_json(runs[0] if page is None else {"runs": runs, "summary": compare_rows(results), "report": str(page)})
        return
    console = screen()
    for table in comparison_tables(results, console.width):
        console.print(table, end="\n\n")
    if page is not None:
        print(*headline(compare_rows(results))[:2])
    for result in results:
        if not result.rounds["asked"].any():
            print(f"warning: nobody was ever available in {result.folder}: nothing was trained", file=sys.stderr)
        if (why := result.summary.get("ended_early")) in ("target", "patience"):  # the end of its time is no surprise
            who = f"{result.summary['method']}, seed {result.summary['seed']}"
            planned = f"{result.summary['rounds']} of {result.experiment['rounds']} rounds"
            print(f"note: {who} ended after {planned}: {ENDED[why]}", file=sys.stderr)
        if (since := result.summary.get("stalled_since")) is not None:
            who = f"{result.summary['method']}, seed {result.summary['seed']}"
            print(f"warning: {who} has stalled since round {since}: {STALLED}", file=sys.stderr)
    print(f"run: {results[0].folder}" if page is None else f"report: {page}")
