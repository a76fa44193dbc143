"""Any method in an app that already exists: what replaces ``FedAvg(...)`` there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from threadpoolctl import ThreadpoolController

from fedweave.core.determinism import deterministic
from fedweave.core.options import renamed
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Assignment, Cohort, Failure, Population, Replies, ServerState, State
from fedweave.core.settings import BadInput, is_foreign
from fedweave.core.spec import describe
from fedweave.fleet import checkpoint
from fedweave.fleet.asked import Asked, NoProbes
from fedweave.fleet.metrics import EXAMPLES, AggregateMetrics, aggregated, reported, wrong_weight
from fedweave.fleet.options import WRAPPER, StrategyOptions, needs
from fedweave.fleet.server.mail import PromptGrid
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.pulls import whole_answers
from fedweave.fleet.server.questions import Asker, Question, as_known, why_failed
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.seats import capped
from fedweave.fleet.server.terms import MAX_LENGTH_RATIO, Clock, Terms, refuse_oracle
from fedweave.fleet.wire.answer import check_evaluation
from fedweave.fleet.wire.tensors import Tensors, Unfit, fits, records_of
from fedweave.method import Method
from fedweave.pacing import Synchronous, ask_more
from fedweave.round import absorb, first_state, plan
from fedweave.round.growth import extended, grown, refuse_unknown, summing
from fedweave.round.rules import Rules
from fedweave.schedule import Rate, Schedule, rate_at
from fedweave.store.states import misfit
from fedweave.system.measured import Measured
from fedweave.system.worlds import steps_of

TERMS, MEASURED = Terms(), Measured()


@renamed(longest="max_length_ratio")
class Strategy(FlowerStrategy):
    """A method as a Flower strategy: ``Strategy(fedweave.methods.fedacs(10))`` instead of ``FedAvg(...)``.

    The app keeps its ClientApp, of any framework, as long as it takes arrays by name and reports ``num-examples``;
    ``steps``, ``loss`` and ``first-gradient`` are used where they are reported. A method that has its clients do more
    than plain training says so, and needs ``fedweave.flower.client``.

    ``lr``, ``epochs`` and ``batch_size`` say what the clients do (and tell clients of ours what to do); ``lr`` may be a
    schedule, and a method's own counts more, as in an Experiment; ``clients`` is the size of the fleet, without which
    it grows with those who come; ``terms`` say how many must be there and how long to wait, beside the ``timeout`` of
    ``start``; an update more than ``max_length_ratio`` times as long as the median of its round is refused.

    The other arguments are those of Flower's ``FedAvg``. ``fraction_train``, where it is given, holds instead of the
    method's ``per_round``: a round asks max(⌊fraction · nodes⌋, ``min_train_nodes``) of the nodes that are there.
    ``weighted_by_key`` names the metric by which clients and their metrics are weighted. ``save`` writes a folder from
    which ``Strategy.load`` continues to the same bits.
    """

    def __init__(
        self,
        method: Method,
        *,
        lr: Rate = 0.05,
        epochs: float = 1.0,
        batch_size: int = 32,
        clients: int | None = None,
        fraction_train: float | None = None,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int | None = None,
        weighted_by_key: str = EXAMPLES,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
        seed: int = 0,
        terms: Terms = TERMS,
        system: Measured = MEASURED,
        max_length_ratio: float | None = MAX_LENGTH_RATIO,
        clock: Clock | None = None,
    ):
        self.local = StrategyOptions(
            lr=lr,
            epochs=epochs,
            batch_size=batch_size,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            seed=seed,
            terms=terms,
            system=system,
            max_length_ratio=max_length_ratio,
        )
        self.local.check(method)
        self._metrics = {"train": train_metrics_aggr_fn, "evaluate": evaluate_metrics_aggr_fn}
        refuse_oracle(method)
        if method.pacing != Synchronous():
            raise BadInput(
                "A strategy runs in Flower's own loop, in which a round ends before the next begins, as its "
                f"flower.Terms say: leave pacing={method.pacing} out, or give the method to fedweave.flower.server."
            )
        self.method = replace(method, sampler=ask_more(method.sampler, self.local.terms.over_selection))
        self._plain_method = method
        self._clock = clock or Clock()
        self._needs = needs(method)
        self._rounds: int | None = None  # of ``start``
        self._grid: PromptGrid | None = None  # None while the loop of somebody else calls this strategy
        self._state: ServerState | None = None
        self._places: Places | Roster | None = None
        self._given: ArrayRecord | None = None  # what aggregate_train returned last
        self._current: ArrayRecord | None = None  # the model as the loop has it, which a wrapper may have changed
        self._asked: Asked | None = None
        self._before = 0  # rounds that were done when Flower's loop began
        self._saved: checkpoint.Saved | None = None  # what ``load`` found, until the fleet is there
        self._noted = False  # that answers are cast
        self._evaluating: Sequence[Message] = ()

    def summary(self) -> None:
        """Log what the strategy is."""
        for stage in ("sampler", "solver", "aggregator", "server"):
            log(INFO, "\t├──> %s: %s", stage, getattr(self.method, stage))
        if (share := self.local.fraction_train) is not None:
            log(INFO, "\t├──> asked: %g of the nodes, whatever the method's per_round says", share)
        log(INFO, "\t└──> fleet: %s, %s", self.local.clients or "whoever is there", self.local.terms)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run Flower's own loop on a grid that looks for answers often and loses none that came in time.

        A strategy that was loaded, or that has run before, goes on from the round it had for ``num_rounds`` more; one
        that was loaded has its own model, and takes ``initial_arrays`` for nothing but a check.
        """
        before = self._state.round if self._state else 0
        if self._saved is not None and self._given is not None:
            if other := _misfit(self._given, initial_arrays):
                raise BadInput(f"The saved strategy trains another model than initial_arrays: {other} differs.")
            log(INFO, "fedweave: goes on after round %s with the saved model", before)
            initial_arrays = self._given
        evaluate = evaluate_fn and (lambda r, arrays: evaluate_fn(before + r, arrays))
        self._grid, self._rounds = PromptGrid(whole_answers(grid), self.local.terms, self._clock), before + num_rounds
        try:
            result = super().start(
                self._grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate
            )
        finally:
            self._grid = self._rounds = None
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {before + r: record for r, record in getattr(result, kind).items()})
        return result

    # Save and load

    def save(self, path: str | Path) -> None:
        """Write the strategy with its model, states, seats and measured links to a folder, without pickle.

        Functions that aggregate metrics are not written: give them to ``load``. A kill leaves the last save as it was.
        """
        if self._saved is not None:  # it was loaded, and no round done since
            checkpoint.write(Path(path), *self._saved)
            return
        state, places, current = self._state, self._places, self._current
        if state is None or places is None or current is None:
            raise BadInput("There is nothing to save: a strategy has a state after its first round.")
        if current is not self._given:  # a wrapper has added its noise
            state = state._replace(x=self._vector(current))
        parts = {"seen": self._seen, "fleet": places.fleet()}
        arrays = {f"{part}.{name}": values for part, columns in parts.items() for name, values in columns.items()}
        arrays |= {"steps": self._steps, "weights": self._weights}
        rest = {f"rest.{name}": current[name].numpy() for name in self._outside}
        about = {"method": describe(self._plain_method), "options": describe(self.local)}
        types = {name: {"type": kind, "shape": list(current[name].shape)} for name, kind in self._tensors.types.items()}
        checkpoint.write(Path(path), {**about, "arrays": types}, state, {**arrays, **rest})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        train_metrics_aggr_fn: AggregateMetrics | None = None,
        evaluate_metrics_aggr_fn: AggregateMetrics | None = None,
        trust: bool = False,
        clock: Clock | None = None,
    ) -> Self:
        """Return the strategy that ``save`` wrote; ``start`` goes on with it.

        With ``trust`` parts of your own that are not imported yet are imported, as the folder names them.
        """
        saved = checkpoint.read(Path(path))
        method, options = checkpoint.settings_of(saved, StrategyOptions, trust)
        strategy = cls(
            method,
            **options,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
            clock=clock,
        )
        strategy._saved, strategy._state = saved, saved.state
        strategy._tensors = Tensors.of_record(saved.like)
        strategy._given = strategy._current = strategy._tensors.record(saved.state.x, saved.like)
        return strategy

    @property
    def arrays(self) -> ArrayRecord | None:
        """The model as it is now, None before the first round."""
        return self._current

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Plan the round, and write its questions down."""
        self._asked, self._current = None, arrays
        if self.local.fraction_train == 0:  # as in Flower's FedAvg: evaluation alone
            return []
        if server_round == 1:  # a loop begins, the first or one more
            self._before = self._state.round if self._state else 0
        if self._grid is None and self._saved is not None and self._given is not None:
            _refuse_other(self._given, arrays)
        if self._places is None:
            try:
                self._begin(arrays, grid)
            except BaseException:
                self._places = None  # so that the next start begins again
                raise
        places, number, wait = self._places, self._before + server_round, self.local.terms.answer_seconds
        assert places is not None
        there = self._gathered(places)
        population, size = self._population(there), self.local.cohort(int(there.sum()))
        method = self.method if size is None else self.method.asking(size)
        state = self._state_before(number, method, arrays, population)
        with deterministic(self._blas):
            prober = NoProbes(self._tensors.layout)
            question = Question(plan(method, state, population, prober, self._lr(number), self.local.seed))
        self._asker.whole = self._grid is None
        config = ConfigRecord({**config, "server-round": number})
        messages = self._asker.messages(question, places.node, arrays, wait, config)
        if self._grid is None:
            self._refuse_wrapped(question.assignment)
            for message in messages:
                message.metadata.ttl = wait  # Flower keeps the deadline in a loop that does not know the terms
        for message in messages:
            message.content = self._renamed(message.content)
        self._asked = Asked(method, state, question, messages, arrays, self._clock.now())
        return messages

    def _lr(self, round: int) -> float:
        """Return the learning rate of a round."""
        rate = self.local.lr if self.method.lr is None else self.method.lr
        if self._rounds is None and isinstance(rate, Schedule) and rate.needs_rounds:
            raise BadInput(f"The learning rate {describe(rate)} depends on the number of rounds, which start() knows.")
        return rate_at(rate, round, self._rounds or round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Absorb the answers, each as it comes."""
        asked = self._asked
        if asked is None:
            return None, None
        assert self._places is not None
        box, answers = self._asker.box(asked.question), dict[int, RecordDict]()
        waited, seconds = self._clock.now() - asked.at, self._grid.seconds if self._grid else {}
        for reply in replies:
            row = asked.row(reply)
            if row is None or box.answered[row]:  # it was answered twice
                continue
            if reply.has_content():
                answers[row] = self._beside_the_model(reply.content)
                reply.content = self._with_examples(reply.content)
            box.put(row, reply, seconds.get(reply.metadata.reply_to_message_id, waited))
        box.close(self._clock.now() - asked.at, enough=False)
        received = self._asker.replies(asked.question, box, look=False)
        assignment = asked.question.assignment
        received = self._weighed(received, assignment.cohort, answers)
        received = self._complete(received, assignment.cohort, first=not asked.state.round)
        ids, before = assignment.cohort.ids, assignment.population
        self._places.renew(ids[received.received], box.samples[received.received])
        self._steps[ids[box.counted]] = box.steps[box.counted]
        now = self._population(before.available)  # what the answers say of samples and steps counts now
        now = replace(now, loss_rate=before.loss_rate, latency=before.latency)
        assignment = replace(assignment, view=replace(assignment.view, population=now))
        with deterministic(self._blas):
            state, happened = absorb(
                asked.method, asked.state, assignment, received, Rules(max_length_ratio=self.local.max_length_ratio)
            )
        self._state, heard = state, happened.replies
        self._seen = self.local.system.visited(self._seen, ids, heard.received, heard.seconds, heard.bytes_up)
        for kind, failure in happened.failures():
            log(INFO, "\t> round %s %s, %s", self._before + server_round, kind, self._places.told(failure))
        used = [answers[row] for row in np.flatnonzero(heard.received).tolist()]
        counts = {"asked": len(asked.messages), "received": int(heard.received.sum()), "refused": len(happened.refused)}
        self._given = self._current = self._tensors.record(state.x, self._rest(asked, used))
        measured = self._aggregated("train", used)
        return self._given, MetricRecord({**measured, **counts})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a share of those who are there, drawn at the round's own address, to evaluate the model."""
        self._current, local, number = arrays, self.local, self._before + server_round
        if not local.fraction_evaluate:
            return []
        seats = self._places.node.values() if self._places else grid.get_node_ids()
        nodes = sorted(set(grid.get_node_ids()) & set(seats))
        least = min(local.min_evaluate_nodes, self._places.size if self._places else local.min_evaluate_nodes)
        if len(nodes) < least:
            log(WARNING, "fedweave: %s nodes are there to evaluate, min_evaluate_nodes=%s: skipped", len(nodes), least)
            return []
        k = max(int(local.fraction_evaluate * len(nodes)), least)
        where = rng_for(local.seed, number, Stream.SAMPLER, client=1).choice(len(nodes), k, replace=False)
        config = ConfigRecord({**config, "server-round": number})
        content = self._renamed(RecordDict({"arrays": arrays, "config": config}))
        chosen = [nodes[i] for i in sorted(where.tolist())]
        self._evaluating = [Message(content, n, MessageType.EVALUATE, group_id=str(number)) for n in chosen]
        return self._evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of what the clients measured, weighted by their examples; bad answers are left out."""
        terms, good = self.local.terms, list[RecordDict]()
        node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in self._evaluating}
        client_at = {node: client for client, node in (self._places.node.items() if self._places else ())}
        once = {reply.metadata.reply_to_message_id: reply for reply in replies}  # it may come twice
        for reply in once.values():
            try:
                if reply.has_error():
                    raise Unfit(why_failed(reply))
                check_evaluation(reply.content, terms.most_samples, self.local.weighted_by_key)
                good.append(reply.content)
            except Unfit as e:
                node = node_of.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
                who = self._places.called(client_at[node]) if self._places and node in client_at else f"node {node}"
                log(INFO, "\t> round %s, evaluation of %s: %s", self._before + server_round, who, e)
        return MetricRecord(self._aggregated("evaluate", good)) if good else None

    # Behind the interface

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        local = self.local
        self._tensors = Tensors.of_record(arrays)
        strangers = None if self._needs else (local.batch_size, local.epochs)
        solver, upload = self.method.solver, self.method.upload
        saved, wanted = self._saved, local.connected(bool(strangers))
        if self._needs:
            classes = 0 if upload.masks else None
            self._places = Roster(grid, local.terms, self._clock, self._needs, classes, local.clients, wanted)
        else:
            self._places = Places(grid, local.terms, self._clock, local.clients, wanted, local.min_nodes)
        self._places.fixed = bool(summing(self.method, ("data",)))
        self._asker = Asker(self._tensors, solver, local.seed, local.terms, strangers, upload)
        if saved:
            self._places.recall(saved.part("fleet"))
        self._places.gather()
        refuse_unknown(self.method, self._places.samples)
        n = len(saved.arrays["steps"]) if saved else self._places.size
        self._blas = ThreadpoolController()  # finding the libraries takes longer than a small round
        self._seen: State = saved.part("seen") if saved else local.system.fresh(n)
        known = saved.arrays if saved else {"steps": np.zeros(n, np.int64), "weights": np.zeros(n)}
        self._steps, self._weights = known["steps"].copy(), known["weights"].copy()  # as reported; 0: never

    def _state_before(self, number: int, method: Method, arrays: ArrayRecord, population: Population) -> ServerState:
        """Return the state before a round: the first, the last, or that with a model which somebody has changed."""
        state = self._state
        if state is None or self._saved is not None:
            first = first_state(method, self._vector(arrays), population, self._tensors.layout.parameters)
            first = as_known(first)
            if state is not None:
                _refuse_foreign(method, state, first)
            state, self._saved = state or first, None
        if self._state is not None and arrays is not self._given:
            state = state._replace(x=self._vector(arrays))
        return state._replace(round=number - 1)

    def _gathered(self, places: Places | Roster) -> Array:
        """Return who is there, after making room for those who came; where a method has none, they are not asked."""
        there, before = places.gather(), self._steps.size
        if places.size == before:
            return there
        known, more = (self._seen, self._steps, self._weights), places.size - before
        self._seen = extended(self._seen, self.local.system.fresh(places.size))
        self._steps, self._weights = (np.append(a, np.zeros(more, a.dtype)) for a in known[1:])
        try:
            if self._state is not None:
                population, parameters = self._population(there), self._tensors.layout.parameters
                self._state = grown(self.method, self._state, population, before, parameters)
        except BadInput as e:
            assert isinstance(places, Places)
            places.close(before, str(e))
            self._seen, self._steps, self._weights = known
        return there[: places.size]

    def _vector(self, arrays: ArrayRecord) -> Array:
        x = np.empty(self._tensors.layout.dim, self._tensors.dtype)
        self._tensors.read(arrays, x)
        return x

    def _population(self, there: Array) -> Population:
        """Return what is known of the clients; those never heard from are taken for average."""
        assert self._places is not None
        samples, n = self._places.believed(), self._places.size
        batch = np.minimum(self.local.batch_size, samples)
        steps = np.where(self._steps > 0, self._steps, steps_of(np.full(n, self.local.epochs), samples, batch))
        weight = samples
        if self.local.weighted_by_key != EXAMPLES:
            counted = capped(self._weights, self.local.terms.max_samples_ratio)
            weight = np.where(counted > 0, counted, counted[counted > 0].mean() if counted.any() else 1.0)
        base = Population(weight / weight.sum(), samples, steps, batch, np.zeros(n), np.ones(n), there)
        covered = self._places.covered if isinstance(self._places, Roster) else None
        growing = isinstance(self._places, Places) and self._places.growing
        size = np.full(n, self._tensors.layout.dim * self._tensors.dtype.itemsize)
        return self.local.system.known(replace(base, covered=covered, model_bytes=size, growing=growing), self._seen)

    def _renamed(self, content: RecordDict) -> RecordDict:
        """Return a message with the record names that the app reads."""
        names = {"arrays": self.local.arrayrecord_key, "config": self.local.configrecord_key}
        same = all(name == own for own, name in names.items())
        return content if same else RecordDict({names.get(name, name): record for name, record in content.items()})

    def _refuse_wrapped(self, assignment: Assignment) -> None:
        """Refuse what cannot be in the loop of a wrapper, which changes answers before they are aggregated."""
        context, terms = assignment.context, self.local.terms
        more = context.memory is not None or context.broadcast is not None or self.method.aggregator.sends_own_models
        if more or not self.method.upload.identity:
            raise BadInput(
                f"{self.method.name} cannot be inside of Flower's DifferentialPrivacy wrappers, nor in another loop "
                "than that of its own start: these clip models, and its clients exchange more or less than the model. "
                "fedweave.aggregate.Private is our own."
            )
        if terms.answers is not None or terms.over_selection != 1:
            raise BadInput(
                "Only start of the strategy itself can close a round early: leave 'answers' and 'over_selection' out "
                "of Terms inside of Flower's wrappers."
            )

    def _aggregated(self, kind: str, contents: Sequence[RecordDict]) -> dict[str, Any]:
        return aggregated(contents, self.local.weighted_by_key, self.local.terms, self._metrics[kind])

    def _with_examples(self, content: RecordDict) -> RecordDict:
        """Return an answer with a number of examples: an app that is weighted by another metric need not report it."""
        key, most = self.local.weighted_by_key, self.local.terms.most_samples
        if key == EXAMPLES or EXAMPLES in reported(content) or wrong_weight(content, key, most):
            return content
        count = max(1, round(float(reported(content)[key])))
        return RecordDict({**content, "fedweave.examples": MetricRecord({EXAMPLES: count})})

    def _weighed(self, heard: Replies, cohort: Cohort, answers: Mapping[int, RecordDict]) -> Replies:
        """Keep the weights that clients report under another name than that of their examples; refuse what is none."""
        key, most = self.local.weighted_by_key, self.local.terms.most_samples
        if key == EXAMPLES:
            return heard
        rows = np.flatnonzero(heard.received).tolist()
        wrong = {row: why for row in rows if (why := wrong_weight(answers[row], key, most))}
        for row in set(rows) - set(wrong):
            self._weights[cohort.ids[row]] = float(reported(answers[row])[key])
        return _without(heard, cohort, wrong)

    def _complete(self, heard: Replies, cohort: Cohort, first: bool) -> Replies:
        """Refuse answers without what the method must hear; where at first nobody tells it, the app is wrong."""
        for field in self.method.sampler.required_fields():
            silent, name = heard.received & np.isnan(getattr(heard, field)), field.replace("_", "-")
            if first and silent.any() and silent.sum() == heard.received.sum():
                raise BadInput(
                    f"{self.method.name} needs the {name!r} of every client, and client {cohort.ids[silent][0]} does "
                    f"not report it among its metrics. {WRAPPER}"
                )
            heard = _without(heard, cohort, dict.fromkeys(np.flatnonzero(silent).tolist(), f"no {name!r}"))
        return heard

    @property
    def _outside(self) -> list[str]:
        """The arrays that are not averaged."""
        return [name for name in self._tensors.types if name not in self._tensors.layout.names]

    def _beside_the_model(self, content: RecordDict) -> RecordDict:
        """Return an answer without the arrays that are averaged: of many large ones only their sum stays in memory."""
        arrays = dict[str, ArrayRecord]()
        for key, record in records_of(content, ArrayRecord).items():
            if not self._noted and (cast := self._tensors.cast(record)):
                self._noted, name = True, cast[0]
                found = record[name].dtype, self._tensors.types[name]
                log(WARNING, "fedweave: clients send %s as %s, which is cast to the model's %s", name, *found)
            arrays[key] = ArrayRecord({name: record[name] for name in self._outside if name in record})
        return RecordDict({**arrays, **records_of(content, MetricRecord)})

    def _rest(self, asked: Asked, answers: Sequence[RecordDict]) -> ArrayRecord:
        """Return the arrays that are not averaged: those of the first client that sent whole ones, or as they were."""
        for answer in answers if self._outside else ():
            for record in records_of(answer, ArrayRecord).values():
                if all(n in record and fits(n, record[n], asked.arrays[n]) for n in self._outside):
                    return record
        return asked.arrays


def _misfit(one: ArrayRecord, other: ArrayRecord) -> str:
    """Return the first array in which two models differ in name, shape or type; "" if in none."""
    mine, theirs = ({n: (tuple(a.shape), a.dtype) for n, a in record.items()} for record in (one, other))
    return next((repr(name) for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), "")


def _refuse_other(saved: ArrayRecord, arrays: ArrayRecord) -> None:
    """Refuse another model than the saved one in the loop of a wrapper, which clips and adds noise to its own."""
    if _misfit(saved, arrays) or not all(np.array_equal(a.numpy(), arrays[n].numpy()) for n, a in saved.items()):
        raise BadInput(
            "A strategy that was loaded goes on with its saved model, but the wrapper around it has begun with another "
            "one: start it with wrapper.start(grid, strategy.arrays, …)."
        )


def _without(heard: Replies, cohort: Cohort, wrong: Mapping[int, str]) -> Replies:
    """Return the answers without those of these rows, which are refused for these reasons."""
    if not wrong:
        return heard
    fine = np.array([row not in wrong for row in range(heard.received.size)], bool)
    refused = *heard.failures.refused, *(Failure(int(cohort.ids[row]), why) for row, why in wrong.items())
    return heard.keep_only(fine)._replace(failures=heard.failures._replace(refused=refused))


def _refuse_foreign(method: Method, state: ServerState, first: ServerState) -> None:
    """Refuse a saved state that cannot be one of this method; the states of own parts may change their shapes."""
    names = zip(("sampler", "aggregator", "server", "upload"), method.stateful, strict=True)
    parts = {"clients", *(name for name, part in names if not is_foreign(part))}
    if other := misfit(state, first, parts):
        raise BadInput(f"The saved state of round {state.round} is not of this fleet: {other} has another shape.")
