"""Run folders with made-up rows and states, for tests and for the programs that they start and kill."""

import numpy as np

from fedweave.core.records import ServerState
from fedweave.store.run_folder import RunFolder
from fedweave.tables.rows import Rows

N, D = 6, 50  # of the tables
EXPERIMENT = {"method": {"name": "toy"}, "seed": 0, "rounds": 9, "target": None}
MANIFEST = {"data": {"name": "none"}, "versions": {}}


def state(round=3, clock=0.1 + 0.2):
    """Return a state of awkward numbers."""
    rng = np.random.default_rng(round)
    return ServerState(
        round=round,
        x=rng.standard_normal(7).astype(np.float32),
        clock=clock,
        sampler={"estimate": rng.random(4), "seen": np.array([True, False]), "none": np.zeros(0)},
        aggregator={"table": np.asfortranarray(rng.random((2, 3)).astype(np.float32)), "a.b": np.array(5)},
        server={"v": np.array([np.nan, -0.0, np.inf, 5e-324])},
        best={"x": rng.random(7).astype(np.float32), "round": np.array(round - 1), "value": np.array(0.1 + 0.2)},
        fleet={
            "samples": np.array([3, 0]),
            "holder": rng.integers(0, 256, (2, 32), np.uint8),
            "covered": rng.random(2),
        },
    )


def row(round, class_accuracy=(0.5, np.nan), **changes):
    """Return the row of a round."""
    values = {
        "round": round, "clock": 1.5 * round, "seconds": 1.5, "device_seconds": 2.5, "wall_seconds": 0.1,
        "accuracy": 0.25, "loss": 2.0, "train_loss": np.nan, "asked": 2, "received": 1, "refused": 0, "abandoned": 0,
        "bytes_up": 10 * round, "bytes_down": 20 * round, "class_accuracy": np.array(class_accuracy),
    }  # fmt: skip
    return values | changes


def clients(round, ids=(1, 4)):
    """Return the rows of a round's clients."""
    n = len(ids)
    return {
        "round": np.full(n, round), "client": np.array(ids), "count": np.ones(n, int), "expected": np.full(n, np.nan),
        "received": np.arange(n) % 2, "steps": np.full(n, 3), "loss": np.full(n, np.nan), "seconds": np.full(n, 1.25),
        "bytes_up": np.full(n, 44), "first_gradient": np.full(n, 0.5), "first_loss": np.full(n, np.nan),
    }  # fmt: skip


def new(folder):
    """Create a run folder."""
    return RunFolder.create(folder, EXPERIMENT, MANIFEST)


def first(precision="float32"):
    """Return a state with two tables that nobody has written yet."""
    zeros = Rows.zeros(N, D, precision)
    return ServerState(
        round=0,
        x=np.zeros(3, np.float32),
        clock=0.0,
        sampler={},
        aggregator={"last": zeros},
        server={},
        clients={"memory": zeros},
    )


def following(state):
    """One round: a few rows of both tables change, at the round's own random address."""
    rng = np.random.default_rng(state.round + 1)
    ids = np.sort(rng.choice(N, 2, replace=False))
    last = state.aggregator["last"].replaced(ids, rng.standard_normal((2, D)))
    memory = state.clients["memory"].mixed(ids, 0.5, rng.standard_normal((2, D)))
    return state._replace(round=state.round + 1, aggregator={"last": last}, clients={"memory": memory})
