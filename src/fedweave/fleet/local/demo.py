"""The demo: a fleet of processes on this machine that trains, loses nodes, and is removed afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.core.settings import BadInput
from fedweave.fleet.local.new_app import write_app
from fedweave.fleet.local.processes import Processes
from fedweave.runs.results import Result
from fedweave.store.run_folder import RunFolder

KILL_ROUND = 2  # after one undisturbed round
ASKS = re.compile(r"fedweave: round (\d+)(?:, dispatch \d+)? asks clients ([\d ]+)")
OURS = re.compile(r"fedweave: (.*)")


class DemoResult(NamedTuple):
    """The result of a demo, and what went wrong on purpose."""

    result: Result
    killed: list[int]
    reasons: list[tuple[int, str]]  # (round, why an answer was rejected)


def demonstrate(
    app: Path | None,
    config: dict[str, Any],
    nodes: int,
    kill: int,
    secure: bool,
    out: Path | None,
    on_line: Callable[[str], None],
) -> DemoResult:
    """Run an app, or a new one, on a fleet of processes; ``kill`` nodes are killed while round 2 waits for them."""
    from fedweave.runs.loop import load_result

    if out is not None and out.exists():
        raise BadInput(f"--out: {str(out)!r} already exists; choose another.")
    killed: list[int] = []
    kind = "TLS and node keys" if secure else "no encryption"
    on_line(f"starting a SuperLink and {nodes} SuperNodes on this machine, {kind}")
    with Processes(nodes, secure=secure) as fleet:
        if app is None:
            app = fleet.folder / "demo"
            write_app(app, config["method"])
        folder = out.resolve() if out else fleet.folder / "run"

        def line(text: str) -> None:
            if ours := OURS.search(text):
                on_line(ours[1])
            if not killed and (asks := ASKS.search(text)) and int(asks[1]) == KILL_ROUND:
                for client in [int(c) for c in asks[2].split()][:kill]:
                    fleet.kill(client)
                    killed.append(client)
                    on_line(f"killed the node of client {client} in round {KILL_ROUND}")

        seats = {"clients": nodes, "keys": str(fleet.folder / "keys") if secure else ""}
        fleet.run(app.resolve(), {**config, **seats, "out": str(folder)}, line)
        result = load_result(folder)
        store = RunFolder.open(folder, write=False)
        reasons = [(round, str(failure)) for round, _, failure in store.failures()]
        store.close()
        on_line("stopping the fleet")
    return DemoResult(result, killed, reasons)
