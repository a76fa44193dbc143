"""A dispatch's questions and answers, row by row: shared by the engine and by the strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType

from fedweave.core.records import Array, Assignment, Cohort, Failure, Failures, Replies, ServerState
from fedweave.core.roles import Solver, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.fleet.client import digest
from fedweave.fleet.server.received import UNREADABLE
from fedweave.fleet.server.terms import Terms
from fedweave.fleet.wire.answer import Answer, Expected, read_answer, size
from fedweave.fleet.wire.request import ANYONE, TrainRequest, ask, client_half
from fedweave.fleet.wire.seal import check_seal
from fedweave.fleet.wire.tensors import Tensors, Unfit
from fedweave.local.trainer import WHILE
from fedweave.round.admission import admit
from fedweave.round.memories import relative_weights, with_memory_change
from fedweave.tables.rows import Rows
from fedweave.tables.spool import Memory, Spool
from fedweave.upload.codec import ClientModel
from fedweave.upload.everything import Everything

MOST_TRACE = 10_000  # characters of a client's traceback that are kept
NUMBERS = ("loss", "first_gradient", "variance", "first_loss", "squared_loss")  # of an answer, one column each
GONE = 5  # Flower's code for a node that is unavailable
LIFE = 10.0  # seconds beyond the deadline after which an unread question is thrown away


def as_known(state: ServerState) -> ServerState:
    """Return a first state as the server of a real fleet can know it.

    Of what clients' uploads keep it knows two numbers: the dispatch of the answer, and how many entries are new to
    them.
    """
    if "kept" not in state.clients:
        return state
    n, _ = state.clients["kept"].shape
    return state._replace(clients={**state.clients, "kept": Rows.zeros(n, 2, "float64")})


def some_of(assignment: Assignment, rows: Array) -> Assignment:
    """Return what is asked of these rows of the cohort."""
    cohort, budget = assignment.cohort, assignment.context.budget
    few = Cohort(ids=cohort.ids[rows], count=cohort.count[rows], expected=cohort.expected[rows])
    context = assignment.context._replace(budget=None if budget is None else budget[rows])
    return replace(assignment, cohort=few, context=context)


class Question:
    """What a dispatch asks of its cohort, and what the server knows of what these clients keep themselves."""

    def __init__(self, assignment: Assignment):
        self.assignment, context, ids = assignment, assignment.context, assignment.cohort.ids
        self.memory = None if context.memory is None else context.memory[ids]
        known = np.zeros((ids.size, 2)) if context.kept is None else context.kept[ids]
        self.since, fetched = known.astype(
            np.int64
        ).T  # (k,) dispatch of the answer that each one's upload goes on from
        self.fetched = np.where(self.since > 0, fetched, assignment.x.size)  # (k,) entries that are new to each


class Asker:
    """Writes a dispatch's messages and makes replies of what comes back.

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
        self._upload = upload or Everything()
        if not self._upload.identity and solver.memory_kind:
            raise BadInput(
                f"Clients that keep {solver.memory_kind} must send whole updates on a real fleet, by which the server "
                f"follows what they keep; {type(upload).__name__} does not."
            )
        self._strangers, self._half = strangers, client_half(solver, self._upload, tensors.layout)
        self.tensors, self._solver, self._seed, self._terms = tensors, solver, seed, terms
        self._has: dict[int, set[str]] = {}  # client -> the memories that it keeps, by their digests
        self._memory = Memory()
        self.whole = False  # whether models are asked for, which a wrapper around the strategy may clip

    def messages(
        self, q: Question, nodes: Mapping[int, int], model: ArrayRecord, seconds: float, config: ConfigRecord | None
    ) -> list[Message]:
        """Return a message to each client of the cohort; ``nodes`` says where they are."""
        assignment, population, context = q.assignment, q.assignment.population, q.assignment.context
        ids, number, life = assignment.cohort.ids, assignment.dispatch, seconds + LIFE
        share, own = relative_weights(ids, population), assignment.own_models(ids)
        common = {} if context.broadcast is None else {"sent": self.tensors.record(context.broadcast)}
        messages = []
        for row, client in enumerate(ids.tolist()):
            name = "" if q.memory is None else digest(q.memory[row])
            extras = {**common}
            if q.memory is not None and name and name not in self._has.get(client, ()):
                extras["memory"] = self.tensors.record(q.memory[row])
            request = TrainRequest(
                round=number,
                client=client,
                seed=self._seed,
                steps=int(population.steps[client]),
                batch_size=int(population.batch_size[client]),
                lr=assignment.lr,
                share=float(share[row]),
                method=self._half,
                memory=name,
                measure=context.measure,
                budget=None if context.budget is None else float(context.budget[row]),
                kept=int(q.since[row]),
                whole=self.whole,
            )
            if self._strangers:
                batch_size, epochs = self._strangers
                request = request._replace(client=ANYONE, steps=0, batch_size=batch_size, epochs=epochs)
            sent = model if own is None else self.tensors.record(own[row], model)
            content = ask(request, sent, extras, config)  # one record for all, so that Flower sends its arrays once
            messages.append(Message(content, nodes[client], MessageType.TRAIN, group_id=str(number), ttl=life))
        return messages

    def box(self, q: Question) -> Box:
        """Return an empty box for the answers."""
        passes = self._strangers[1] if self._strangers else None
        most, memory = self._terms.most_samples, self._memory
        return Box(q.assignment, self.tensors, most, passes, self._upload, self.whole, memory)

    def replies(self, q: Question, box: Box, look: bool = True) -> Replies:
        """Return what was received, and what was wrong with the rest.

        With ``look`` updates that are not finite are refused now; else the round does it, which takes its time.
        """
        assignment, layout = q.assignment, self.tensors.layout
        replies = with_memory_change(box.replies(), self._solver, assignment)
        replies, refused = admit(replies, assignment.cohort, layout) if look else (replies, replies.failures.refused)
        self._keep_in_mind(q, replies)
        replies = replies if self._upload.identity else _with_kept(replies, self._upload, box.sent, assignment)
        abandoned = self.too_few(replies.received, replies.received.size)
        return replies._replace(failures=Failures(tuple(refused), tuple(box.failed), abandoned))

    def too_few(self, received: Array, most: int) -> str:
        """Return why a round with these answers, of at most so many, must not count; "" if there are enough."""
        few, least = int(received.sum()), min(self._terms.min_answers, most)
        return f"{few} of {received.size} clients answered, {least} must" if few < least else ""

    def _keep_in_mind(self, q: Question, replies: Replies) -> None:
        """Remember which memories each client keeps now: the one it began with, and the one after its answer."""
        if q.memory is None or replies.memory_change is None:
            return
        for row, client in enumerate(q.assignment.cohort.ids.tolist()):
            both = {digest(q.memory[row]), digest(q.memory[row] + replies.memory_change[row])}
            self._has[client] = both if replies.received[row] else set()  # one that failed may have lost its own


