"""The papers' figures and tables, made again with one command each: ``fedweave reproduce ITEM``."""

from __future__ import annotations

from importlib import import_module

from fedweave.papers.outcome import Outcome, Scale
from fedweave.settings import BadInput, choice

# Names and what they show; the work itself is imported when it is asked for.
ITEMS = {
    "fedacs/fig4": "distance from the optimum: four local solvers and FedACS, even, static and dynamic world",
    "fedacs/fig7": "distance from the optimum: FedACS and six baselines, static and dynamic world",
}


def reproduce(item: str, scale: Scale = "smoke") -> Outcome:
    """Make a figure or table again; smoke takes seconds, laptop minutes on two cores, paper is as published."""
    if item not in ITEMS:
        raise BadInput(choice("item", item, ITEMS))
    paper, _, name = item.partition("/")
    return getattr(import_module(f"fedweave.papers.{paper}"), name)(scale)
