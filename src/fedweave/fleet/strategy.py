"""Any method in an app that already exists: what replaces ``FedAvg(...)`` there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from threadpoolctl import ThreadpoolController

from fedweave.core.determinism import deterministic
from fedweave.core.options import renamed
from fedweave.core.records import Array, Population, ServerState
from fedweave.core.settings import BadInput
from fedweave.core.spec import describe
from fedweave.fleet import checkpoint, evaluation
from fedweave.fleet.admitted import Remainder, complete, weighed, with_examples
from fedweave.fleet.asked import Asked, NoProbes
from fedweave.fleet.known import Known
from fedweave.fleet.metrics import EXAMPLES, AggregateMetrics, aggregated
from fedweave.fleet.options import StrategyOptions, needs
from fedweave.fleet.refusals import other_array, refuse_foreign_state, refuse_other_model, refuse_wrapped
from fedweave.fleet.server.around import noise_secret
from fedweave.fleet.server.mail import PromptGrid
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.pulls import whole_answers
from fedweave.fleet.server.questions import Asker, Question, as_known
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import MAX_LENGTH_RATIO, Clock, Terms, refuse_oracle
from fedweave.fleet.wire.tensors import Tensors
from fedweave.method import Method
from fedweave.pacing import Synchronous, ask_more
from fedweave.round import absorb, first_state, plan
from fedweave.round.growth import refuse_unknown, summing
from fedweave.round.measures import of_aggregator
from fedweave.round.rules import Rules
from fedweave.runs import method_names
from fedweave.schedule import Rate, Schedule, rate_at
from fedweave.system.measured import Measured

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
        method: Method | str,
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
        method = method_names.method_of(method)
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
        self._rounds: int | None = None  # of ``start``, while it runs
        self._planned: int | None = None  # what that was when it ran last
        self._grid: PromptGrid | None = None  # None while the loop of somebody else calls this strategy
        self._state: ServerState | None = None
        self._known: Known | None = None  # of the fleet, once it is there
        self._given: ArrayRecord | None = None  # what aggregate_train returned last
        self._current: ArrayRecord | None = None  # the model as the loop has it, which a wrapper may have changed
        self._asked: Asked | None = None
        self._before = 0  # rounds that were done when Flower's loop began
        self._saved: checkpoint.Saved | None = None  # what ``load`` found, until the fleet is there
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
            if other := other_array(self._given, initial_arrays):
                raise BadInput(f"The saved strategy trains another model than initial_arrays: {other} differs.")
            log(INFO, "fedweave: goes on after round %s with the saved model", before)
            initial_arrays = self._given
        self._check_length(before, before + num_rounds)
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
        state, known, current = self._state, self._known, self._current
        if state is None or known is None or current is None:
            raise BadInput("There is nothing to save: a strategy has a state after its first round.")
        if current is not self._given:  # a wrapper has added its noise
            state = state._replace(x=self._vector(current))
        rest = {f"rest.{name}": current[name].numpy() for name in self._remainder.names}
        about = {"method": describe(self._plain_method), "options": describe(self.local), "rounds": self._planned}
        types = {name: {"type": kind, "shape": list(current[name].shape)} for name, kind in self._tensors.types.items()}
        checkpoint.write(Path(path), {**about, "arrays": types}, state, {**known.saved(), **rest})

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
        strategy._saved, strategy._state, strategy._planned = saved, saved.state, saved.about.get("rounds")
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
            refuse_other_model(self._given, arrays)
        if self._known is None:
            self._known = self._begin(arrays, grid)
        known, number, wait = self._known, self._before + server_round, self.local.terms.answer_seconds
        there, self._state = known.gathered(self.method, self._state)
        population, size = known.population(there), self.local.cohort(int(there.sum()))
        method = self.method if size is None else self.method.asking(size)
        state = self._state_before(number, method, arrays, population)
        with deterministic(self._blas):
            prober = NoProbes(self._tensors.layout, self._secret)
            question = Question(plan(method, state, population, prober, self._lr(number), self.local.seed))
        self._asker.whole = self._grid is None
        config = ConfigRecord({**config, "server-round": number})
        messages = self._asker.messages(question, known.places.node, arrays, wait, config)
        if self._grid is None:
            refuse_wrapped(self.method, self.local.terms, question.assignment)
            for message in messages:
                message.metadata.ttl = wait  # Flower keeps the deadline in a loop that does not know the terms
        for message in messages:
            message.content = self._renamed(message.content)
        self._asked = Asked(method, state, question, messages, arrays, self._clock.now())
        return messages

    @property
    def _rate(self) -> float | Schedule:
        return self.local.lr if self.method.lr is None else self.method.lr

    def _check_length(self, before: int, rounds: int) -> None:
        """Refuse another number of rounds in all than the rounds that are done had, if their rates depend on it."""
        rate, planned = self._rate, self._planned or before
        if before and rounds != planned and isinstance(rate, Schedule) and rate.needs_rounds:
            left = planned - before
            way = f"num_rounds={left} finishes it" if left else f"Begin a new strategy with num_rounds={rounds}"
            raise BadInput(
                f"The learning rate {describe(rate)} depends on the number of rounds: in a run of {rounds} instead of "
                f"{planned} it would have differed in the rounds that are done. {way}."
            )
        self._planned = rounds

    def _lr(self, round: int) -> float:
        """Return the learning rate of a round."""
        rate = self._rate
        if self._rounds is None and isinstance(rate, Schedule) and rate.needs_rounds:
            raise BadInput(f"The learning rate {describe(rate)} depends on the number of rounds, which start() knows.")
        return rate_at(rate, round, self._rounds or round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Absorb the answers, each as it comes."""
        asked, known, local = self._asked, self._known, self.local
        if asked is None or known is None:
            return None, None
        key, most = local.weighted_by_key, local.terms.most_samples
        box, answers = self._asker.box(asked.question), dict[int, RecordDict]()
        waited, seconds = self._clock.now() - asked.at, self._grid.seconds if self._grid else {}
        for reply in replies:
            row = asked.row(reply)
            if row is None or box.answered[row]:  # it was answered twice
                continue
            if reply.has_content():
                answers[row] = self._remainder.of(reply.content)
                reply.content = with_examples(reply.content, key, most)
            box.put(row, reply, seconds.get(reply.metadata.reply_to_message_id, waited))
        box.close(self._clock.now() - asked.at, enough=False)
        received = self._asker.replies(asked.question, box, look=False)
        assignment = asked.question.assignment
        received = weighed(received, assignment.cohort, answers, known.weights, key, most)
        received = complete(received, assignment.cohort, self.method, first=not asked.state.round)
        ids, before = assignment.cohort.ids, assignment.population
        known.places.renew(ids[received.received], box.samples[received.received])
        known.steps[ids[box.counted]] = box.steps[box.counted]
        now = known.population(before.available)  # what the answers say of samples and steps counts now
        now = replace(now, loss_rate=before.loss_rate, latency=before.latency)
        assignment = replace(assignment, view=replace(assignment.view, population=now))
        with deterministic(self._blas):
            rules = Rules(max_length_ratio=local.max_length_ratio, remember_lengths=True)
            state, happened = absorb(asked.method, asked.state, assignment, received, rules)
        self._state, heard = state, happened.replies
        known.seen = local.system.visited(known.seen, ids, heard.received, heard.seconds, heard.bytes_up)
        for kind, failure in happened.failures():
            log(INFO, "\t> round %s %s, %s", self._before + server_round, kind, known.places.told(failure))
        used = {known.places.called(int(ids[row])): answers[row] for row in np.flatnonzero(heard.received).tolist()}
        counts = {"asked": len(asked.messages), "received": int(heard.received.sum()), "refused": len(happened.refused)}
        arrays = self._remainder.medians(used.values(), asked.arrays)
        self._given = self._current = self._tensors.record(state.x, arrays)
        own = of_aggregator(self.method.aggregator, state, happened.view)
        measured = {**self._aggregated("train", used), **{name: float(value) for name, value in own.items()}}
        return self._given, MetricRecord({**measured, **counts})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a share of those who are there, drawn at the round's own address, to evaluate the model."""
        self._current, number = arrays, self._before + server_round
        if not self.local.fraction_evaluate:
            return []
        config = ConfigRecord({**config, "server-round": number})
        content = self._renamed(RecordDict({"arrays": arrays, "config": config}))
        self._evaluating = evaluation.questions(self.local, self._places, grid, content, number)
        return self._evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of what the clients measured, weighted by their examples; bad answers are left out."""
        number = self._before + server_round
        good = evaluation.good_answers(self.local, self._places, self._evaluating, replies, number)
        return MetricRecord(self._aggregated("evaluate", good)) if good else None

    # Behind the interface

    @property
    def _places(self) -> Places | Roster | None:
        return self._known.places if self._known else None

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> Known:
        """Wait for the fleet; return what is known of it."""
        local, saved = self.local, self._saved
        self._tensors = Tensors.of_record(arrays)
        self._remainder = Remainder(self._tensors)
        self._secret = noise_secret(grid)
        strangers = None if self._needs else (local.batch_size, local.epochs)
        solver, upload, wanted = self.method.solver, self.method.upload, local.connected(bool(strangers))
        if self._needs:
            classes = 0 if upload.masks else None
            places = Roster(grid, local.terms, self._clock, self._needs, classes, local.clients, wanted)
        else:
            places = Places(grid, local.terms, self._clock, local.clients, wanted, local.min_nodes)
        places.fixed = bool(summing(self.method, ("data",)))
        self._asker = Asker(self._tensors, solver, local.seed, local.terms, strangers, upload)
        if saved:
            places.recall(saved.part("fleet"))
        places.gather()
        refuse_unknown(self.method, places.samples)
        self._blas = ThreadpoolController()  # finding the libraries takes longer than a small round
        return Known(places, self._tensors, local, saved)

    def _state_before(self, number: int, method: Method, arrays: ArrayRecord, population: Population) -> ServerState:
        """Return the state before a round: the first, the last, or that with a model which somebody has changed."""
        state = self._state
        if state is None or self._saved is not None:
            first = first_state(method, self._vector(arrays), population, self._tensors.layout.parameters)
            first = as_known(first)
            if state is not None:
                refuse_foreign_state(method, state, first)
            state, self._saved = state or first, None
        if self._state is not None and arrays is not self._given:
            state = state._replace(x=self._vector(arrays))
        return state._replace(round=number - 1)

    def _vector(self, arrays: ArrayRecord) -> Array:
        x = np.empty(self._tensors.layout.dim, self._tensors.dtype)
        self._tensors.read(arrays, x)
        return x

    def _renamed(self, content: RecordDict) -> RecordDict:
        """Return a message with the record names that the app reads."""
        names = {"arrays": self.local.arrayrecord_key, "config": self.local.configrecord_key}
        same = all(name == own for own, name in names.items())
        return content if same else RecordDict({names.get(name, name): record for name, record in content.items()})

    def _aggregated(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, Any]:
        return aggregated(contents, self.local.weighted_by_key, self.local.terms, self._metrics[kind])
