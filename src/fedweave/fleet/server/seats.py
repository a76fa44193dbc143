"""Seats: which node holds the place of which client, known by its key or else by its id."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from logging import WARNING
from pathlib import Path

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.core.records import SERVER, Array, Failure, State
from fedweave.core.settings import BadInput
from fedweave.fleet.server.terms import Clock, Terms

WHO = 32  # bytes that say who a node is
MOST_NEWS = 20  # sentences that are kept: anyone can make some


class Seats:
    """The clients by number, each with the node that holds its seat.

    A node is its public key, where the SuperLink knows one, else its id. A seat stays with its node: another one gets
    it only when the holder is no longer there, as when a node without a key of its own was started again; with
    ``Terms.keys`` nobody but the owner of its key ever does.
    """

    def __init__(self, grid: Grid, terms: Terms, clock: Clock, clients: int | None, min_available: int | None):
        self._grid, self._terms, self._clock = grid, terms, clock
        self._keys = keys_in(Path(terms.keys)) if terms.keys else None
        self.stated = clients or terms.clients or (len(self._keys) if self._keys else None)  # the size of the fleet
        if self._keys and self.stated != len(self._keys):
            raise BadInput(f"There are {self.stated} clients, but {len(self._keys)} keys of nodes in {terms.keys!r}.")
        self.min_available = min_available or terms.connected  # how many must be there before a round begins
        self.node: dict[int, int] = {}  # client -> node id
        self.holder: dict[int, bytes] = {}  # client -> who that is
        self.samples = np.zeros(self.stated or 0, np.int64)  # of each client; 0: has never been here
        self.fixed = False  # whether samples stay as they were when a client got its seat
        self.news: list[str] = []  # what was odd about those who came, a sentence each
        self._told = set[object]()

    @property
    def size(self) -> int:
        """Number of clients of the fleet."""
        return self.samples.size

    def called(self, client: int) -> str:
        """Return a client's name for the log, with its node."""
        return f"client {client} (node {self.node.get(client, 'unknown')})"

    def told(self, failure: Failure) -> str:
        """Return a failure as the log has it, with the node that it is booked to."""
        return str(failure) if failure.client == SERVER else f"{self.called(failure.client)}: {failure.why}"

    def _listed(self) -> Mapping[int, bytes]:
        """Return who is there by node ids, in the order of these."""
        nodes = sorted(self._grid.get_nodes(), key=lambda node: node.node_id)
        return {n.node_id: hashlib.sha256(n.public_key or b"node %d" % n.node_id).digest() for n in nodes}

    def _there(self, nodes: Collection[int]) -> Array:
        there = np.zeros(self.size, bool)
        there[[client for client, node in self.node.items() if node in nodes]] = True
        return there

    def _taken(self, client: int, who: bytes, nodes: Mapping[int, bytes]) -> str:
        """Return why this node cannot have this seat while these are there; "" if it can."""
        if self._keys is not None:
            return "" if self._keys[client] == who else f"its key is not node{client}.pub"
        holder = self.holder.get(client, who)
        if holder != who and (other := next((node for node, found in nodes.items() if found == holder), None)):
            return f"the seat is that of node {other}, which is there"
        mine = next((c for c, found in self.holder.items() if found == who and c != client), None)
        return "" if mine is None else f"it has the seat of client {mine}"

    def _sit(self, client: int, node: int, who: bytes) -> None:
        if self.holder.get(client, who) != who:
            self._note(f"node {node} has the seat of client {client} now, whose last node is gone.")
        self.node[client], self.holder[client] = node, who

    def _note(self, sentence: str, once: object = None) -> None:
        """Say what was odd, but the same thing about the same node only once."""
        if once is None or once not in self._told:
            self._told.add(once)
            self.news = [*self.news[-MOST_NEWS:], sentence]
            log(WARNING, "fedweave: %s", sentence)

    def renew(self, clients: Array, samples: Array) -> None:
        """Take in how many samples clients have now: data may grow or shrink during a run."""
        if not self.fixed:
            self.samples[clients] = samples.astype(np.int64)

    def believed(self) -> Array:
        """Return the samples (N,) that count: of those never heard from the mean, of nobody far more than the median.

        One client that claims millions would else have all the weight.
        """
        counted = capped(self.samples, self._terms.max_samples_ratio)
        for client in np.flatnonzero(counted < self.samples).tolist():
            claim = f"claims {self.samples[client]} samples, {counted[client]} count: Terms(max_samples_ratio=…)"
            self._note(f"{self.called(client)} {claim}.", once=(client, "samples"))
        known = counted > 0
        return np.where(known, counted, max(int(counted[known].mean()), 1) if known.any() else 1)

    def fleet(self) -> State:
        """Return what a server that goes on must know: who holds each seat, and how many samples each client has."""
        holder = np.zeros((self.size, WHO), np.uint8)
        for client, who in self.holder.items():
            holder[client] = np.frombuffer(who, np.uint8)
        return {"samples": self.samples.copy(), "holder": holder}

    def recall(self, fleet: State) -> None:
        """Go on with what an earlier server knew."""
        samples, holder = fleet["samples"], fleet.get("holder")
        if self.stated not in (None, samples.size):
            raise BadInput(f"There are {self.stated} clients, but this run has {samples.size}.")
        self.samples = samples.astype(np.int64)
        if holder is not None:
            self.holder = {c: row.tobytes() for c, row in enumerate(holder) if row.any()}


def capped(samples: Array, ratio: float | None) -> Array:
    """Return the numbers, none of them more than ``ratio`` times the median of those above zero, of two the smaller."""
    known = samples[samples > 0]
    if ratio is None or known.size < 2:
        return samples
    most = ratio * float(np.median(known) if known.size > 2 else known.min())
    return np.minimum(samples, max(int(most), 1) if samples.dtype.kind in "iu" else most).astype(samples.dtype)


def keys_in(folder: Path) -> list[bytes]:
    """Return whose seats they are by the public keys node0.pub, node1.pub, … that ``fedweave flower keys`` writes."""
    found = list[bytes]()
    while (path := folder / f"node{len(found)}.pub").is_file():
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm):
            raise BadInput(f"{path} is not a public key, as `fedweave flower keys` writes them.") from None
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # as SuperNodes send it
        found.append(hashlib.sha256(pem).digest())
    if not found:
        raise BadInput(f"Terms(keys={str(folder)!r}): there is no node0.pub in that folder.")
    return found
