"""The papers' figures and tables, made again with one command each: ``fedweave reproduce ITEM``."""

from __future__ import annotations

from importlib import import_module

from fedweave.papers.outcome import Outcome, Scale
from fedweave.settings import BadInput, choice

# Names and what they show; the work itself is imported when it is asked for.
ITEMS = {
    "fedacs/fig4": "distance from the optimum: four local solvers and FedACS, even, static and dynamic world",
    "fedacs/fig7": "distance from the optimum: FedACS and six baselines, static and dynamic world",
    "latency/fig2": "optimal round latency and rounds over M/N, other magnitudes of latency and data factors",
    "latency/fig3": "optimal overall latency against uniform and norm selection; also log-normal latencies",
    "latency/table1": "seconds to a target loss by four selections, three data settings, two laws of latency",
    "latency/fig4": "loss and accuracy over time, i.i.d. data",
    "latency/fig5": "loss and accuracy over time, Dirichlet data",
    "latency/fig6": "loss and accuracy over time, half of the classes per client",
    "latency/alpha": "plans for the estimated α and for bolder ones: what they promise and what training gains",
    "latency/weights": "three estimators: does it matter that weights sum to one on average only?",
}


def reproduce(item: str, scale: Scale = "smoke") -> Outcome:
    """Make a figure or table again; smoke takes seconds, laptop minutes on two cores, paper is as published."""
    if item not in ITEMS:
        raise BadInput(choice("item", item, ITEMS))
    paper, _, name = item.partition("/")
    return getattr(import_module(f"fedweave.papers.{paper}"), name)(scale)
