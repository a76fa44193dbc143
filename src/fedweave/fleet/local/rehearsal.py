"""Run an experiment of the simulator on the nodes of a fleet on this machine: same data, same shares, real messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedweave.fleet.client import client, dealt
from fedweave.fleet.local.new_app import write_app
from fedweave.fleet.local.processes import Processes
from fedweave.fleet.server.terms import Terms
from fedweave.runs.experiment import Experiment, load_data
from fedweave.runs.results import Result
from fedweave.system.measured import Measured

NAME = "rehearsal"
SIDES = ("client", "server")


def rehearse(
    fleet: Processes, experiment: Experiment, terms: Terms | None = None, on_line: Callable[[str], None] | None = None
) -> Result:
    """Run the experiment on a fleet of as many nodes as its partition has clients, and return what came of it.

    The world is the real one: loss rates, latencies and link rates are measured.
    """
    import cloudpickle  # of the extra that has torch

    from fedweave.runs.loop import load_result

    app = fleet.folder / NAME
    out = fleet.folder / f"run{len(list(fleet.folder.glob('run[0-9]*')))}"  # a fleet may run several, one after another
    what = fleet.folder / "experiment.pickle"  # in a folder that only its owner can read
    what.write_bytes(cloudpickle.dumps((replace(experiment, system=Measured()), terms or Terms())))
    if not app.exists():
        write_app(app, "fedavg")
        for side in SIDES:
            text = f"from fedweave.fleet.local import rehearsal\n\napp = rehearsal.{side}_app({str(what)!r})\n"
            (app / NAME / f"{side}_app.py").write_text(text, encoding="utf-8")
    fleet.run(app, {"out": str(out)}, on_line)
    return load_result(out)


@cache
def _read(path: str) -> tuple[Experiment, Terms]:
    import cloudpickle

    return cloudpickle.loads(Path(path).read_bytes())


def client_app(path: str) -> ClientApp:
    """Return the nodes' app."""
    return client_of(_read(path)[0])


def client_of(experiment: Experiment) -> ClientApp:
    """Return an app that trains an experiment's model, on the share that the simulator gives the client."""
    model, data = experiment.model, load_data(experiment)
    return client(
        model, dealt(data, experiment.partition, experiment.seed), device="cpu", task=experiment.task, evaluate=True
    )


def server_app(path: str) -> ServerApp:
    """Return the server's app."""
    from fedweave.fleet.server.app import server  # loads torch

    experiment, terms = _read(path)
    return server(experiment, terms=terms)
