"""The simulator's method over Flower's messages, in one process. Run: python examples/flower_local.py"""

import fedweave as fw
from fedweave import flower

PARTITION = fw.partition.Dirichlet(clients=10, alpha=0.5)
experiment = fw.Experiment(fw.methods.fedacs(4), data="digits", partition=PARTITION, rounds=10, workers=1)
client_app = flower.client("auto", flower.dealt("digits", PARTITION))  # on a real fleet: your model, your data

if __name__ == "__main__":
    simulated = fw.run(experiment)
    grid = flower.LocalGrid(client_app, clients=10)  # a network without sockets: messages are encoded, sealed, checked
    over_flower = flower.run(experiment, grid)
    for name, result in (("simulator", simulated), ("over Flower", over_flower)):
        print(f"{name:<12} accuracy {result.summary['accuracy']:.3f}  {result.summary['digest'][:16]}")
    assert simulated.summary["digest"] == over_flower.summary["digest"], "the same bits"
