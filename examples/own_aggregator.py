"""An aggregator of your own, with state: a running mean of directions. Run: python examples/own_aggregator.py"""

from typing import ClassVar

import numpy as np

import fedweave as fw
from fedweave import settings
from fedweave.aggregate import Mean
from fedweave.core.roles import Aggregator


@settings
class Smoothed(Aggregator):
    """A running mean of FedAvg's directions."""

    beta: float = 0.9
    masks: ClassVar[bool] = True  # weigh() goes by Replies.mask

    def init(self, population, dim):
        return {"mean": np.zeros(dim, np.float32)}

    def combine(self, state, view, cohort, replies):
        now, _ = Mean().combine({}, view, cohort, replies)
        mean = self.beta * state["mean"] + (1 - self.beta) * now
        return mean, {"mean": mean.astype(np.float32)}


method = fw.Method(fw.sample.Uniform(5), aggregator=Smoothed(beta=0.5), name="smoothed")

if __name__ == "__main__":
    # What it remembers is part of the saved state: an interrupted run goes on with it, bit for bit.
    experiment = fw.Experiment(method, data="digits", partition="dirichlet:0.1", rounds=30)
    for row in fw.compare([fw.methods.fedavg(5), method], experiment, seeds=3).summary:
        print(f"{row['method']:<10} accuracy {row['accuracy']:.3f} ± {row['accuracy_std']:.3f}")
