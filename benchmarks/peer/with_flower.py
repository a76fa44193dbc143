"""Flower's simulation: FedAvg of its message API on two Ray actors, clients that train with a DataLoader and SGD."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from common import WORK, Clock, say, torch_model
from flower_client import app
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

logging.getLogger("flwr").setLevel(logging.WARNING)
clock, server = Clock(), ServerApp()


class Enough(Exception):  # noqa: N818 - nobody asks for more rounds
    """Ends the server's loop."""


class Timed(FedAvg):
    """Flower's FedAvg, which begins each round on request and says how long it took."""

    def configure_train(self, *arguments: Any, **options: Any) -> Any:
        if not clock.start():
            raise Enough
        return super().configure_train(*arguments, **options)

    def aggregate_train(self, *arguments: Any, **options: Any) -> Any:
        found = super().aggregate_train(*arguments, **options)
        clock.stop()
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds until nobody asks for more."""
    share = WORK["sampled"] / WORK["clients"]
    strategy = Timed(
        fraction_train=share,
        fraction_evaluate=0.0,
        min_train_nodes=WORK["sampled"],
        min_available_nodes=WORK["clients"],
    )
    say(flwr=version("flwr"), ray=version("ray"), torch=version("torch"))
    with suppress(Enough):
        strategy.start(grid=grid, initial_arrays=ArrayRecord(torch_model().state_dict()), num_rounds=10**6)


if __name__ == "__main__":
    own = {"address": "local", "num_cpus": 2, "include_dashboard": False}  # no cluster that runs here already
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": own}
    try:
        run_simulation(server, app, WORK["clients"], backend_config=backend)
    finally:
        os._exit(0)  # if the backend failed, the server would wait for requests for ever
