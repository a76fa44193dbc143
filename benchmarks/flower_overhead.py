"""What the drop-in strategy costs: a round of it against a round of Flower's own FedAvg, on a grid in this process.

A million parameters, 20 clients, all asked. Both sides do the same rounds in one process, alternating. Twice: with
clients that answer at once with something prepared, so that only the server's work is left, and with clients that open
the model and pack an answer, which is the least that any real client does.
"""

from __future__ import annotations

import logging
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedweave as fw
from fedweave import flower

CLIENTS, ROUNDS, REPEATS = 20, 20, 7
SHAPES = {"conv.weight": (64, 32, 3, 3), "fc1.weight": (512, 1800), "fc1.bias": (512,), "fc2.weight": (101, 512)}


def model(seed: int) -> ArrayRecord:
    rng = np.random.default_rng(seed)
    return ArrayRecord({n: Array(rng.standard_normal(s, dtype=np.float32)) for n, s in SHAPES.items()})


def clients(prepared: bool) -> ClientApp:
    app, ready = ClientApp(), [model(seed) for seed in range(CLIENTS)]

    @app.train()
    def train(message: Message, context: object) -> Message:
        client = context.node_config["partition-id"]  # pyright: ignore
        arrays = ready[client]
        if not prepared:
            arrays = ArrayRecord({n: Array(a.numpy() + 0.01) for n, a in message.content["arrays"].items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 100 + client})})
        return Message(content, reply_to=message)

    return app


def seconds(strategy: object, app: ClientApp) -> tuple[float, float]:
    """Return the seconds of one round, by the clock and of the processor."""
    grid, start = flower.LocalGrid(app, CLIENTS), model(0)
    begin = time.perf_counter(), time.process_time()
    strategy.start(grid, start, num_rounds=ROUNDS)  # pyright: ignore
    return (time.perf_counter() - begin[0]) / ROUNDS, (time.process_time() - begin[1]) / ROUNDS


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    size = sum(int(np.prod(s)) for s in SHAPES.values())
    print(f"{size:,} parameters, {CLIENTS} clients; seconds per round, median of {REPEATS}; ratio fedweave / FedAvg")
    for prepared, name in ((True, "server alone"), (False, "with clients that open and pack the model")):
        app, found = clients(prepared), {"FedAvg": [], "fedweave": []}
        for _ in range(REPEATS + 1):
            found["FedAvg"].append(seconds(FedAvg(fraction_evaluate=0.0), app))
            found["fedweave"].append(seconds(flower.Strategy(fw.methods.fedavg(CLIENTS), fraction_evaluate=0.0), app))
        theirs, ours = (np.array(found[side][1:]).T for side in ("FedAvg", "fedweave"))  # the first one warms up
        for what, a, b in zip(("clock", "processor"), theirs, ours, strict=True):
            both = f"FedAvg {np.median(a):.4f}  fedweave {np.median(b):.4f}  ratio {np.median(b / a):.3f}"
            print(f"{name}, {what}: {both}")


if __name__ == "__main__":
    main()
