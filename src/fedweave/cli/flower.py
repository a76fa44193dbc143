"""The commands ``fedweave flower new | demo | keys | doctor``: the same methods over a real network."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from fedweave.cli import flower_doctor
from fedweave.cli.completion import completer
from fedweave.cli.options import gather, known_method
from fedweave.cli.output import check
from fedweave.cli.parameters import NORMAL, Json, Talk, help_text, whole_number
from fedweave.core.settings import BadInput
from fedweave.runs import method_names

flower = App(
    name="flower",
    help="The same methods over a real network, on Flower.",
    help_format="plaintext",
    help_epilogue="Example: fedweave flower demo --nodes 4 --method fedacs --kill 1",
)
flower.command(flower_doctor.command, name="doctor", help_epilogue=flower_doctor.EXAMPLE)
Method = Annotated[
    str,
    Parameter(completer=completer("methods")),
    help_text("A name of `fedweave list methods`. [fedacs]", "NAME"),
]


@flower.command(help_epilogue="Example: fedweave flower new my-fleet --method fedacs")
def new(folder: Annotated[Path, Parameter(metavar="DIR")], /, *, method: Method = "fedacs", json: Json = False) -> None:
    """Write a small app that `flwr run` and `flwr build` accept, as a start for your own."""
    problems: list[str] = []
    method = _fitting_method(method, problems)
    if problems:
        raise BadInput(*problems)
    _check_installed("sklearn")  # for its digits
    from fedweave.fleet.local.new_app import write_app

    files = [str(path) for path in write_app(folder, method)]
    if json:
        print(json_text.dumps({"files": files}))
        return
    print("\n".join(files))
    print(f"{folder / 'README.md'} says how to run it; `fedweave flower demo {folder}` shows it now.")


@flower.command(help_epilogue="Example: fedweave flower demo --nodes 4 --method fedacs --kill 1")
def demo(
    app: Annotated[
        Path | None,
        Parameter(metavar="DIR", help="An app of `fedweave flower new` with your changes. [a new one, on digits]"),
    ] = None,
    /,
    *,
    nodes: Annotated[
        str | None, help_text("Clients, each in a Flower process of its own. [those of the app, or 4]", "N")
    ] = None,
    method: Annotated[
        str | None,
        Parameter(completer=completer("methods")),
        help_text("A name of `fedweave list methods`. [that of the app, or fedacs]", "NAME"),
    ] = None,
    rounds: Annotated[str, help_text("Number of rounds. [4]", "R")] = "4",
    per_round: Annotated[
        str | None, help_text("Clients asked in a round. [those of the app, or 3, or all of fewer]", "K")
    ] = None,
    kill: Annotated[str, help_text("Number of nodes to kill in the middle of round 2. [0]", "COUNT")] = "0",
    secure: Annotated[
        bool,
        Parameter(show_default=False, help="Use TLS and a registered key for every node, created for the demo. [yes]"),
    ] = True,
    answer_seconds: Annotated[float, help_text("Seconds that a round waits for answers. [30]", "S")] = 30.0,
    seed: Annotated[str, help_text("Same seed, same bits. [0]", "S")] = "0",
    out: Annotated[Path | None, help_text("Folder to keep the run in. [nothing is kept]", "RUN")] = None,
    talk: Talk = NORMAL,
    json: Json = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, train an app, and leave nothing behind.

    Nothing calls outside this machine: no telemetry, no update check, nothing is installed.
    """
    problems: list[str] = []
    with gather(problems):
        check(talk)
    own: Mapping[str, Any] = {}
    if app is not None:
        from fedweave.fleet.local.new_app import app_config

        with gather(problems):
            own = app_config(app)
    method = _fitting_method(method or own.get("method", "fedacs"), problems)
    size = whole_number("--nodes", nodes or str(own.get("clients") or 4), problems, 2, 64)
    last = whole_number("--rounds", rounds, problems, 1, 10**6)
    asked = (
        min(own.get("per-round", 3), size)
        if per_round is None
        else whole_number("--per-round", per_round, problems, 1, size)
    )
    killed = whole_number("--kill", kill, problems, 0, size - 1)
    start = whole_number("--seed", seed, problems, 0, 2**62)
    if not 1 <= answer_seconds <= 10**6:
        problems.append(f"--answer-seconds must be from 1 to {10**6}. Got {answer_seconds!r} instead.")
    if killed and last < 2:
        problems.append("--kill takes effect in round 2: give --rounds 2 or more.")
    if problems:
        raise BadInput(*problems)
    _check_installed("sklearn")  # for its digits
    from fedweave.fleet.local.demo import demonstrate

    screen = Console(stderr=True, markup=False, emoji=False, highlight=False)
    config: dict[str, Any] = {"method": method, "per-round": asked, "rounds": last, "seed": start}
    config |= {"start-seconds": 180.0, "answer-seconds": answer_seconds}

    def say(line: str) -> None:
        if not talk.quiet:
            screen.print(line, soft_wrap=True)

    result = demonstrate(app, config, size, killed, secure, out, say)
    if json:
        summary = {**result.result.summary, "run": str(out) if out else None}
        details = {"killed": result.killed, "failed": [f"round {r}, {why}" for r, why in result.reasons]}
        print(json_text.dumps({**summary, **details}, default=float, allow_nan=False))
        return
    for table in _tables(result.result):
        Console().print(table)
    for r, why in result.reasons:
        print(f"round {r}, {why}")
    print(f"digest {result.result.summary['digest']}" + (f", run: {out}" if out else ""))


