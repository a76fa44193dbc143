"""pfl's simulated backend in one process: FederatedAveraging with local SGD."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from common import WORK, Clock, data, say, torch_model
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

torch.set_num_threads(1)


class Network(nn.Module):
    """The network with the methods that pfl calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch_model()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        return {}


class Timed(TrainingProcessCallback):
    """Begins each round on request and says how long it took."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_begin(self, *, model: Any) -> Metrics:
        say(pfl=version("pfl"), torch=version("torch"))
        self.clock.start()
        return Metrics()

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.clock.stop()
        return not self.clock.start(), Metrics()


def main() -> None:
    """Run rounds until nobody asks for more."""
    x, y = map(torch.from_numpy, data())
    users = {i: Dataset((x[i], y[i]), user_id=str(i)) for i in range(WORK["clients"])}
    dealt = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    network = Network()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**9,
            train_cohort_size=WORK["sampled"],
            val_cohort_size=None,
        ),
        SimulatedBackend(dealt, dealt, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=WORK["epochs"], local_learning_rate=WORK["lr"], local_batch_size=WORK["batch"]
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Timed()],
    )


if __name__ == "__main__":
    main()
