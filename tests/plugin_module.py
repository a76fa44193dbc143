"""A user's module, as tests write it into a folder: a part of every kind that can be named as module:name."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt
from torch import nn
from torch.nn import functional as F

import fedweave as fw
from fedweave.core.records import Cohort
from fedweave.core.roles import Sampler, Solver, System
from fedweave.data.deal import Shares
from fedweave.data.partition import Partition


@fw.settings
class LongestSilent(Sampler):
    """Ask the clients that were not heard from for the longest time."""

    per_round: PositiveInt
    law_known: ClassVar[bool] = False

    def init(self, population):
        return {"heard": np.zeros(population.size)}

    def draw(self, state, view, rng):
        order = np.lexsort((rng.random(view.population.size), state["heard"]))
        ids = np.sort(order[: self.per_round])
        return Cohort(ids=ids, count=np.ones(ids.size, int), expected=np.full(ids.size, np.nan))

    def learn(self, state, view, cohort, replies):
        heard = state["heard"].copy()
        heard[cohort.ids[replies.received]] = view.round
        return {"heard": heard}


@fw.settings
class Clips(Solver):
    """SGD with bounded gradients."""

    most: float = 1.0

    def begin(self, y):
        return ()

    def direction(self, state, g, y, x, lr, t):
        return g.clip(-self.most, self.most), state


@fw.settings
class Halves(Partition):
    """Neighbouring samples."""

    clients: PositiveInt

    def split(self, data, rng):
        test = np.array_split(np.arange(len(data.test_y)), self.clients)
        return Shares(np.array_split(np.arange(len(data)), self.clients), test)


@fw.settings
class Slow(System):
    """Every client takes this many seconds."""

    seconds: float = 7.0

    def population(self, base, round, seed):
        return replace(base, latency=np.full(base.size, self.seconds))


def quiet(per_round):
    """Return a method with a sampler of its own."""
    return fw.Method(LongestSilent(per_round), solver=Clips(0.5))


everyone = fw.Method(fw.sample.Everyone(), name="all_of_them")


def net():
    """Return a model with dropout, which trains one by one."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def squares(output, batch):
    """Return the squared distance to the one-hot label, for each sample."""
    return (output - F.one_hot(batch.y, 10)).square().sum(1)


def top_three(output, batch):
    """Return whether the label is among the three most likely ones."""
    return (output.topk(3).indices == batch.y[:, None]).any(1).double()


task = fw.Task(loss=squares, metrics={"top_three": top_three}, primary="top_three")


def load():
    """Return a few hand-written digits."""
    return fw.data.load("digits").take(np.arange(300))


number = 3


def fails():
    """Raise an error."""
    raise KeyError("no such thing")