def _with_kept(replies: Replies, upload: Upload, sent: Array | None, assignment: Assignment) -> Replies:
    """Return the replies with which entries each client sent, and what the server knows of what it keeps.

    That is two numbers: the dispatch of the answer, 0 if it kept nothing, and how many entries of the model are new to
    it.
    """
    k, dim = replies.received.size, assignment.x.size
    fetched = np.full(k, dim)
    if sent is not None:
        sent[~replies.received] = False
        fetched = sent.sum(1)
        replies = replies._replace(mask=None if sent[replies.received].all() else sent)
    if not upload.keeps:
        return replies
    since = np.where((fetched < dim) | (not upload.masks), assignment.dispatch, 0)
    return replies._replace(kept=np.stack([since, fetched], axis=1).astype(float))


class Box:
    """The answers to a dispatch as they come."""

    def __init__(
        self,
        assignment: Assignment,
        tensors: Tensors,
        most_samples: float,
        epochs: float | None,
        upload: Upload,
        whole: bool = False,
        memory: Memory | None = None,
    ):
        """Wait for the answers to an assignment.

        ``most_samples`` is how many a client may claim, ``epochs`` that of apps that count their steps themselves;
        ``whole``: models were asked for, and may have been clipped since. The answers lie in ``memory``.
        """
        self._whole = whole
        ids, context, x = assignment.cohort.ids, assignment.context, assignment.x
        k, shape = ids.size, (ids.size, x.size)
        self._number, self._epochs, self._measure = assignment.dispatch, epochs, context.measure
        self._tensors, self._most_samples, own = tensors, most_samples, assignment.own_models(ids)
        self._models = [x] * k if own is None else own  # what each was sent
        self.ids, self.received, self.answered = ids, np.zeros(k, bool), np.zeros(k, bool)
        self._updates = Spool(shape, x.dtype, memory)
        self.sent = np.zeros(shape, bool) if upload.masks else None  # which entries came
        self._upload, self._budget = upload, context.budget
        self._model = ClientModel(tensors.layout, dtype=tensors.dtype)
        self.steps = assignment.population.steps[ids]
        self.numbers = {name: np.full(k, np.nan) for name in NUMBERS}
        self.seconds, self.samples = np.full(k, np.nan), np.full(k, np.nan)
        self.counted = np.zeros(k, bool)  # who reported its steps
        self.bytes_up = np.zeros(k, np.int64)
        self.refused: list[Failure] = []
        self.failed: list[Failure] = []

    def put(self, row: int, reply: Message, seconds: float) -> None:
        """Take in one answer, good or bad."""
        client = int(self.ids[row])
        self.answered[row], self.seconds[row] = True, seconds
        if reply.has_error() and reply.error.code == UNREADABLE:
            self.refused.append(Failure(client, why_failed(reply)))
            return
        if reply.has_error():
            trace = "" if reply.error.code == GONE else (reply.error.reason or "")[-MOST_TRACE:]
            self.failed.append(Failure(client, why_failed(reply), trace))
            return
        self.bytes_up[row] = size(reply.content)
        try:
            check_seal(reply.content, self._number, client if self._epochs is None else ANYONE, arrays=not self._whole)
            if self._whole and "update" in reply.content:
                raise Unfit("sent its update where its model was asked for, which nobody has clipped")
            most, model = self._most_samples, self._models[row]
            out = self._updates.begin(row)
            about = read_answer(reply.content, self._tensors, model, out, most, self._expected(row))
            if self._measure and self._epochs is None and np.isnan(about.variance):
                raise Unfit("does not report the variance that it was asked for")
            self._check_steps(row, about)
        except Unfit as e:
            self.refused.append(Failure(client, str(e)))
            return
        self._updates.end(row)
        self.received[row] = True
        for name, column in self.numbers.items():
            column[row] = getattr(about, name)
        self.samples[row], self.counted[row] = about.samples, not np.isnan(about.steps)
        self.steps[row] = int(about.steps) if self.counted[row] else self.steps[row]

    def _expected(self, row: int) -> Expected | None:
        if self._upload.identity:
            return None
        budget = None if self._budget is None else float(self._budget[row])
        return Expected(self._upload, self._model, budget, None if self.sent is None else self.sent[row])

    def _check_steps(self, row: int, about: Answer) -> None:
        """Refuse more steps than were asked, or than an app of its own can take: its samples, one at a time."""
        if self._epochs is None:
            most, why = float(self.steps[row]), "what it was asked"
        else:
            most = math.ceil(self._epochs) * about.samples
            why = f"epochs={self._epochs:g} over its samples, one at a time; Strategy(epochs=…) says how many passes"
        if about.steps > most:
            raise Unfit(f"reports steps = {about.steps:g}, more than {most:g}: {why}")

    def lose(self, row: int, why: str, seconds: float) -> None:
        """Book one who is not waited for any longer."""
        self.answered[row], self.seconds[row] = True, seconds
        self.failed.append(Failure(int(self.ids[row]), why))

    def close(self, waited: float = 0.0, enough: bool = False) -> None:
        """Book those who were not heard: what was waited for them counts as their seconds."""
        self.refused.sort()  # by client, not by arrival
        self.failed.sort()
        why = "was not waited for, enough had answered" if enough else f"did not answer within {waited:g} s"
        self.failed += [Failure(int(client), why) for client in self.ids[~self.answered]]
        self.seconds[~self.answered] = self.seconds[self.answered].max(initial=0.0) if enough else waited

    def replies(self) -> Replies:
        """Return the answers as they are."""
        replies = Replies(
            received=self.received,
            updates=self._updates.matrix(),
            steps=self.steps,
            seconds=self.seconds,
            bytes_up=self.bytes_up,
            **self.numbers,
            failures=Failures(refused=tuple(self.refused)),
        )
        return replies if self._measure else replies._replace(variance=None)


def why_failed(reply: Message) -> str:
    """Return what Flower says of a client that did not do its work, in one line."""
    if reply.error.code == GONE:
        return "its node is gone"
    if reply.error.code == UNREADABLE:
        return brief(reply.error.reason, 300)
    told: Sequence[str] = (reply.error.reason or "").strip().splitlines()
    lines = [line for line in told if not line.startswith(WHILE)]
    return (
        f"its app failed: {brief(lines[-1], 300)}" if lines else f"its app failed (Flower's error {reply.error.code})"
    )
