"""A first Flower app with PyTorch, in which only the strategy is ours. Run it: python examples/quickstart_pytorch.py

Client and server know nothing of fedweave but the one line ``strategy = …``. In a project of Flower's, ``client_app``
and ``server_app`` are what pyproject.toml names, ``RUN_CONFIG`` is its ``[tool.flwr.app.config]``, and ``flwr run``
starts both; here a ``LocalGrid`` of ten nodes stands for the network.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FedAvg
from flwr.serverapp.strategy import Result
from sklearn.datasets import load_digits
from torch import nn

from fedweave import flower, methods

RUN_CONFIG = {"num-server-rounds": 5, "local-epochs": 3, "lr": 0.3}
client_app, server_app = ClientApp(), ServerApp()


class Net(nn.Sequential):
    """A small network for the digits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all images and labels."""
    return load_digits(return_X_y=True)


def load_data(context: Context) -> tuple[torch.Tensor, ...]:
    """Return the images and labels of this node to train and to test on."""
    who, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    images, labels = digits()
    mine = np.random.default_rng(0).permutation(len(labels))[who::of]
    x, y = torch.tensor(images[mine] / 16, dtype=torch.float32), torch.tensor(labels[mine])
    cut = len(y) // 5
    return x[cut:], y[cut:], x[:cut], y[:cut]


def local_model(message: Message) -> Net:
    """Return the model that the server sent."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this node's data."""
    model, (x, y, *_) = local_model(message), load_data(context)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))
    torch.manual_seed(message.content["config"]["server-round"])
    losses = []
    for _ in range(int(context.run_config["local-epochs"])):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    metrics = MetricRecord({"train_loss": sum(losses) / len(losses), "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model on this node's test data."""
    model, (*_, x, y) = local_model(message), load_data(context)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"accuracy": right, "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    torch.manual_seed(0)
    initial_arrays = ArrayRecord(Net().state_dict())
    # strategy = FedAvg(fraction_train=0.5)
    strategy = flower.Strategy(methods.fedacs(per_round=5))
    result = strategy.start(
        grid=grid,
        initial_arrays=initial_arrays,
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    report(result)


def report(result: Result) -> None:
    """Print what the clients measured."""
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}")


if __name__ == "__main__":
    nodes = flower.LocalGrid(client_app, 10, run_config=RUN_CONFIG)
    server_app(nodes, Context(1, 0, {}, RecordDict(), RUN_CONFIG))
