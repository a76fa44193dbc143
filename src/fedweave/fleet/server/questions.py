"""One round's questions and answers, row by row: shared by the engine and by the strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from sys import getrefcount

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from fedweave.core.records import Array, Carried, Cohort, Failure, Failures, Population, Replies, ServerState
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.fleet.client import digest
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.answer import Answer, read_answer, size
from fedweave.fleet.wire.seal import check_seal
from fedweave.fleet.wire.tensors import ANYONE, Tensors, TrainRequest, Unfit, ask, client_half
from fedweave.round.admission import admit
from fedweave.round.memories import shares, with_change
from fedweave.tables.rows import Rows

MOST_TRACE = 10_000  # characters of a client's traceback that are kept
GONE = 5  # Flower's code for a node that is unavailable
LIFE = 10.0  # seconds beyond the deadline after which an unread question is thrown away


def as_known(state: ServerState) -> ServerState:
    """Return a first state as the server of a real fleet can know it.

    Of what clients keep of their own (FedDD) it knows two numbers: after which round, and how many entries they sent.
    """
    if "own" not in state.clients:
        return state
    n, _ = state.clients["own"].shape
    return state._replace(clients={**state.clients, "own": Rows.zeros(n, 2, "float64")})


class Question:
    """What a round asks of its cohort, and the memories and parts of their own that the clients begin with."""

    def __init__(self, round: int, x: Array, cohort: Cohort, population: Population, lr: float, has: Carried):
        self.round, self.x, self.cohort, self.population, self.lr, self.has = round, x, cohort, population, lr, has
        self.memory = None if has.memory is None else has.memory[cohort.ids]
        own = np.zeros((cohort.ids.size, 2)) if has.own is None else has.own[cohort.ids]
        since, sent = own.astype(np.int64).T
        self.since = np.where(sent < x.size, since, 0)  # (k,) who sent everything has nothing of its own
        self.fetched = np.where(since > 0, sent, x.size)  # (k,) entries of the model that are new to each


class Asker:
    """Writes a round's messages and makes replies of what comes back.

    Clients keep their memories themselves. The server has a copy, which follows from their updates: it names the one
    that holds, and sends it to a client that is not known to have it, such as one of a run that was continued.
    With ``strangers`` (batch size, epochs) the clients have not introduced themselves: none is called by its number,
    and each one counts its steps itself.
    """

    def __init__(
        self,
        tensors: Tensors,
        solver: Solver,
        seed: int,
        terms: Terms,
        strangers: tuple[int, float] | None = None,
        upload: Upload | None = None,
    ):
        if upload is not None and upload.partial and solver.memory_kind:
            raise BadInput(
                f"Clients that keep {solver.memory_kind} must send whole updates on a real fleet, by which the server "
                f"follows what they keep; {type(upload).__name__} leaves parts out."
            )
        self._strangers, self._half = strangers, client_half(solver, upload, tensors.layout)
        self.tensors, self._solver, self._seed, self._terms = tensors, solver, seed, terms
        self._room: Array | None = None
        self._has: dict[int, set[str]] = {}  # client -> the memories that it keeps, by their digests

    def messages(
        self, q: Question, nodes: Mapping[int, int], model: ArrayRecord, seconds: float, config: ConfigRecord | None
    ) -> list[Message]:
        """Return a message to each client of the cohort; ``nodes`` says where they are."""
        share, half, life = shares(q.cohort.ids, q.population), self._half, seconds + LIFE
        common = {} if q.has.sent is None else {"sent": self.tensors.record(q.has.sent)}
        messages = []
        for row, client in enumerate(q.cohort.ids.tolist()):
            name = "" if q.memory is None else digest(q.memory[row])
            extras = {**common}
            if q.memory is not None and name and name not in self._has.get(client, ()):
                extras["memory"] = self.tensors.record(q.memory[row])
            number, epochs = client, 0.0
            work = int(q.population.steps[client]), int(q.population.batch_size[client])
            if self._strangers:
                number, epochs, work = ANYONE, self._strangers[1], (0, self._strangers[0])
            dropout = None if q.has.dropout is None else float(q.has.dropout[row])
            asked = half, name, epochs, q.has.measure, dropout, int(q.since[row])
            request = TrainRequest(q.round, number, self._seed, *work, q.lr, float(share[row]), *asked)
            content = ask(request, model, extras, config)  # one record for all, so that Flower sends its arrays once
            messages.append(Message(content, nodes[client], MessageType.TRAIN, group_id=str(q.round), ttl=life))
        return messages

    def box(self, q: Question) -> Box:
        """Return an empty box for the answers."""
        steps = q.population.steps[q.cohort.ids]
        sent = None if q.has.dropout is None else np.zeros((q.cohort.ids.size, q.x.size), bool)
        room, measured = self._rows(q), q.has.measure and not self._strangers
        passes = self._strangers[1] if self._strangers else None
        about = self.tensors, q.x, steps, self._terms.most_samples, room, q.round, passes, measured, sent
        return Box(q.cohort.ids, *about)

    def _rows(self, q: Question) -> Array:
        """Return room for the updates: last round's, if nobody refers to it any more. Fresh memory is slow."""
        shape, old = (q.cohort.ids.size, q.x.size), self._room
        if old is None or old.shape != shape or old.dtype != q.x.dtype or getrefcount(old) > 3:  # self, old, argument
            self._room = np.empty(shape, q.x.dtype)
        assert self._room is not None
        return self._room

    def replies(self, q: Question, box: Box, look: bool = True) -> Replies:
        """Return what was heard, and what was wrong with the rest.

        With ``look`` updates that are not finite are refused now; the round will look again, which takes its time.
        """
        layout, ids = self.tensors.layout, q.cohort.ids
        heard = box.replies()._replace(variance=box.variance if q.has.measure else None)
        replies = with_change(heard, self._solver, layout.parameters, q.has, ids, q.population, q.lr)
        replies, refused = admit(replies, q.cohort, layout) if look else (replies, replies.failures.refused)
        self._keep_in_mind(q, replies)
        replies = replies if box.sent is None else _partial(replies, box.sent, q.round)
        few, least = int(replies.received.sum()), min(self._terms.min_answers, ids.size)
        abandoned = f"{few} of {ids.size} clients answered, {least} must" if few < least else ""
        return replies._replace(failures=Failures(tuple(refused), tuple(box.failed), abandoned))

    def _keep_in_mind(self, q: Question, replies: Replies) -> None:
        """Remember which memories each client keeps now: the one it began with, and the one it has learned."""
        if q.memory is None or replies.change is None:
            return
        for row, client in enumerate(q.cohort.ids.tolist()):
            both = {digest(q.memory[row]), digest(q.memory[row] + replies.change[row])}
            self._has[client] = both if replies.received[row] else set()  # one that failed may have lost its own


