"""Items that are not yet studies: a function each, which returns a table and claims."""

from __future__ import annotations

from importlib import import_module

from fedweave.papers.common.claims import Outcome
from fedweave.papers.common.parallel import Progress
from fedweave.papers.common.scale import Scale

# Names and what they show; the code is imported when needed. A third part narrows an item down.
ITEMS = {
    "feddd/fig2": "accuracy of a class over its share of the data, one learner: all data sets that are there",
    "feddd/fig2/fashion_mnist": "the same, Fashion-MNIST alone",
    "feddd/fig3": "training loss over the width of the model, CIFAR-10",
    "feddd/fig3/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig4": "accuracy of FedAvg, FedDD, FedCS and Oort under one budget, IID: all data sets that are there",
    "feddd/fig5": "the same, non-IID-a: two to ten classes per client",
    "feddd/fig6": "the same, non-IID-b: three classes per client",
    "feddd/fig6/mnist": "the same, MNIST alone",
    "feddd/fig6/fashion_mnist": "the same, Fashion-MNIST alone",
    "feddd/fig7": "time to targets over FedAvg's, all data sets and splits",
    "feddd/fig7/mnist": "the same, MNIST alone",
    "feddd/fig7/fashion_mnist": "the same, Fashion-MNIST alone",
    "feddd/fig7/fashion_mnist/non-iid-b": "the same, three classes per client",
    "feddd/fig7/cifar10": "the same, CIFAR-10 alone",
    "feddd/fig9": "accuracy with sub-models of five widths (tables 3 and 6), CIFAR-10",
    "feddd/fig10": "time to targets with sub-models of five widths, CIFAR-10",
    "feddd/fig10/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig11": "which channels are sent: five choices, three splits, MNIST",
    "feddd/fig12": "the same on Fashion-MNIST",
    "feddd/fig13": "the same on CIFAR-10",
    "feddd/fig14": "the same on CIFAR-10 with the whole model sent every round, as on the paper's testbed",
    "feddd/fig15": "the same on CIFAR-10 with sub-models",
    "feddd/fig15/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig16": "budgets of 20 to 80 %: all data sets that are there",
    "feddd/fig16/fashion_mnist": "the same, Fashion-MNIST alone",
    "feddd/fig17": "budgets with sub-models, CIFAR-10",
    "feddd/fig17/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig18": "the penalty δ with sub-models, CIFAR-10",
    "feddd/fig18/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig19": "rounds between broadcasts of the whole model, CIFAR-10",
    "feddd/fig19/fashion_mnist": "the same on Fashion-MNIST",
    "feddd/fig20": "rounds between broadcasts with sub-models, CIFAR-10",
    "feddd/fig20/fashion_mnist": "the same on Fashion-MNIST, shares of the widths",
    "feddd/fig21": "accuracy class by class at a budget of 20 %, three classes are rare",
    "feddd/fig21/mnist": "the same, MNIST alone",
    "feddd/fig21/fashion_mnist": "the same, Fashion-MNIST alone",
    "feddd/fig21/cifar10": "the same, CIFAR-10 alone",
}


def has_runs(item: str) -> bool:
    """Return whether the outcome of an item has runs that can be drawn as a report."""
    paper, name, *_ = item.split("/")
    return paper == "feddd" and name not in ("fig2", "fig3")


def reproduce(item: str, scale: Scale = "smoke", on_progress: Progress | None = None) -> Outcome:
    """Reproduce a figure or table by its function."""
    paper, name, *part = item.split("/")
    return getattr(import_module(f"fedweave.papers.{paper}"), name)(scale, on_progress, *part)
