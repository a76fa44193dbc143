"""A sampler of your own in one file: ask whoever was silent for longest. Run it: python examples/own_sampler.py"""

from __future__ import annotations

import sys
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

import fedweave as fw
from fedweave import Method
from fedweave.core.records import Cohort, Population, Replies, State, View
from fedweave.core.roles import Sampler
from fedweave.core.settings import settings


@settings
class LongestSilent(Sampler):
    """Ask the ``per_round`` clients that were not heard from for the longest time; ties are broken at random."""

    per_round: PositiveInt
    law_known: ClassVar[bool] = False  # a greedy choice: no E[count] to weigh by

    def init(self, population: Population) -> State:
        return {"heard": np.zeros(population.size)}  # round of the last answer

    def draw(self, state: State, view: View, rng: np.random.Generator) -> Cohort:
        there = np.flatnonzero(view.population.available)
        order = np.lexsort((rng.random(there.size), state["heard"][there]))
        ids = np.sort(there[order[: self.per_round]])
        return Cohort(ids=ids, count=np.ones(ids.size, int), expected=np.full(ids.size, np.nan))

    def learn(self, state: State, view: View, cohort: Cohort, replies: Replies) -> State:
        heard = state["heard"].copy()
        heard[cohort.ids[replies.received]] = view.round
        return {"heard": heard}


method = Method(LongestSilent(per_round=6), name="longest_silent")


def main(page: str) -> None:
    """Compare it with FedAvg over unreliable links."""
    experiment = fw.Experiment(
        method=method,
        data="digits",
        partition=fw.partition.Dirichlet(clients=30, alpha=0.1),
        system=fw.system.Dynamic(),
        rounds=40,
        target=0.85,
    )
    comparison = fw.compare([fw.methods.fedavg(6), method], experiment, seeds=3)
    for row in comparison.summary:
        print(f"{row['method']:<16} accuracy {row['accuracy']:.3f} ± {row['accuracy_std']:.3f}")
    print(f"report: {comparison.report(page)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "own_sampler.html")