def _partial(replies: Replies, sent: Array, round: int) -> Replies:
    """Return the replies with which entries (k, D) each heard client sent, and what is known of those it keeps."""
    sent[~replies.received] = False
    kept = np.stack([np.full(len(sent), float(round)), sent.sum(1)], axis=1)
    return replies._replace(kept=kept, mask=None if sent[replies.received].all() else sent)


class Box:
    """The answers of a round as they come."""

    def __init__(
        self,
        ids: Array,
        tensors: Tensors,
        x: Array,
        steps: Array,
        most_samples: float,
        room: Array,
        round: int,
        epochs: float | None = None,  # of apps that count their steps themselves; None: ``steps`` were asked of each
        measured: bool = False,  # whether everyone must report its variance
        sent: Array | None = None,  # (k, D) room for which entries came, where a part is enough
    ):
        k, self._measured, self.sent = ids.size, measured, sent
        self._round, self._epochs = round, epochs
        self.ids, self.received, self.answered = ids, np.zeros(k, bool), np.zeros(k, bool)
        self._tensors, self._x, self._most_samples = tensors, x, most_samples
        self.updates = room
        self.steps = np.array(steps)
        self.loss, self.first, self.seconds, self.samples, self.variance = (np.full(k, np.nan) for _ in range(5))
        self.told = np.zeros(k, bool)  # who reported its steps
        self.bytes_up = np.zeros(k, np.int64)
        self.refused: list[Failure] = []
        self.failed: list[Failure] = []

    def put(self, row: int, reply: Message, seconds: float) -> None:
        """Take in one answer, good or bad."""
        client = int(self.ids[row])
        self.answered[row], self.seconds[row] = True, seconds
        if reply.has_error():
            trace = "" if reply.error.code == GONE else (reply.error.reason or "")[-MOST_TRACE:]
            self.failed.append(Failure(client, why_failed(reply), trace))
            return
        self.bytes_up[row] = size(reply.content)
        try:
            check_seal(reply.content, self._round, client if self._epochs is None else ANYONE)
            part = None if self.sent is None else self.sent[row]
            about = read_answer(reply.content, self._tensors, self._x, self.updates[row], self._most_samples, part)
            if self._measured and np.isnan(about.variance):
                raise Unfit("does not report the variance that it was asked for")
            self._check_steps(row, about)
        except Unfit as e:
            self.refused.append(Failure(client, str(e)))
            return
        self.received[row] = True
        self.loss[row], self.first[row], self.samples[row] = about.loss, about.first_gradient, about.samples
        self.told[row], self.variance[row] = not np.isnan(about.steps), about.variance
        self.steps[row] = int(about.steps) if self.told[row] else self.steps[row]

    def _check_steps(self, row: int, about: Answer) -> None:
        """Refuse more steps than were asked, or than an app of its own can take: its samples, one at a time."""
        if self._epochs is None:
            most, why = float(self.steps[row]), "what it was asked"
        else:
            most = math.ceil(self._epochs) * about.samples
            why = f"epochs={self._epochs:g} over its samples, one at a time; Strategy(epochs=…) says how many passes"
        if about.steps > most:
            raise Unfit(f"reports steps = {about.steps:g}, more than {most:g}: {why}")

    def close(self, waited: float, enough: bool) -> None:
        """Book those who were not heard: what was waited for them counts as their seconds."""
        why = "was not waited for, enough had answered" if enough else f"did not answer within {waited:g} s"
        self.failed += [Failure(int(client), why) for client in self.ids[~self.answered]]
        self.updates[~self.received] = 0
        self.seconds[~self.answered] = self.seconds[self.answered].max(initial=0.0) if enough else waited

    def replies(self) -> Replies:
        """Return the answers as they are."""
        first = self.received, self.updates, self.steps, self.loss, self.first, self.seconds, self.bytes_up
        return Replies(*first, failures=Failures(refused=tuple(self.refused)))


def why_failed(reply: Message) -> str:
    """Return what Flower says of a client that did not do its work, in one line."""
    if reply.error.code == GONE:
        return "its node is gone"
    lines: Sequence[str] = (reply.error.reason or "").strip().splitlines()
    return (
        f"its app failed: {brief(lines[-1], 300)}" if lines else f"its app failed (Flower's error {reply.error.code})"
    )
