"""Who is there: which node of the network is which client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple, cast

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedweave.core.records import Array, State
from fedweave.core.settings import BadInput, brief
from fedweave.fleet.server.around import give_up
from fedweave.fleet.server.mail import collect
from fedweave.fleet.server.seats import Seats
from fedweave.fleet.server.terms import Clock, Terms
from fedweave.round.admission import wrong_number

MOST_CLIENTS, MOST_CLASSES = 10**7, 10**6
MOST_CLAIMED = 10**5  # clients of a fleet whose size only its nodes tell; a larger one must be stated
AGREED = 2  # nodes that must say the same size where it is not stated: one alone could shut the others out
TRIES = 3  # how often a node is asked who it is before it is taken for something else
HELLO_SECONDS = 60.0  # to answer the first question: Flower starts a process for it
STRANGERS_SECONDS = 30.0  # how long a fleet in which all run another app is given for others to come
LATE = 30.0  # how long a question lives after it was waited for
# What Flower itself says in the name of a node that has not answered.
UNHEARD = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}


class Claim(NamedTuple):
    """Who a node says it is."""

    client: int
    clients: int
    samples: int
    covered: float | None  # how well its data covers the classes, where it was asked


class Roster(Seats):
    """The clients by number, as their nodes introduce themselves; Flower's node ids are random and may change.

    A node is asked once who it is, and waited for once: Flower lists a dead one for a minute, and rounds go on. It gets
    the seat of its ``partition-id`` if nobody else holds it. The fleet has as many seats as was stated, or as most
    nodes say, at least two of them, when the first round begins. With ``needs``, a sentence, it is an error if nodes
    came and none of them runs our app; where as many came as must, and all have answered, others have half a minute
    more. A node that was away is asked again, and not waited for: it may have been mended, or be another client now.
    With ``classes`` clients are also asked how well their samples cover so many classes, or 0: as many as each one
    knows.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        clock: Clock,
        needs: str = "",
        classes: int | None = None,
        clients: int | None = None,
        min_available: int | None = None,
    ):
        super().__init__(grid, terms, clock, clients, min_available)
        self._hello = {} if classes is None else {"fedweave": ConfigRecord({"classes": classes})}
        self._classes = classes or MOST_CLASSES
        self._covered: dict[int, float] = {}
        self._agree = 0  # nodes that say the size that most say
        self._needs, self._tries = needs, Counter[int]()
        self._stranger = ""  # what was wrong with the last one that is no client
        self._claims: dict[int, Claim | None] = {}  # node id -> what it says; None for a node that is no client
        self._away: set[int] = set()  # nodes that were asked, and have gone since
        self._silent: dict[int, tuple[str, float]] = {}  # node id -> the question it has not answered, and its end

    @property
    def covered(self) -> Array | None:
        """How well each client's data covers the classes (N,), the mean for those never seen; None: nobody said."""
        if not self._covered:
            return None
        mean = float(np.mean(list(self._covered.values())))
        return np.array([self._covered.get(client, mean) for client in range(self.size)])

    def called(self, client: int) -> str:
        return f"client {client} (node {self.node.get(client, 'unknown')}, partition-id={client})"

    def gather(self) -> Array:
        """Return which clients are there (N,) bool, after waiting for as many as the terms want."""
        deadline, alone_since = self._clock.now() + self._terms.start_seconds, None
        while True:
            there, now = self._look(deadline), self._clock.now()
            wanted = self._wanted()
            if self.size and self._agreed and there.sum() >= wanted:
                self.stated = self.size  # from now on nobody can change it
                return there
            if not self._strangers_only:
                alone_since = None
            elif alone_since is None:
                alone_since = now
            given_up = deadline if alone_since is None else min(deadline, alone_since + STRANGERS_SECONDS)
            if now >= given_up:
                if self._needs and self._stranger and not self.holder:
                    raise BadInput(f"{self._needs} A node of this fleet is none: {self._stranger}")
                raise RuntimeError(self._missing(there, wanted))
            self._clock.sleep(min(max(self._terms.poll_seconds, 0.5), self._terms.start_seconds))

    @property
    def _strangers_only(self) -> bool:
        """Whether as many nodes as must come have answered, all that are there, and run another app than is needed.

        Never with stated keys: strangers do not have those, so that they say nothing of the nodes that do.
        """
        if not self._needs or self._keys is not None or self.holder or self._silent:
            return False
        strangers = list(self._claims.values()).count(None)
        return strangers >= max(AGREED, self.min_available or self.stated or 0)

    @property
    def _agreed(self) -> bool:
        return self.stated is not None or self._agree >= AGREED

    def _wanted(self) -> int:
        return self.min_available or (self.size if self._incomplete else self._terms.min_answers)

    @property
    def _incomplete(self) -> bool:
        """Whether somebody has never been here."""
        return not self.size or not self.samples.all()

    def _missing(self, there: Array, wanted: int) -> str:
        if not self.size:
            return f"No client has come within {self._terms.start_seconds:g} s. " + " ".join(self.news)
        if not self._agreed:
            return (
                f"Only one node says that there are {self.size} clients (num-partitions), and no other agrees after "
                f"{self._terms.start_seconds:g} s: Terms(clients=…) states how many there are. " + " ".join(self.news)
            )
        absent = ", ".join(map(str, np.flatnonzero(~there)[:10]))
        return (
            f"{there.sum()} of {self.size} clients are there after {self._terms.start_seconds:g} s, {wanted} must be: "
            f"missing are {absent}. Terms(connected=…) says how many must be there, start_seconds how long to wait. "
            + " ".join(self.news)
        )

    def _look(self, deadline: float) -> Array:
        """Return who is there now, after asking those who came since."""
        nodes = self._listed()
        self._forget_the_gone(nodes)
        self._hear_the_late(nodes)
        if new := [node for node in nodes if node not in self._claims and node not in self._silent]:
            # Nobody waits for newcomers longer than for answers, but all wait for the fleet to come together.
            most = HELLO_SECONDS if self._incomplete else min(HELLO_SECONDS, self._terms.answer_seconds)
            self._greet(new, min(most, deadline - self._clock.now()))
        self._seat(nodes)
        return self._there(nodes)

    def _forget_the_gone(self, nodes: Collection[int]) -> None:
        """Forget what nodes said that are not there any more, and have those asked again that are back."""
        for node in [node for node in (*self._claims, *self._tries) if node not in nodes]:
            self._claims.pop(node, None)
            self._tries.pop(node, None)
            self._away.add(node)
        back = {node for node in self._away if node in nodes}
        self._away -= back
        self._silent |= dict.fromkeys(back, ("", self._clock.now()))

    def _seat(self, nodes: Mapping[int, bytes]) -> None:
        """Give those who are there the seats that they claim, if these are theirs; others try again next time."""
        claims = {node: claim for node, claim in self._claims.items() if claim and node in nodes}
        if self.stated is None and claims:
            said = Counter(claim.clients for claim in claims.values())
            size = min(said, key=lambda size: (-said[size], size))
            self._agree = said[size]
            if size != self.size:
                self.samples, self.node, self.holder = np.zeros(size, np.int64), {}, {}
        for client in [c for c, node in self.node.items() if node in claims and claims[node].client != c]:
            del self.node[client], self.holder[client]  # its node has come back as another one
        for node, claim in claims.items():
            if self.node.get(claim.client) == node:
                continue
            if wrong := self._misplaced(claim) or self._taken(claim.client, nodes[node], nodes):
                says = f"node {node} says that it is client {claim.client} (partition-id={claim.client})"
                self._note(f"{says} and is not asked: {wrong}.", once=(node, wrong))
                continue
            self._sit(claim.client, node, nodes[node])
            if not (self.fixed and self.samples[claim.client]):
                self.samples[claim.client] = claim.samples
            self._covered |= {} if claim.covered is None else {claim.client: claim.covered}

    def _misplaced(self, claim: Claim) -> str:
        if claim.clients == self.size:
            return ""
        others = "this fleet has" if self.stated else "most nodes say"
        return f"it says that there are {claim.clients} clients (num-partitions), {others} {self.size}"

    def _greet(self, nodes: list[int], seconds: float) -> None:
        messages, end = self._questions(nodes, seconds + LATE), self._clock.now() + seconds + LATE
        waiting = dict(zip(nodes, messages, strict=True))
        for row, reply, _ in collect(self._grid, messages, seconds, len(nodes), self._terms, self._clock):
            if not _unheard(reply):
                del waiting[nodes[row]]
                self._hear(nodes[row], reply)
        self._silent |= {node: (message.metadata.message_id, end) for node, message in waiting.items()}

    def _hear_the_late(self, nodes: Collection[int]) -> None:
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
        over = {node: name for node, (name, end) in self._silent.items() if node not in nodes or end <= now}
        give_up(self._grid, over.values())
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
            self._claims[node] = self._introduced(reply)
        except BadInput as e:
            self._tries[node] += 1
            if self._tries[node] < TRIES:  # it may have been an accident
                return
            self._claims[node], self._stranger = None, str(e)
            self._note(f"Node {node} is no client: {e}", once=(node, str(e)))

    def _introduced(self, reply: Message) -> Claim:
        """Return what a node says of itself, once it makes sense."""
        reported = reply.content.metric_records.get("hello") if reply.has_content() else None
        if reported is None:
            why = (reply.error.reason or "").strip().splitlines()[-1:] if reply.has_error() else ["another app"]
            raise BadInput(
                f"it did not say who it is, but {brief(''.join(why), 300)!r}. Its app must be a "
                "fedweave.flower.client(…)."
            )
        limits = {
            "clients": (1, MOST_CLIENTS if self.stated else MOST_CLAIMED),
            "client": (0, MOST_CLIENTS - 1),
            "num-examples": (1, self._terms.most_samples),
        }
        for name, ends in limits.items():
            if wrong := wrong_number(name, reported.get(name), *ends):
                way = "; Terms(clients=…) states the size of a larger fleet" if name == "clients" else ""
                raise BadInput(f"client {brief(reported.get('client'))} {wrong}{way}.")
        clients, client, samples = (int(cast(float, reported[name])) for name in limits)
        if client >= clients:
            raise BadInput(f"it says that it is client {client} of {clients}, which are numbered from 0.")
        covered = reported.get("covered")
        if covered is not None and (wrong := wrong_number("covered", covered, 0, self._classes)):
            raise BadInput(f"client {client} {wrong}.")
        return Claim(client, clients, samples, None if covered is None else float(cast(float, covered)))

    def fleet(self) -> State:
        covered = [self._covered.get(client, np.nan) for client in range(self.size)]
        return {**super().fleet(), "covered": np.array(covered)}

    def recall(self, fleet: State) -> None:
        super().recall(fleet)
        self.stated = self.size
        covered = fleet.get("covered", np.zeros(0))
        self._covered = {client: float(covered[client]) for client in np.flatnonzero(np.isfinite(covered)).tolist()}


def _unheard(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in UNHEARD
