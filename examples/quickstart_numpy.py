"""A first Flower app with NumPy alone, in which only the strategy is ours. Run it: python examples/quickstart_numpy.py

As in quickstart_pytorch.py, ``client_app`` and ``server_app`` are what a project of Flower's names, and a ``LocalGrid``
stands for the network. Every node fits a line to points of its own.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FedAvg
from flwr.serverapp.strategy import Result

from fedweave import flower, methods

RUN_CONFIG = {"num-server-rounds": 20, "local-steps": 10, "lr": 0.1}
SLOPE, LEVEL = 2.0, -1.0
client_app, server_app = ClientApp(), ServerApp()


def load_data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of this node: each has seen another stretch of the line, and some have seen more of it."""
    who = int(context.node_config["partition-id"])
    rng = np.random.default_rng(who)
    x = rng.uniform(who / 5 - 1, who / 5, 20 * (1 + who % 3))
    return x, SLOPE * x + LEVEL + 0.1 * rng.standard_normal(x.size)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take a few steps of gradient descent."""
    (line,) = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context)
    features = np.stack([x, np.ones_like(x)], axis=1)
    for _ in range(int(context.run_config["local-steps"])):
        line = line - float(context.run_config["lr"]) * features.T @ (features @ line - y) / y.size
    loss = float(np.mean((features @ line - y) ** 2))
    metrics = MetricRecord({"train_loss": loss, "num-examples": y.size})
    content = RecordDict({"arrays": ArrayRecord([line]), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the line on this node's points."""
    ((slope, level),) = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context)
    metrics = MetricRecord({"mse": float(np.mean((slope * x + level - y) ** 2)), "num-examples": y.size})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    initial_arrays = ArrayRecord([np.zeros(2)])
    # strategy = FedAvg(fraction_train=0.5)
    strategy = flower.Strategy(methods.fedvarp(per_round=5))
    result = strategy.start(
        grid=grid, initial_arrays=initial_arrays, num_rounds=int(context.run_config["num-server-rounds"])
    )
    report(result)


def report(result: Result) -> None:
    """Print the line that was found."""
    ((slope, level),) = result.arrays.to_numpy_ndarrays()
    print(f"y = {slope:.2f} x {level:+.2f}; the truth is y = {SLOPE:.2f} x {LEVEL:+.2f}")


if __name__ == "__main__":
    nodes = flower.LocalGrid(client_app, 10, run_config=RUN_CONFIG)
    server_app(nodes, Context(1, 0, {}, RecordDict(), RUN_CONFIG))
