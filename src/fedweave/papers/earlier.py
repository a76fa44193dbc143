"""Items that are not yet studies: a function each, which returns a table and claims."""

from __future__ import annotations

from importlib import import_module

from fedweave.papers.common.claims import Outcome
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale

# Names and what they show; the code is imported when needed. A third part narrows an item down.
ITEMS = {
    "fedacs/fig4": "distance from the optimum: four local solvers and FedACS, even, static and dynamic world",
    "fedacs/fig6": "the accuracies of the runs of table1",
    "fedacs/fig7": "distance from the optimum: FedACS and six baselines, static and dynamic world",
    "fedacs/fig9": "the accuracies of the runs of table4",
    "fedacs/fig10": "the accuracies of the runs of table5",
    "fedacs/table1": "rounds and time to an accuracy, seven methods, dynamic world: all data sets that are there",
    "fedacs/table1/mnist": "the same, MNIST alone",
    "fedacs/table1/cifar10": "the same, CIFAR-10 alone",
    "fedacs/table1/cinic10": "the same, CINIC-10 alone",
    "fedacs/table4": "rounds and time to an accuracy, seven methods, static world",
    "fedacs/table4/mnist": "the same, MNIST alone",
    "fedacs/table4/cifar10": "the same, CIFAR-10 alone",
    "fedacs/table4/cinic10": "the same, CINIC-10 alone",
    "fedacs/table5": "rounds and time to an accuracy on CIFAR-10, dynamic world, α = 0.05, 0.2, 0.35",
    "fedacs/links": "beyond the paper: how close learned links and steps come to known ones",
    "fedacs/effort": "beyond the paper: effort counted in steps against measured by displacement, on MNIST",
    "fedacs/private": "beyond the paper: FedACS under central differential privacy, accuracy and epsilon",
    "latency/fig2": "optimal round latency and rounds over M/N, other magnitudes of latency and data factors",
    "latency/fig3": "optimal overall latency against uniform and norm selection; also log-normal latencies",
    "latency/table1": "seconds to a target loss by four selections, three data settings, two laws of latency",
    "latency/fig4": "loss and accuracy over time, i.i.d. data",
    "latency/fig5": "loss and accuracy over time, Dirichlet data",
    "latency/fig6": "loss and accuracy over time, half of the classes per client",
    "latency/alpha": "plans for the estimated α and for bolder ones: what they promise and what training gains",
    "delta/fig3": "toy example: how far the pairs that DELTA, IS and FedAvg pick are from the ideal gradient, exactly",
    "delta/fig2": "logistic regression on MNIST, 10 of 200 clients: accuracy after 100, 300 and 500 rounds",
    "delta/fig4": "synthetic regression, gradient noise 20, 30, 40: loss of DELTA, IS, FedAvg and Power-of-Choice",
    "delta/fig6": "lengths of the updates that IS and cluster-based IS pick, over the rounds",
    "delta/fig7": "cluster-based IS with and without its cluster of short updates",
    "delta/fig11": "synthetic regression with other parameters, A = 8 and b = 2",
    "delta/fig12": "synthetic regression with small noise",
    "delta/fig13": "synthetic regression, 10 of 200 clients",
    "delta/fig14": "accuracies on Split-Fashion-MNIST (theoretical samplers) and FEMNIST (practical)",
    "delta/fig14/fashion": "the same, Split-Fashion-MNIST alone",
    "delta/fig14/femnist": "the same, FEMNIST alone",
    "delta/fig15": "practical DELTA with more and fewer clients per round, FEMNIST",
    "delta/fig15/fashion": "the same on Fashion-MNIST",
    "delta/table2": "accuracy and rounds to a threshold: FedAvg, cluster-based IS, practical IS, practical DELTA",
    "delta/table2/fashion": "the same, Fashion-MNIST alone",
    "delta/table2/cifar10": "the same, CIFAR-10 alone",
    "delta/table2/femnist": "the same, FEMNIST alone",
    "delta/table2/celeba": "the same, CelebA alone",
    "delta/table3": "samplers with local momentum and with a proximal term, FEMNIST",
    "delta/table3/fashion": "the same on Fashion-MNIST",
    "delta/table4": "samplers with local momentum and with a proximal term, CIFAR-10",
    "delta/table5": "samplers with FedVARP, as the paper combines them and unbiased, Fashion-MNIST",
    "delta/table6": "samplers with server Adagrad and Adam, FEMNIST",
    "delta/table6/fashion": "the same on Fashion-MNIST",
    "delta/table7": "samplers with server Adagrad and Adam, CelebA",
    "delta/table8": "the runs of table2 on CIFAR-10 and CelebA against common thresholds",
    "delta/table9": "samplers with momentum on CIFAR-10, α = 0.1, 0.5, 1",
    "delta/variants": "beyond the paper: practical DELTA with one choice changed at a time, Fashion-MNIST",
    "latency/weights": "three estimators: does it matter that weights sum to one on average only?",
}


def has_runs(item: str) -> bool:
    """Return whether the outcome of an item has runs that can be drawn as a report."""
    paper, name, *_ = item.split("/")
    return paper == "feddd" and name not in ("fig2", "fig3")


def reproduce(item: str, scale: Scale = "smoke", on_progress: Progress | None = None) -> Outcome:
    """Reproduce a figure or table by its function."""
    paper, name, *part = item.split("/")
    return getattr(import_module(f"fedweave.papers.{paper}"), name)(scale, on_progress, *part)
