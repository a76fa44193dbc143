"""Who is there: which node of the network is which client."""

from __future__ import annotations

from collections import Counter
from logging import WARNING
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.fleet.server.mail import collect
from fedweave.fleet.server.terms import Clock, Terms
from fedweave.round.admission import wrong_number

MOST_CLIENTS, MOST_CLASSES = 10**7, 10**6
TRIES = 3  # how often a node is asked who it is before it is taken for something else
HELLO_SECONDS = 60.0  # to answer the first question: Flower starts a process for it
LATE = 30.0  # how long a question lives after it was waited for
# What Flower itself says in the name of a node that has not answered.
UNHEARD = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}


class Roster:
    """The clients by number, as their nodes introduce themselves; Flower's node ids are random and change.

    A node is asked once who it is, and waited for once: Flower lists a dead one for a minute, and rounds go on. One
    that comes back under another id takes its old place. With ``needs``, a sentence, a node that runs another app than
    ours is an error at once. With ``classes`` clients are also asked how well their samples cover so many classes, or
    0: as many as each one knows.
    """

    def __init__(self, grid: Grid, terms: Terms, clock: Clock, needs: str = "", classes: int | None = None):
        self._hello = {} if classes is None else {"fedweave": ConfigRecord({"classes": classes})}
        self._covered: dict[int, float] = {}
        self._needs, self._tries = needs, Counter[int]()
        self._grid, self._terms, self._clock = grid, terms, clock
        self._client: dict[int, int] = {}  # node id -> client; −1 for a node that is no client
        self._silent: dict[int, tuple[str, float]] = {}  # node id -> the question it has not answered, and its end
        self.node: dict[int, int] = {}  # client -> node id
        self.samples = np.zeros(0, np.int64)  # of each client; 0: has never been here
        self.news: list[str] = []  # what was odd about those who came, a sentence each

    @property
    def size(self) -> int:
        """Number of clients of the fleet."""
        return self.samples.size

    @property
    def covered(self) -> Array | None:
        """How well each client's data covers the classes (N,), the mean for those never seen; None: nobody said."""
        if not self._covered:
            return None
        mean = float(np.mean(list(self._covered.values())))
        return np.array([self._covered.get(client, mean) for client in range(self.size)])

    def gather(self) -> Array:
        """Return which clients are there (N,) bool, after waiting for as many as the terms want."""
        deadline = self._clock.now() + self._terms.start_seconds
        while True:
            there = self._look(deadline)
            wanted = self._wanted()
            if self.size and there.sum() >= wanted:
                return there
            if self._clock.now() >= deadline:
                raise RuntimeError(self._missing(there, wanted))
            self._clock.sleep(min(max(self._terms.poll_seconds, 0.5), self._terms.start_seconds))

    def _wanted(self) -> int:
        return self._terms.connected or (self.size if self._incomplete else self._terms.min_answers)

    @property
    def _incomplete(self) -> bool:
        """Whether somebody has never been here."""
        return not self.size or not self.samples.all()

    def _missing(self, there: Array, wanted: int) -> str:
        if not self.size:
            return f"No client has come within {self._terms.start_seconds:g} s. " + " ".join(self.news)
        absent = ", ".join(map(str, np.flatnonzero(~there)[:10]))
        return (
            f"{there.sum()} of {self.size} clients are there after {self._terms.start_seconds:g} s, {wanted} must be: "
            f"missing are {absent}. Terms(connected=…) says how many must be there, start_seconds how long to wait. "
            + " ".join(self.news)
        )

    def _look(self, deadline: float) -> Array:
        """Return who is there now, after asking those who came since."""
        nodes = list(self._grid.get_node_ids())
        self._hear_the_late(nodes)
        if new := [node for node in nodes if node not in self._client and node not in self._silent]:
            # Nobody waits for newcomers longer than for answers, but all wait for the fleet to come together.
            most = HELLO_SECONDS if self._incomplete else min(HELLO_SECONDS, self._terms.answer_seconds)
            self._greet(new, min(most, deadline - self._clock.now()))
        there = np.zeros(self.size, bool)
        there[[client for client, node in self.node.items() if node in set(nodes)]] = True
        return there

    def _greet(self, nodes: list[int], seconds: float) -> None:
        messages, end = self._questions(nodes, seconds + LATE), self._clock.now() + seconds + LATE
        waiting = dict(zip(nodes, messages, strict=True))
        for row, reply, _ in collect(self._grid, messages, seconds, len(nodes), self._terms, self._clock):
            if not _unheard(reply):
                del waiting[nodes[row]]
                self._hear(nodes[row], reply)
        self._silent |= {node: (message.metadata.message_id, end) for node, message in waiting.items()}

    def _hear_the_late(self, nodes: list[int]) -> None:
        """Hear who answers after all, and ask those again whose question has lost its life; nobody is waited for."""
        node_of, now = {name: node for node, (name, _) in self._silent.items() if name}, self._clock.now()
        for reply in self._grid.pull_messages(list(node_of)) if node_of else ():
            name = reply.metadata.reply_to_message_id
            node = node_of.pop(name, None)
            if node is None:  # it has answered twice
                continue
            if _unheard(reply):
                self._silent[node] = name, now
            else:
                del self._silent[node]
                self._hear(node, reply)
        self._silent = {node: asked for node, asked in self._silent.items() if node in nodes}
        if again := [node for node, (_, end) in self._silent.items() if end <= now]:
            names = self._grid.push_messages(self._questions(again, HELLO_SECONDS))
            self._silent |= {node: (name, now + HELLO_SECONDS) for node, name in zip(again, names, strict=True)}

    def _questions(self, nodes: list[int], life: float) -> list[Message]:
        return [
            Message(RecordDict({**self._hello}), node, MessageType.QUERY, group_id="hello", ttl=life) for node in nodes
        ]

    def _hear(self, node: int, reply: Message) -> None:
        """Take in who a node says it is; one that does not say it time and again is none of ours."""
        try:
            self._client[node] = self._introduced(node, reply)
        except BadInput as e:
            self._tries[node] += 1
            if self._tries[node] < TRIES:  # it may have been an accident
                return
            if self._needs:
                raise BadInput(f"{self._needs} A node of this fleet is none: {e}") from None
            self._client[node] = -1
            self._note(f"A node is no client: {e}")

    def _note(self, sentence: str) -> None:
        self.news.append(sentence)
        log(WARNING, "fedweave: %s", sentence)

    def _introduced(self, node: int, reply: Message) -> int:
        """Return the number of the client that introduces itself, once it is believed."""
        reported = reply.content.metric_records.get("hello") if reply.has_content() else None
        if reported is None:
            why = (reply.error.reason or "").strip().splitlines()[-1:] if reply.has_error() else ["another app"]
            raise BadInput(
                f"it did not say who it is, but {''.join(why)!r}. Its app must be a fedweave.flower.client(…)."
            )
        limits = {"clients": (1, MOST_CLIENTS), "client": (0, MOST_CLIENTS - 1), "num-examples": None}
        for name, ends in limits.items():
            if wrong := wrong_number(name, reported.get(name), *(ends or (1, self._terms.most_samples))):
                raise BadInput(f"client {reported.get('client')} {wrong}.")
        clients, client, samples = (int(cast(float, reported[name])) for name in limits)
        if client >= clients:
            raise BadInput(f"it says that it is client {client} of {clients}, which are numbered from 0.")
        if self.size and clients != self.size:
            raise BadInput(f"client {client} says that there are {clients} clients, others said {self.size}.")
        if "covered" in reported:
            if wrong := wrong_number("covered", reported["covered"], 0, MOST_CLASSES):
                raise BadInput(f"client {client} {wrong}.")
            self._covered[client] = float(cast(float, reported["covered"]))
        if not self.size:
            self.samples = np.zeros(clients, np.int64)
        if client in self.node:
            self._note(f"Client {client} has come back, or two nodes have partition-id={client}.")
        self.samples[client], self.node[client] = samples, node
        return client


def _unheard(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in UNHEARD
