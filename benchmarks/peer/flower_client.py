"""The client app of Flower's simulation, in a module of its own: Ray's actors import it."""

from __future__ import annotations

from functools import cache

import torch
from common import WORK, data, torch_model
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


@cache
def samples() -> tuple[Tensor, ...]:
    """Return the samples and labels of all clients; each actor reads them once."""
    return tuple(map(torch.from_numpy, data()))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    x, y = samples()
    client = int(context.node_config["partition-id"])
    model = torch_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=WORK["lr"])
    loader = DataLoader(TensorDataset(x[client], y[client]), batch_size=WORK["batch"], shuffle=True)
    for _ in range(WORK["epochs"]):
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": WORK["samples"]})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
