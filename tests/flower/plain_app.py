"""A Flower app of somebody who has never heard of fedweave: five clients that move every value by a fixed step."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedweave.fleet.wire.tensors import packed

N = 5
SAMPLES = np.array([10, 20, 30, 40, 50])


def pull(client):
    """Return how far a plain client moves every value."""
    return 0.1 * (client + 1)


def plain(seen=None, mods=(), dtype=None, **extra):
    """A ClientApp that knows nothing of fedweave."""
    app = ClientApp()

    @app.train(mods=[*mods])
    def train(message, context):
        client = context.node_config["partition-id"]
        if seen is not None:
            seen.append((client, dict(message.content["config"])))
        moved = {
            name: packed((a.numpy() + (1 if "num" in name else pull(client))).astype(dtype or a.dtype))
            for name, a in message.content["arrays"].items()
        }
        metrics = {"num-examples": int(SAMPLES[client]), "train_loss": float(client), **extra}
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": int(SAMPLES[client]), "accuracy": client / 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def initial(dtype=np.float32):
    """Return the arrays it starts from."""
    return ArrayRecord(
        {
            "w": packed(np.arange(6, dtype=dtype).reshape(2, 3)),
            "bn.running_mean": packed(np.zeros(3, dtype)),
            "b": packed(np.zeros((), dtype)),
        }
    )
