"""Fleets in this process: the digits dealt to six clients, links as bad as a test wants them, and a clock to turn."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from flwr.app import ArrayRecord

import fedweave as fw
from fedweave import flower
from fedweave.core.roles import System
from fedweave.core.settings import settings
from fedweave.engine.links import draw_arrivals
from fedweave.fleet.server.terms import VirtualClock
from fedweave.fleet.wire.answer import size
from fedweave.fleet.wire.tensors import packed
from fedweave.local.torch.flat_module import build_module
from fedweave.runs.factories import model_factory
from fedweave.runs.session import nominal_population

CLIENTS = 6
FORM = "dirichlet:0.5"


@cache
def digits():
    return fw.data.load("digits")


@cache
def share(client):
    return flower.dealt(digits(), FORM)(client, CLIENTS)


@cache
def app(model="auto"):
    return flower.client(model, lambda client, clients: share(client), evaluate=True)


def experiment(method=None, **changes):
    """Return a small experiment whose simulated clients have the very samples of the fleet's."""
    settings = {
        "data": digits(),
        "partition": fw.partition.parse(FORM, CLIENTS),
        "rounds": 4,
        "workers": 1,
        "steps": 3,
    }
    return fw.Experiment(method=method or fw.methods.fedavg(3), **(settings | changes))


def network():
    """Return the first model of the digits, as an app hands it to Flower."""
    _, model = model_factory(experiment(), digits())
    return ArrayRecord({n: packed(t.numpy()) for n, t in build_module(model, 0).state_dict().items()})


def flat(arrays):
    """Return all values of a model in one vector."""
    return np.concatenate([a.numpy().ravel() for a in arrays.values()])


def asked_in(message):
    """Return the round of a training message, 0 for any other."""
    return int(message.metadata.group_id) if message.metadata.message_type == "train" else 0


def fate_of(experiment):
    """Lose the answers that the simulated world loses, each in one of the three ways of a network."""
    samples = np.array([len(share(c).x) for c in range(CLIENTS)])

    def fate(client, message):
        r = asked_in(message)
        if not r:
            return ""
        base = replace(nominal_population(experiment, samples), model_bytes=samples)  # links do not depend on sizes
        world = experiment.system.population(base, r, experiment.seed)
        lucky = draw_arrivals(experiment.seed, r, np.array([client]), world)[0]
        return "" if lucky else ("raises", "dead", "silent")[(client + r) % 3]

    return fate


class SlowGrid(flower.LocalGrid):
    """A local fleet whose answers take their time on a virtual clock."""

    def __init__(self, clock, delay, *args, hello=0, **kwargs):
        super().__init__(*args, **kwargs)
        self._clock, self._delay, self._hello, self._due = clock, delay, hello, {}

    def push_messages(self, messages):
        messages = list(messages)
        names = super().push_messages(messages)
        for name, message in zip(names, messages, strict=True):
            client = self.nodes.index(message.metadata.dst_node_id)
            self._due[name] = self._clock.now() + (self._delay(client) if asked_in(message) else self._hello)
        return names

    def pull_messages(self, message_ids):
        return super().pull_messages([m for m in message_ids if self._due[m] <= self._clock.now()])


class LinkGrid(SlowGrid):
    """A local fleet whose answers take a second, and what their bytes take on each one's link."""

    def __init__(self, clock, rate, *args):
        super().__init__(clock, lambda client: 1.0, *args)
        self._rate = rate

    def push_messages(self, messages):
        messages = list(messages)
        names = super().push_messages(messages)
        for name, message in zip(names, messages, strict=True):
            client = self.nodes.index(message.metadata.dst_node_id)
            if asked_in(message):
                self._due[name] += 8 * size(self._answers[name].content) / self._rate(client)
        return names


@settings
class Replay(System):
    """A world in which what happened to a fleet happens again: who was there, what was known, and who was lost.

    A row of each for every round; samples of 0 were not known then, and count as the mean of the others.
    """

    there: tuple[tuple[bool, ...], ...]
    samples: tuple[tuple[int, ...], ...]
    lost: tuple[tuple[int, ...], ...]

    def population(self, base, round, seed):
        known, loss = np.array(self.samples[round - 1]), np.zeros(base.size)
        loss[list(self.lost[round - 1])] = 1
        known = np.where(known, known, int(known[known > 0].mean()))
        there = np.array(self.there[round - 1])
        return replace(base, weight=known / known.sum(), available=there, loss_rate=loss)


class Growing(flower.LocalGrid):
    """A fleet of which those are there, in each round, that a test says; it notes what the server knows of them."""

    def __init__(self, app, clients, there, **kwargs):
        super().__init__(app, clients, **kwargs)
        self._days, self.round, self.seen = there, 0, []
        self.come()

    def come(self):
        self.round += 1
        self.online = {node for node, c in zip(self.nodes, self._days[self.round - 1], strict=True) if c == "1"}

    def day_over(self, row):
        """A callback: the next day comes with the next round."""
        if self.round < len(self._days):
            self.come()


BAD = 2  # the client that does not behave


class Tampered(flower.LocalGrid):
    """A fleet in which client 2 does not behave."""

    def __init__(self, bad):
        super().__init__(app(), CLIENTS)
        self._bad = bad

    def _answered(self, message, node):
        if node != self.nodes[BAD]:
            return super()._answered(message, node)
        return self._bad(message, self._contexts[node])


def run(experiment, grid=None, terms=None, clock=None, **kwargs):
    """Run an experiment on a fleet in this process, in no time."""
    return flower.run(
        experiment,
        grid or flower.LocalGrid(app(), CLIENTS),
        terms or flower.Terms(),
        clock=clock or VirtualClock(),
        **kwargs,
    )


def reasons(folder):
    """Return the sentences that a run folder has, by round."""
    store = fw.store.run_folder.RunFolder.open(folder, write=False)
    found = [(round, str(failure)) for round, _, failure in store.failures()]
    store.close()
    return found


def interrupted(experiment, grid, folder, after, **kwargs):
    """Run until ``after`` rounds are done, as if the server was then stopped."""

    def watch(row):
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(fw.Interrupted):
        run(experiment, grid, out=folder, callbacks=watch, **kwargs)