@flower.command(help_epilogue="Example: fedweave flower keys fleet-keys --host fl.example.org --nodes 10")
def keys(
    folder: Annotated[Path, Parameter(metavar="DIR")],
    /,
    *,
    host: Annotated[Sequence[str], help_text("A name or address of the SuperLink; may be repeated. Required.", "HOST")],
    nodes: Annotated[str, help_text("Number of key pairs to create, node0 … [10]", "N")] = "10",
    days: Annotated[str, help_text("Days for which the certificate is valid. [365]", "D")] = "365",
    json: Json = False,
) -> None:
    """Create the TLS certificates and node keys of a fleet.

    ca.crt goes to every node, server.pem and server.key to the SuperLink, nodeN to its node; nodeN.pub is registered.
    """
    problems: list[str] = []
    size = whole_number("--nodes", nodes, problems, 1, 10**5)
    valid = whole_number("--days", days, problems, 1, 36500)
    if problems:
        raise BadInput(*problems)
    _check_installed()
    from fedweave.fleet.local import keys as make
    from fedweave.store.run_folder import refuse_used, writable

    refuse_used(folder, "run.sqlite")
    with writable(folder):
        try:
            files = [*make.server_files(folder, list(host), valid)]
        except ValueError as e:
            raise BadInput(f"--host must be names or addresses. Got {', '.join(host)}: {e}") from None
        files += [make.node_key(folder, f"node{i}") for i in range(size)]
    if json:
        print(json_text.dumps({"files": [str(f) for f in files]}))
        return
    print(f"{folder}: ca.crt for every node, server.pem and server.key for the SuperLink, a key pair for {size} nodes.")


def _fitting_method(name: str, problems: list[str]) -> str:
    """Return the current name of a method; if it does not exist or no fleet can serve it, add that to ``problems``."""
    from fedweave.fleet.server.terms import refuse_oracle

    try:
        name = known_method(name)
    except BadInput as e:
        problems.append(f"--method: {e}")
        return name
    try:
        refuse_oracle(method_names.parse(name))
    except BadInput as e:
        problems.append(f"--method {name}: {e}")
    return name


def _check_installed(*others: str) -> None:
    """Raise BadInput for missing packages before anything starts."""
    for module in ("flwr", "psutil", "torch", *others):
        if find_spec(module) is None:
            raise BadInput(f"This needs {module}: pip install 'fedweave[flower,torch,data]'")
    if sys.platform == "win32":
        raise BadInput("Flower's SuperLink and SuperNodes are started on Linux and macOS only.")


def _tables(result: Any) -> list[Table]:
    """Return tables of the rounds and of the clients."""
    by_round = Table(
        "round", "asked", "answered", "refused", "accuracy", "seconds", title="rounds", title_justify="left"
    )
    rows = result.rounds
    for i in range(rows["round"].size):
        numbers = [str(rows[name][i]) for name in ("round", "asked", "received", "refused")]
        by_round.add_row(*numbers, f"{rows['accuracy'][i]:.4f}", f"{rows['seconds'][i]:.1f}")
    by_client = Table("client", "asked", "answered", "mean seconds", title="clients", title_justify="left")
    visits = result.clients
    for client in np.unique(visits["client"]):
        mine = visits["client"] == client
        seconds, answered = visits["seconds"][mine].mean(), visits["received"][mine].sum()
        by_client.add_row(str(client), str(mine.sum()), str(answered), f"{seconds:.1f}")
    return [by_round, by_client]
