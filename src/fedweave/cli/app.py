"""The command line: ``fedweave list``, ``run``, ``compare``, ``resume``, ``report``, ``export`` and others."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedweave import __version__, data, models, papers, tasks
from fedweave.cli import plan as plan_command
from fedweave.cli import reproduce as reproduce_command
from fedweave.cli import sweep as sweep_command
from fedweave.cli import verify as verify_command
from fedweave.cli.common import NO_OPTIONS, AtOnce, Out, Set, command_line, new_folder, print_json, training
from fedweave.cli.flower import flower
from fedweave.cli.options import OPTIONS, Json, Typed, as_option, experiments_of, help_text
from fedweave.cli.progress import Show
from fedweave.cli.signals import heed, resumable, stop, stopped, unmasked
from fedweave.core import plugins
from fedweave.core.settings import BadInput, nearest
from fedweave.data import partition
from fedweave.methods import GROUPS
from fedweave.runs.method_names import method_groups, method_names
from fedweave.store.export import write_model, write_tables
from fedweave.system import names as systems
from fedweave.tables.files import NotStored, writable

if TYPE_CHECKING:
    from fedweave.runs.results import Result

app = App(
    name="fedweave",
    help="Federated learning for uneven clients: compare samplers and server optimisers under unreliable links, "
    "uneven compute, stragglers and skewed data.",
    version=__version__,
    help_format="plaintext",
    exit_on_error=False,
    verbose=False,
    print_error=False,
    help_epilogue="Example: fedweave compare fedavg fedprox --data digits --system dynamic --rounds 20",
)
Folder = Annotated[Path, Parameter(metavar="RUN")]
STAYS = {"resume": " A run is continued with the settings it began with."}
STALLED = "the hull of the clients' momenta came close to the origin; docs/guide.md says what helps"


@app.command(name="list", help_epilogue="Example: fedweave list methods")
def list_(
    what: Literal["methods", "data", "models", "partitions", "systems", "tasks", "papers", "claims"] | None = None,
    *,
    json: Json = False,
) -> None:
    """Show the names that options take, with those of installed plug-ins, or the papers' claims with their verdicts."""
    if what == "claims":
        reproduce_command.print_claims(json)
        return
    known: dict[str, Callable[[], Mapping[str, str]]] = {
        "methods": method_names,
        "data": data.info,
        "models": models.info,
        "partitions": partition.forms,
        "systems": systems.info,
        "tasks": tasks.info,
        "papers": papers.shown,
    }
    chosen = {kind: plugins.info(kind, known[kind]()) for kind in ([what] if what else known)}
    groups = method_groups(chosen.get("methods", ()))
    if json:
        print_json({**chosen, "groups": groups} if "methods" in chosen else chosen)
        return
    for title, rows in chosen.items():
        table = Table("name", "what it is", title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for group, names in groups.items() if title == "methods" else [("", rows)]:
            if group:
                table.add_row()
                table.add_row(group, GROUPS.get(group, ("of installed packages",))[0], style="bold")
            for name in names:
                table.add_row(Text(f"  {name}" if group else name), Text(rows[name]))  # ":UP:" is an emoji to rich
        Console().print(table)


@app.command(
    help_epilogue="Example: fedweave run fedprox --data digits --partition dirichlet:0.1 --set method.solver.mu=0.1"
)
def run(
    method: str,
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
    running, _ = training()
    folder = out or new_folder(experiment.method.name)
    with resumable(folder):
        with Show(1, running.device_sentence(experiment)) as show:
            result = running.run(experiment, folder, [show, heed], command_line())
        _say([result], None, json)


@app.command(
    help_epilogue="Example: fedweave compare fedavg fedprox --data digits --system dynamic --seeds 3 --target 0.9"
)
def compare(
    *methods: str,
    options: Typed = NO_OPTIONS,
    set_: Set = (),
    at_once: AtOnce = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Run several methods on the same data, worlds and seeds; leaves a table and report.html.

    METHODS are names, TOML files or your own, module:name; without any: fedavg fedprox fedavgm fedyogi.
    """
    wanted = methods or ("fedavg", "fedprox", "fedavgm", "fedyogi")
    experiments, checked = experiments_of(wanted, options.given(), set_)
    running, comparing = training()
    folder, zoo = out or new_folder("compare"), [e.method for e in experiments]
    with resumable(folder):
        with Show(len(zoo) * checked.seeds, running.device_sentence(experiments[0])) as show:
            results = comparing.compare(
                zoo, experiments[0], checked.seeds, folder, [show, heed], command_line(), at_once
            ).results
        _say(results, folder / "report.html", json)


@app.command(help_epilogue="Example: fedweave resume runs/fedavg-20260101-120000")
def resume(
    folder: Folder,
    /,
    *,
    trust: Annotated[
        bool, Parameter(negative="", show_default=False, help="Import the plug-ins and read the files that RUN names.")
    ] = False,
    json: Json = False,
) -> None:
    """Continue an interrupted run, comparison or sweep, bit for bit."""
    with resumable(folder):
        running, comparing = training()
        several, swept = comparing.is_comparison(folder), comparing.is_sweep(folder)
        with Show(comparing.count_runs(folder), by_folder=swept) as show:
            if several:
                found = comparing.resume_comparison(folder, [show, heed], trust)
            else:
                found = running.resume(folder, callbacks=[show, heed], trust=trust)
        if swept:
            sweep_command.say(found, folder / "report.html", json)
        else:
            _say(found.results if several else [found], folder / "report.html" if several else None, json)


@app.command(help_epilogue="Example: fedweave report runs/compare-20260101-120000 --html page.html")
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
    running, comparing = training()
    if any(map(comparing.is_sweep, folders)):
        sweep_command.report(folders, html, curves, json)
        return
    results = [running.load_result(run) for folder in folders for run in comparing.begun_in(folder)]
    if curves is not None:
        from fedweave.report import write_curves

        with writable(curves):
            write_curves(results, curves)
    page = html or folders[0] / "report.html"
    with writable(page):
        _say(results, page, json)


@app.command(help_epilogue="Example: fedweave export runs/fedavg-20260101-120000 --to safetensors --which best")
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
    running, comparing = training()
    files: list[str] = []
    for run in comparing.begun_in(folder):
        result = running.load_result(run)
        with writable(run):
            if to in ("csv", "parquet"):
                files += map(str, write_tables(run, result.rounds, result.clients, to, result.client_scores))
            else:
                files.append(_export_model(result, run, to, which))
    if json:
        print_json({"files": files})
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


app.command(sweep_command.sweep, help_epilogue=sweep_command.EXAMPLE)
app.command(plan_command.plan, help_epilogue=plan_command.EXAMPLE)
app.command(reproduce_command.reproduce, help_epilogue=reproduce_command.EXAMPLE)
app.command(verify_command.command, name="verify", help_epilogue=verify_command.EXAMPLE)
app.command(flower)


def _say(results: Sequence[Result], page: Path | None, as_json: bool) -> None:
    """Print what came out, and write the page if one is wanted."""
    from fedweave.report import client_table, compare_rows, cost_table, paired_table, terminal_table, write

    if page is not None:
        write(results, page)
    if as_json:
        runs = [dict(r.summary) for r in results]
        print_json(runs[0] if page is None else {"runs": runs, "summary": compare_rows(results), "report": str(page)})
        return
    for make in (terminal_table, paired_table, cost_table, client_table):
        if table := make(results):
            Console().print(table)
    for result in results:
        if not result.rounds["asked"].any():
            print(f"warning: nobody was ever available in {result.folder}: nothing was trained", file=sys.stderr)
        if (since := result.summary.get("stalled_since")) is not None:
            who = f"{result.summary['method']}, seed {result.summary['seed']}"
            print(f"warning: {who} has stalled since round {since}: {STALLED}", file=sys.stderr)
    print(f"run: {results[0].folder}" if page is None else f"report: {page}")


def main() -> None:
    """Run the command line; 0 is success, 1 a failed run, 2 bad input, 130 and 143 stopped with the state saved."""
    stopped.clear()
    plugins.search_here = True
    warnings.showwarning = _warn
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored, as nohup does
        signal.signal(signal.SIGINT, stop)
    code = 1
    try:
        command, bound, unknown, _ = app.parse_known_args()
        if unknown:
            raise BadInput(*_unknown(unknown), *_also_wrong(bound.arguments))
        with unmasked():
            command(*bound.args, **bound.kwargs)
        code = 0
    except BadInput as e:
        code = _complain(*e.problems)
    except CycloptsError as e:
        e.verbose = False
        code = _complain(" ".join(str(e).split()))
    except KeyboardInterrupt as e:
        folder = getattr(e, "folder", None)
        print(
            f"Stopped; the state is saved. Continue with: fedweave resume {folder}" if folder else "Stopped.",
            file=sys.stderr,
        )
        code = 143 if signal.SIGTERM in stopped else 130
    except BrokenPipeError:  # whoever read the output, such as head, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what Python flushes at its end goes there
    except NotStored as e:
        print(f"error: {e}\nThe last saved state is intact: `fedweave resume` goes on from it.", file=sys.stderr)
    except RuntimeError as e:
        traceback.print_exc()
        print(f"The run failed: {e}", file=sys.stderr)
    sys.exit(code)


def _unknown(tokens: Sequence[str]) -> list[str]:
    """Return a sentence for each option that the command does not have."""
    command = app.parse_commands()[1][-1]
    names = [name for argument in command.assemble_argument_collection() for name in argument.names if argument.show]
    wrong = [t.split("=", 1)[0] for t in tokens if t.startswith("--")]
    elsewhere = {*map(as_option, OPTIONS), "--set"}
    known = f"{command.name[0]} has no option {{!r}}, which belongs to run and compare.{STAYS.get(command.name[0], '')}"
    return [known.format(t) if t in elsewhere else f"There is no option {t!r}.{nearest(t, names)}" for t in wrong] or [
        f"Unexpected argument {tokens[0]!r}."
    ]


def _also_wrong(arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return what else is wrong with the options of run and compare, so that the user hears of everything at once."""
    if not isinstance(options := arguments.get("options", NO_OPTIONS), Typed):
        return ()
    try:
        experiments_of(
            [arguments["method"]] if "method" in arguments else arguments.get("methods", ()),
            options.given(),
            arguments.get("set_", ()),
        )
    except BadInput as e:
        return e.problems
    return ()


def _warn(message: Warning | str, *_: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _complain(*problems: str) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2
