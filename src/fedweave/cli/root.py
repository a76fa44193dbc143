"""The root of the command line: its commands, loaded when they are used, and what becomes of errors and signals."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import BoundArguments
from typing import Any, NamedTuple

from cyclopts import App, CycloptsError, UnknownOptionError

from fedweave import __version__
from fedweave.cli.loading import uncollected
from fedweave.cli.parameters import NORMAL, Talk
from fedweave.cli.signals import stop, stopped, unmasked
from fedweave.core import plugins
from fedweave.core.errors import BadInput, NotStored, nearest

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


class Command(NamedTuple):
    """Where a command is defined, and what ``fedweave --help`` says of it without loading it."""

    place: str  # module:name below fedweave.cli
    help: str  # the first sentence of its docstring
    examples: tuple[str, ...] = ()  # with another heading than "Example:" where it has one


COMMANDS = {
    "list": Command(
        "listing:list_",
        "Show the names that options take, those of plug-ins too, or the papers' claims with their verdicts.",
        ("fedweave list methods", "fedweave list claims feddd --run"),
    ),
    "run": Command(
        "app:run",
        "Run one method: a name of `fedweave list methods`, a TOML experiment file, or your own, module:name.",
        ("fedweave run fedprox --data digits --partition dirichlet:0.1 --set method.solver.mu=0.1",),
    ),
    "compare": Command(
        "app:compare",
        "Run several methods on the same data, worlds and seeds; leaves a table and report.html.",
        ("fedweave compare fedavg fedprox --data digits --system dynamic --seeds 3 --target 0.9",),
    ),
    "sweep": Command(
        "sweep:sweep",
        "Run methods at every point of a grid; leaves a table and report.html with the best point of each.",
        ("fedweave sweep fedavg fedprox --data digits --over lr=0.01,0.1 --over fedprox:method.solver.mu=0,0.1",),
    ),
    "resume": Command(
        "app:resume",
        "Continue an interrupted run, comparison or sweep, bit for bit, or extend a finished one: --rounds, --seeds.",
        ("fedweave resume runs/fedavg-20260101-120000", "fedweave resume runs/fedavg-20260101-120000 --rounds 200"),
    ),
    "report": Command(
        "app:report",
        "Show a table and write one self-contained HTML page over runs or comparisons, or over one sweep.",
        ("fedweave report runs/compare-20260101-120000 --html page.html",),
    ),
    "watch": Command(
        "watch:watch",
        "Show a live page over runs: how far they are, their curves, and who takes part.",
        ("fedweave watch runs",),
    ),
    "export": Command(
        "app:export",
        "Write tables or the trained model into the run folder.",
        ("fedweave export runs/fedavg-20260101-120000 --to safetensors --which best",),
    ),
    "plan": Command(
        "plan:plan",
        "Plan for a real fleet: each client's probability, the cohort size and the number of rounds.",
        (
            "fedweave plan clients.csv --epsilon 0.1 --html plan.html",
            "From a run: fedweave plan --from runs/latency_ratio-20260101-120000 --epsilon 0.1 --json > plan.json",
        ),
    ),
    "reproduce": Command(
        "reproduce:reproduce",
        "Reproduce figures and tables, with a verdict on each claim.",
        ("fedweave reproduce fedacs/fig7 --scale smoke", "fedweave reproduce --page atlas"),
    ),
    "verify": Command(
        "verify:command",
        "Check that runs are intact: every round once, states by their digests, the audit log line by line.",
        ("fedweave verify runs/fedavg-20260101-120000",),
    ),
    "doctor": Command(
        "doctor:command",
        "Show what is installed, which data is there, and what is missing and how to get it.",
        ("fedweave doctor",),
    ),
    "completion": Command(
        "completion:completion",
        "Print a script that completes commands, options and names in a shell.",
        ("fedweave completion bash > ~/.local/share/bash-completion/completions/fedweave",),
    ),
    "flower": Command("flower:flower", "The same methods over a real network, on Flower."),
}
TRAINING = ("run", "compare", "sweep")  # that have the options of an experiment
for _name, _command in COMMANDS.items():
    _lines = [line if ": " in line else f"Example: {line}" for line in _command.examples]
    _epilogue: dict[str, Any] = {"help_epilogue": "\n\n".join(_lines)} if _lines else {}
    app.command(f"fedweave.cli.{_command.place}", name=_name, help=_command.help, **_epilogue)


def main() -> None:
    """Run the command line; 0 is success, 1 a failed run, 2 bad input, 130 and 143 stopped with the state saved."""
    stopped.clear()
    plugins.search_here = True
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored, as nohup does
        signal.signal(signal.SIGINT, stop)
    code, talk = 1, NORMAL
    try:
        with unmasked():
            command, bound = _parse(sys.argv[1:])
            talk = next((given for given in bound.arguments.values() if isinstance(given, Talk)), NORMAL)
            _show_warnings(talk)
            command(*bound.args, **bound.kwargs)
        code = 0
    except BadInput as e:
        if talk.verbose:
            traceback.print_exc()
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
        if talk.verbose:
            traceback.print_exc()
        print(f"error: {e}\nThe last saved state is intact: `fedweave resume` goes on from it.", file=sys.stderr)
    except RuntimeError as e:
        traceback.print_exc()
        print(f"The run failed: {e}", file=sys.stderr)
    sys.exit(code)


def _parse(words: Sequence[str]) -> tuple[Callable[..., Any], BoundArguments]:
    """Load the command that is wanted and return it with its arguments."""
    _show_warnings(NORMAL)
    with uncollected():
        if words and words[0] in COMMANDS:
            try:
                command = app[words[0]]
            except ImportError as e:
                missing = getattr(e.__cause__, "name", None)
                if stopped or not missing or missing.startswith("fedweave"):
                    raise
                raise BadInput(
                    f"fedweave {words[0]} needs {missing}, which is missing or damaged. `fedweave doctor` shows what "
                    "is installed and how to mend it."
                ) from e
            if command.default_command:
                command.help = None  # all of its docstring
        if words and words[0] in TRAINING:
            from fedweave.cli.options import with_values

            words = with_values(words)
        found, bound, unknown = _split(list(words))
    if unknown:
        raise BadInput(*_unknown(unknown), *_also_wrong(bound.arguments))
    return found, bound


def _split(words: list[str]) -> tuple[Callable[..., Any], BoundArguments, list[str]]:
    """Return a command, its arguments and the words that are none: options that it does not have, with their values."""
    unknown: list[str] = []
    while True:
        try:
            found, bound, more, _ = app.parse_known_args(words)
        except UnknownOptionError as e:  # of a command that takes any number of words
            option = e.token.keyword or e.token.value
            at = next(i for i, word in enumerate(words) if word.split("=")[0] == option.split("=")[0])
            has_value = "=" not in words[at] and not "".join(words[at + 1 : at + 2]).startswith("-")
            unknown += words[at : at + 1 + has_value]
            del words[at : at + 1 + has_value]
        else:
            return found, bound, [*unknown, *more]


def _unknown(tokens: Sequence[str]) -> list[str]:
    """Return a sentence for each option that the command does not have."""
    from fedweave.cli.options import OPTIONS, as_option

    command = app.parse_commands()[1][-1]
    names = [name for argument in command.assemble_argument_collection() for name in argument.names if argument.show]
    wrong = [t.split("=", 1)[0] for t in tokens if t.startswith("--")]
    elsewhere = [*map(as_option, OPTIONS), "--set"]
    stays = " A run is continued with the settings it began with." if command.name[0] == "resume" else ""
    own = dict.fromkeys(elsewhere, "run, compare and sweep") | {"--over": "sweep", "--plan": "run"}
    return [
        f"{command.name[0]} has no option {t!r}, which belongs to {own[t]}.{stays}"
        if t in own
        else f"There is no option {t!r}.{nearest(t, names)}"
        for t in wrong
    ] or [f"Unexpected argument {tokens[0]!r}."]


def _also_wrong(arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return what else is wrong with the options of commands that train, so that all problems are reported at once."""
    from fedweave.cli.common import problems_beside
    from fedweave.cli.options import NO_OPTIONS, Texts, experiments_of
    from fedweave.cli.sweep import read

    options, assignments = arguments.get("options", NO_OPTIONS), arguments.get("set_", ())
    numbers = {name: arguments.get(name) for name in ("at_once", "rounds")}
    problems = problems_beside(arguments.get("track", ()), arguments.get("talk", NORMAL), **numbers)
    if not isinstance(options, Texts):
        return problems
    methods = [arguments["method"]] if "method" in arguments else arguments.get("methods", ())
    try:
        if "over" in arguments:
            read(methods, arguments["over"], options, assignments, problems)
        experiments_of(methods, options.given(), assignments, problems)
    except BadInput as e:
        return e.problems
    return ()


def _show_warnings(talk: Talk) -> None:
    """Print warnings as a line each; verbosely all of them, with where they come from."""
    if talk.verbose:
        warnings.simplefilter("default")

    def show(message: Warning | str, category: type[Warning], file: str, line: int, *_: Any) -> None:
        where = f"{file}:{line}: {category.__name__}: " if talk.verbose else ""
        print(f"warning: {where}{message}", file=sys.stderr)

    warnings.showwarning = show


def _complain(*problems: str) -> int:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2
