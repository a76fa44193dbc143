"""Which node is which client, in an app that does not say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.serverapp import Grid

from fedweave.core.records import Array
from fedweave.fleet.server.seats import Seats
from fedweave.fleet.server.terms import Clock, Terms


class Places(Seats):
    """Clients numbered by their nodes, in the order of Flower's node ids when they were first seen.

    A fleet whose size was not stated grows: it begins with those who are there, and a node for which there is no seat
    gets a new one. A node that comes later takes first the seat that it held, then one where nobody has been, then that
    of a node that has gone: most likely it is that one, started again. With ``Terms.keys`` clients are numbered by
    their keys instead.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        clock: Clock,
        clients: int | None = None,
        min_available: int | None = None,
        min_nodes: int = 2,
    ):
        super().__init__(grid, terms, clock, clients, min_available)
        self._closed, self._min_nodes = False, min(min_nodes, self.stated or min_nodes)

    @property
    def growing(self) -> bool:
        """Whether a node for which there is no seat gets a new one."""
        return self.stated is None and not self._closed

    def gather(self) -> Array:
        """Return which clients are there (N,) bool, after waiting for as many as must be.

        Where nobody says how many, that is a fleet of stated size as a whole until all have been there once, and then
        ``min_nodes``: a node that leaves is missing from its rounds, and no more.
        """
        complete = self.stated is None or len(self.holder) == self.stated
        wanted = self.min_available or (self._min_nodes if complete else self.stated) or 1
        deadline = self._clock.now() + self._terms.start_seconds
        while len(nodes := self._owners()) < wanted:
            if self._clock.now() >= deadline:
                raise RuntimeError(
                    f"{len(nodes)} clients are there after {self._terms.start_seconds:g} s, {wanted} must be. "
                    "Terms(connected=…) says how many, start_seconds how long to wait."
                )
            self._clock.sleep(min(max(self._terms.poll_seconds, 0.5), self._terms.start_seconds))
        if not self.size:
            self._make_room(len(nodes))
        self._seat(nodes)
        return self._there(nodes)

    def _owners(self) -> dict[int, bytes]:
        """Return the nodes that may have a seat; without stated keys all that are listed."""
        nodes = self._listed()
        return {node: who for node, who in nodes.items() if self._keys is None or who in self._keys}

    def close(self, size: int, why: str) -> None:
        """Take nobody in beyond these seats, because the method cannot."""
        self.samples, self._closed = self.samples[:size], True
        for client in [client for client in self.node if client >= size]:
            del self.node[client], self.holder[client]
        self._note(f"the fleet stays as large as it is, {size} clients: {why}")

    def _make_room(self, size: int) -> None:
        self.samples = np.append(self.samples, np.zeros(size - self.size, np.int64))

    def _seat(self, nodes: Mapping[int, bytes]) -> None:
        known = set(self.node.values())
        new = {node: who for node, who in nodes.items() if node not in known}
        mine = {who: client for client, who in self.holder.items()}
        for node, who in sorted(new.items(), key=lambda item: item[1] not in mine):  # those who come back sit first
            client = self._place(who, mine.get(who), set(nodes.values()))
            if client is None:
                self._note(f"node {node} is not asked: the fleet of {self.size} clients is complete.", once=node)
            else:
                self._sit(client, node, who)

    def _place(self, who: bytes, mine: int | None, there: set[bytes]) -> int | None:
        """Return the seat for a node that comes; None: there is none."""
        if self._keys is not None:
            return self._keys.index(who) if who in self._keys else None
        if mine is not None and self.holder.get(mine) == who:
            return mine
        free = [c for c in range(self.size) if c not in self.holder]
        free += [c for c, holder in self.holder.items() if holder not in there]
        if not free and self.growing:
            self._make_room(self.size + 1)
            free = [self.size - 1]
        return free[0] if free else None
