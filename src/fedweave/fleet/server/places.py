"""Which node is which client, in an app that does not say."""

from __future__ import annotations

from logging import WARNING

import numpy as np
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.core.records import Array
from fedweave.fleet.server.terms import Clock, Terms


class Places:
    """Clients numbered by their nodes, in the order of Flower's node ids when they were first seen.

    The fleet is as large as it was said to be, or as it is when the first round begins. A node that comes later takes a
    place where nobody has been, or that of a node that has gone: most likely it is that one, started again.
    """

    def __init__(self, grid: Grid, terms: Terms, clock: Clock, clients: int | None):
        self._grid, self._terms, self._clock = grid, terms, clock
        self._clients = clients
        self.node: dict[int, int] = {}
        self.samples = np.zeros(0, np.int64)

    @property
    def size(self) -> int:
        """Number of clients of the fleet."""
        return self.samples.size

    def gather(self) -> Array:
        """Return which clients are there (N,) bool, after waiting for as many as the terms want."""
        wanted = self._terms.connected or self._clients or 2
        deadline = self._clock.now() + self._terms.start_seconds
        while len(nodes := sorted(self._grid.get_node_ids())) < wanted:
            if self._clock.now() >= deadline:
                raise RuntimeError(
                    f"{len(nodes)} clients are there after {self._terms.start_seconds:g} s, {wanted} must be. "
                    "Terms(connected=…) says how many, start_seconds how long to wait."
                )
            self._clock.sleep(min(max(self._terms.poll_seconds, 0.5), self._terms.start_seconds))
        if not self.size:
            self.samples = np.zeros(self._clients or len(nodes), np.int64)
        self._seat(nodes)
        there = np.zeros(self.size, bool)
        there[[client for client, node in self.node.items() if node in set(nodes)]] = True
        return there

    def _seat(self, nodes: list[int]) -> None:
        known = set(self.node.values())
        free = [c for c in range(self.size) if c not in self.node]
        free += [c for c, node in self.node.items() if node not in nodes]
        for node in nodes:
            if node in known:
                continue
            if not free:
                log(WARNING, "fedweave: a node came to a fleet of %s that is complete; it is not asked", self.size)
                return
            self.node[free.pop(0)] = node
