"""The engine of a real fleet: asks over Flower's grid, waits no longer than agreed, and books every failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from fedweave.client.bytes import upload_bytes
from fedweave.core.flights import Ended, Flights, Landing, Sent
from fedweave.core.records import Array, Assignment, Layout, Population, Replies, State
from fedweave.core.settings import BadInput, brief
from fedweave.engine.links import participation_seconds
from fedweave.fleet.floors import NO_EVALUATION
from fedweave.fleet.server.around import noise_secret
from fedweave.fleet.server.mail import at_once, collect
from fedweave.fleet.server.posts import Come, Posts, fill, merge
from fedweave.fleet.server.questions import LIFE, Asker, Box, Question, some_of, why_failed
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import Clock, Terms
from fedweave.fleet.wire.answer import read_loss
from fedweave.fleet.wire.request import MODEL, QUERY_LOSS, SAME_DATA, ask_loss
from fedweave.fleet.wire.tensors import Tensors, Unfit
from fedweave.method import Method
from fedweave.round import Round
from fedweave.round.growth import summing
from fedweave.system.measured import Measured
from fedweave.upload.codec import ClientModel, ModelFleet

Evaluate = Callable[[Array], Mapping[str, Any]]


BETWEEN_ROUNDS = 3600.0  # seconds for which an answer waits on the SuperLink while the server evaluates and saves


class FlowerEngine:
    """Trains cohorts of real clients.

    With ``measured`` the seconds of a reply are those that passed, and every visit is remembered (``seen``); without,
    the experiment has a world of its own, whose clock counts. Where rounds overlap the real clock always counts, while
    clients are waited for: what the server does between rounds takes no time of the run.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        layout: Layout,
        method: Method,
        seed: int,
        evaluate: Evaluate,
        terms: Terms,
        measured: Measured | None,
        clock: Clock,
    ):
        self.layout, self.secret, self._evaluate = layout, noise_secret(grid), evaluate
        self._grid, self._roster, self._terms, self._clock = grid, roster, terms, clock
        self._method, self._seed = method, seed
        self._asker = Asker(Tensors.of_layout(layout), method.solver, seed, terms, None, method.upload)
        roster.fixed = bool(summing(method, ("data",)))
        self._measured, self._models = measured, ModelFleet((ClientModel(layout),))
        self.seen: State = measured.fresh(roster.size) if measured else {}
        limit = terms.answer_seconds if method.pacing.timeout is None else method.pacing.timeout
        self._posts = Posts(grid, clock, limit, at_once(layout.dim * self._asker.tensors.dtype.itemsize))
        self._heard, self._misfits = False, set[int]()  # whether anyone could train, and who has data of another kind
        self._newest, self._run_clock, self._since = 0, 0.0, clock.now()  # the last dispatch; the run's time at another

    def train(self, assignment: Assignment) -> Replies:
        """Ask the cohort and return what was received in time, or return what has landed."""
        if assignment.landing is not None:
            return self._land(assignment, assignment.landing)
        ids, wait = assignment.cohort.ids, self._terms.answer_seconds
        needed = self._terms.needed(ids.size)
        log(INFO, "fedweave: round %s asks clients %s", assignment.round, " ".join(map(str, ids.tolist())))
        question, model = Question(assignment), self._asker.tensors.record(assignment.x)
        messages = self._asker.messages(question, self._roster.node, model, wait, None)
        box = self._asker.box(question)
        few = at_once(assignment.x.nbytes)
        for row, reply, seconds in collect(self._grid, messages, wait, needed, self._terms, self._clock, few):
            box.put(row, reply, seconds)
        box.close(wait, enough=int(box.received.sum()) >= needed)
        replies = self._logged(assignment, self._replies(question, box))
        return replies if self._measured else replies._replace(seconds=self._world_seconds(question))

    def _replies(self, question: Question, box: Box) -> Replies:
        """Return what a dispatch received; how many samples its clients have now counts from the next round on."""
        replies = self._asker.replies(question, box)
        self._roster.renew(box.ids[replies.received], box.samples[replies.received])
        return replies

    def _logged(self, assignment: Assignment, replies: Replies) -> Replies:
        """Return the replies, once their failures are in the log."""
        for failure in (*replies.failures.refused, *replies.failures.failed):
            log(INFO, "fedweave: round %s, %s", assignment.round, self._roster.told(failure))
        self._refuse_other_data(assignment, replies)
        return replies

    def _refuse_other_data(self, assignment: Assignment, replies: Replies) -> None:
        """End a run in which nobody could ever train, because the server's model is not for the clients' data."""
        said = {failure.client: failure.why for failure in replies.failures.failed if SAME_DATA in failure.why}
        self._heard, self._misfits = self._heard or bool(replies.received.any()), self._misfits | said.keys()
        asked = assignment.cohort.ids.tolist() if assignment.landing is None else self._roster.node
        if said and not self._heard and self._misfits.issuperset(asked):
            why = next(iter(said.values()))  # in which Flower has its own signs around the sentence
            raise BadInput(f"No client could train: {why[max(why.find(MODEL), 0) : why.find(SAME_DATA)]}{SAME_DATA}.")

    def learn(self, happened: Round) -> None:
        """Remember the visits of a finished round as its rows have them: an answer that was refused is a failure."""
        if self._measured:
            ids, r = happened.cohort.ids, happened.replies
            self.seen = self._measured.visited(self.seen, ids, r.received, r.seconds, r.bytes_up)

    def send(self, assignment: Assignment) -> Sent:
        """Ask the cohort and wait for nobody; when its answers come is not known."""
        ids, self._newest, self._since = assignment.cohort.ids, assignment.dispatch, self._clock.now()
        if ids.size:
            who = " ".join(map(str, ids.tolist()))
            log(INFO, "fedweave: round %s, dispatch %s asks clients %s", assignment.round, assignment.dispatch, who)
            self._post(assignment)
        return Sent(np.ones(ids.size, bool), np.full(ids.size, np.nan), np.zeros(ids.size, np.int64), None)

    def _post(self, assignment: Assignment) -> None:
        """Send a dispatch to those of its clients whose nodes are known."""
        there = np.flatnonzero([client in self._roster.node for client in assignment.cohort.ids.tolist()])
        question, model = Question(some_of(assignment, there)), self._asker.tensors.record(assignment.x)
        messages = self._asker.messages(question, self._roster.node, model, self._posts.limit + BETWEEN_ROUNDS, None)
        self._posts.send(assignment, messages, there)

    def resume(self, clock: float, asked: Iterable[Assignment]) -> None:
        """Go on at this time of the run, and ask those again who were under way when the server stopped.

        Their dispatches have the same numbers, so they give the same answers.
        """
        self._run_clock = clock
        for assignment in asked:
            log(INFO, "fedweave: dispatch %s is asked again", assignment.dispatch)
            self._post(assignment)

    def wait(self, flights: Flights, enough: float, until: float) -> Ended:
        """Return which flights have ended, when enough draws have landed, one is lost or the round closes.

        With ``enough`` infinite the pacing closes the round by the answers that its newest dispatch has so far. Every
        flight ends when it is given up, so no waiting is for ever.
        """
        clients, since, begin = flights.client, self._since, self._run_clock
        end = since + (until - begin)  # on the server's clock, so that sleeping until then gets there
        while True:
            now = self._clock.now()
            any_came, self._run_clock = self._posts.look(clients), begin + now - since
            come = self._posts.come(clients, now)
            if np.isfinite(enough):
                over = come.lost.any() or flights.drawn[come.arrived].sum() >= enough
            else:
                over = self._closes(come, flights.dispatch == self._newest, now - since)
            if over or come.ended.all() or now >= end:
                return Ended(come.ended, come.lost, self._run_clock)
            if not any_came:
                next_event = min(end, self._posts.next_limit(clients[~come.ended]))
                self._clock.sleep(min(self._terms.poll_seconds, next_event - now))

    def _closes(self, come: Come, newest: Array, elapsed: float) -> bool:
        """Return whether the pacing closes the round now; if nobody could be asked, with the first that ends."""
        if not newest.any():
            return bool(come.ended.any())
        return self._method.pacing.closing(come.seconds[newest], come.arrived[newest]) <= elapsed

    def _land(self, assignment: Assignment, landing: Landing) -> Replies:
        """Return what has landed, checked as all answers are, each against what its own dispatch asked."""
        parts, nobody = list[tuple[Array, Replies]](), [(landing.flights.client, assignment, [])]
        for rows, asked, outcomes in self._posts.land(landing) if landing.flights.client.size else nobody:
            question = Question(asked)
            box = self._asker.box(question)
            fill(box, outcomes)
            parts.append((rows, self._replies(question, box)))
        received = np.concatenate([replies.received for _, replies in parts])
        replies = merge(parts, self._asker.too_few(received, max(received.size, 1)))  # none landed: too few
        return self._logged(assignment, replies._replace(bytes_down=landing.flights.bytes_down))

    def _world_seconds(self, q: Question) -> Array:
        """Return the seconds (k,) of this round in the experiment's own world, whose links have rates for bytes."""
        assignment, upload = q.assignment, self._method.upload
        up = upload_bytes(assignment, upload, self._method.solver, self._models)
        down = None if upload.identity else assignment.x.itemsize * q.fetched
        return participation_seconds(assignment, up, down)

    def evaluate(self, x: Array) -> Mapping[str, Any]:
        """Return accuracy, loss and class_accuracy of ``x`` on the server's own test set."""
        return self._evaluate(x)

    evaluate_later = evaluate  # a round of a fleet is too expensive to wait for the next

    def evaluate_clients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: the test data of a fleet's clients is not asked for yet."""
        raise BadInput("A real fleet does not tell scores on its own test data: --client-eval is for the simulator.")

    def rehearse(self, assignment: Assignment) -> NoReturn:
        """Refuse: an oracle is for simulations."""
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    def losses(self, x: Array, ids: Array) -> Array:
        """Return the mean loss of ``x`` on each one's own data; −inf for those who do not say, so that others train."""
        model, wait = self._asker.tensors.record(x), self._terms.answer_seconds
        content, nodes = ask_loss(model, self._seed), [self._roster.node[client] for client in ids.tolist()]
        messages = [Message(content, node, QUERY_LOSS, group_id="loss", ttl=wait + LIFE) for node in nodes]
        found, refusals = np.full(ids.size, -np.inf), 0
        for row, reply, _ in collect(self._grid, messages, wait, ids.size, self._terms, self._clock):
            try:
                if reply.has_error():
                    raise Unfit(why_failed(reply))
                found[row] = read_loss(reply.content)
            except Unfit as e:
                refusals += NO_EVALUATION in str(e)
                log(INFO, "fedweave: %s: %s", self._roster.called(int(ids[row])), e)
        if ids.size and refusals == ids.size:
            raise BadInput(
                f"None of the clients that were asked ({brief(ids.tolist())}) tells its loss, by which "
                f"{type(self._method.sampler).__name__} chooses. Each said: {NO_EVALUATION}"
            )
        return found

    def gradients(self, x: Array, ids: Array) -> NoReturn:
        """Refuse: true gradients are for simulations."""
        raise BadInput("A real fleet does not tell its true gradients: --true-gradients is for the simulator.")

    def variances(self, round: int, x: Array, ids: Array, population: Population) -> NoReturn:
        """Refuse: a fleet measures variances while it trains."""
        raise BadInput("A real fleet cannot be asked for its variances beforehand: this sampler is for the simulator.")
