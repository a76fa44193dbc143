"""A first Flower app with scikit-learn, with a strategy of ours. Run it: python examples/quickstart_sklearn.py

As in quickstart_pytorch.py, ``client_app`` and ``server_app`` are what a project of Flower's names, and a ``LocalGrid``
stands for the network. The arrays have no names, so Flower numbers them, and scikit-learn's numbers are float64.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FedAvg
from flwr.serverapp.strategy import Result
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from fedweave import flower, methods

RUN_CONFIG = {"num-server-rounds": 5, "local-epochs": 2}
client_app, server_app = ClientApp(), ServerApp()


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all images and labels."""
    return load_digits(return_X_y=True)


def load_data(context: Context) -> tuple[np.ndarray, ...]:
    """Return the images and labels of this node to train and to test on."""
    who, of = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    images, labels = digits()
    mine = np.random.default_rng(0).permutation(len(labels))[who::of]
    x, y, cut = images[mine] / 16, labels[mine], mine.size // 5
    return x[cut:], y[cut:], x[:cut], y[:cut]


def model_with(arrays: list[np.ndarray], epochs: int = 1) -> LogisticRegression:
    """Return a regression that begins with these coefficients."""
    model = LogisticRegression(max_iter=epochs, warm_start=True)
    model.coef_, model.intercept_ = arrays
    model.classes_ = np.arange(10)
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the model to this node's data for a few iterations."""
    x, y, *_ = load_data(context)
    model = model_with(message.content["arrays"].to_numpy_ndarrays(), int(context.run_config["local-epochs"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, nor should it
        model.fit(x, y)
    loss = log_loss(y, model.predict_proba(x), labels=np.arange(10))
    metrics = MetricRecord({"train_loss": float(loss), "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model on this node's test data, also class by class."""
    *_, x, y = load_data(context)
    right = model_with(message.content["arrays"].to_numpy_ndarrays()).predict(x) == y
    hits = [float((right & (y == label)).sum()) for label in range(10)]
    metrics = MetricRecord({"accuracy": float(right.mean()), "hits_by_class": hits, "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    initial_arrays = ArrayRecord([np.zeros((10, 64)), np.zeros(10)])
    # strategy = FedAvg(fraction_train=0.5)
    strategy = flower.Strategy(methods.fedavgm(per_round=5, beta=0.5))
    result = strategy.start(
        grid=grid, initial_arrays=initial_arrays, num_rounds=int(context.run_config["num-server-rounds"])
    )
    report(result)


def report(result: Result) -> None:
    """Print what the clients measured."""
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}")


if __name__ == "__main__":
    nodes = flower.LocalGrid(client_app, 10, run_config=RUN_CONFIG)
    server_app(nodes, Context(1, 0, {}, RecordDict(), RUN_CONFIG))
