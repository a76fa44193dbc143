"""Any method in an app that already exists: what replaces ``FedAvg(...)`` there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from pydantic import PositiveFloat, PositiveInt
from threadpoolctl import ThreadpoolController

from fedweave.core.determinism import deterministic
from fedweave.core.options import renamed
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Cohort, Layout, Population, Replies, ServerState, State
from fedweave.core.settings import BadInput, settings
from fedweave.fleet.server.mail import DAY, PromptGrid
from fedweave.fleet.server.places import Places
from fedweave.fleet.server.pulls import whole_answers
from fedweave.fleet.server.questions import Asker, Question, as_known
from fedweave.fleet.server.roster import Roster
from fedweave.fleet.server.terms import Clock, Terms, refuse_oracle
from fedweave.fleet.wire.tensors import Tensors, fits, records_of
from fedweave.local.solvers import SGD, Adam
from fedweave.method import Method
from fedweave.pacing import Synchronous, ask_more
from fedweave.round import absorb, first_state, plan
from fedweave.round.admission import wrong_number
from fedweave.round.rules import Rules
from fedweave.runs.experiment import Seed, Share
from fedweave.system.measured import Measured
from fedweave.system.worlds import steps_of

PATIENT, MEASURED = Terms(answer_seconds=DAY), Measured()
WRAPPER = "Build the ClientApp with fedweave.flower.client(model, load_partition), which does it."


@settings
class StrategyOptions:
    """What the clients of an existing app do by themselves, as far as a method wants to know it, and the rest."""

    lr: PositiveFloat
    epochs: PositiveFloat  # for clients that do not report their "steps"
    batch_size: PositiveInt
    clients: PositiveInt | None
    fraction_evaluate: Share
    seed: Seed
    terms: Terms
    system: Measured
    max_length_ratio: PositiveFloat | None  # an update this many times as long as its round's median one is refused


@renamed(longest="max_length_ratio")
class Strategy(FlowerStrategy):
    """A method as a Flower strategy: ``Strategy(fedweave.methods.fedacs(10))`` instead of ``FedAvg(...)``.

    The app keeps its ClientApp, of any framework, as long as it takes arrays by name and reports ``num-examples``;
    ``steps``, ``loss`` and ``first-gradient`` are used where they are reported. A method that has its clients do more
    than plain training says so, and needs ``fedweave.flower.client``.

    ``lr``, ``epochs`` and ``batch_size`` say what the clients do (and tell clients of ours what to do); ``clients`` is
    the size of the fleet, if not those who are there when the first round begins; ``terms`` say how many must be there
    and how long to wait, beside the ``timeout`` of ``start``; an update more than ``max_length_ratio`` times as
    long as the median of its round is refused.
    """

    def __init__(
        self,
        method: Method,
        *,
        lr: float = 0.05,
        epochs: float = 1.0,
        batch_size: int = 32,
        clients: int | None = None,
        fraction_evaluate: float = 1.0,
        seed: int = 0,
        terms: Terms = PATIENT,
        system: Measured = MEASURED,
        max_length_ratio: float | None = 1000.0,
        clock: Clock | None = None,
    ):
        self.local = StrategyOptions(
            lr, epochs, batch_size, clients, fraction_evaluate, seed, terms, system, max_length_ratio
        )
        refuse_oracle(method)
        if method.pacing != Synchronous():
            raise BadInput(
                "A strategy runs in Flower's own loop, in which a round ends before the next begins, as its "
                f"flower.Terms say: leave pacing={method.pacing} out, or give the method to fedweave.flower.server."
            )
        self.method = replace(method, sampler=ask_more(method.sampler, self.local.terms.over_selection))
        self._clock = clock or Clock()
        self._needs = needs(method)
        self._grid: PromptGrid | None = None  # unless the loop of somebody else calls this strategy
        self._state: ServerState | None = None
        self._places: Places | Roster | None = None
        self._given: ArrayRecord | None = None  # what aggregate_train returned last
        self._asked: _Asked | None = None

    def summary(self) -> None:
        """Log what the strategy is."""
        for stage in ("sampler", "solver", "aggregator", "server"):
            log(INFO, "\t├──> %s: %s", stage, getattr(self.method, stage))
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
        """Run Flower's own loop on a grid that looks for answers often and loses none that came in time."""
        self._grid = PromptGrid(whole_answers(grid), self.local.terms, self._clock)
        return super().start(
            self._grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Plan the round, and write its questions down."""
        if self._places is None:
            self._begin(arrays, grid)
        places, state = self._places, self._state
        assert places is not None
        population = self._population(places.gather())
        if state is None:
            x = self._vector(arrays)
            state = as_known(first_state(self.method, x, population, self._tensors.layout.parameters))
        elif arrays is not self._given:  # somebody has changed the model between the rounds
            state = state._replace(x=self._vector(arrays))
        state = state._replace(round=server_round - 1)
        with deterministic(self._blas):
            prober = _NoProbes(self._tensors.layout)
            question = Question(plan(self.method, state, population, prober, self.local.lr, self.local.seed))
        config = ConfigRecord({**config, "server-round": server_round})
        wait = self.local.terms.answer_seconds
        messages = self._asker.messages(question, places.node, arrays, wait, config)
        self._asked = _Asked(state, question, messages, arrays, self._clock.now())
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Absorb the answers, each as it comes."""
        asked = self._asked
        assert asked is not None
        assert self._places is not None
        box, answers = self._asker.box(asked.question), dict[int, RecordDict]()
        waited, seconds = self._clock.now() - asked.at, self._grid.seconds if self._grid else {}
        for reply in replies:
            row = asked.row(reply)
            if row is not None and not box.answered[row]:  # else it was answered twice
                box.put(row, reply, seconds.get(reply.metadata.reply_to_message_id, waited))
                answers |= {row: self._beside_the_model(reply.content)} if reply.has_content() else {}
        box.close(self._clock.now() - asked.at, enough=False)
        received = self._asker.replies(asked.question, box, look=False)
        assignment = asked.question.assignment
        self._check(received, assignment.cohort)
        ids, before = assignment.cohort.ids, assignment.population
        self._places.samples[ids[received.received]] = box.samples[received.received].astype(np.int64)
        self._steps[ids[box.counted]] = box.steps[box.counted]
        now = self._population(before.available)  # what the answers say of samples and steps counts now
        now = replace(now, loss_rate=before.loss_rate, latency=before.latency)
        assignment = replace(assignment, view=replace(assignment.view, population=now))
        with deterministic(self._blas):
            state, happened = absorb(
                self.method, asked.state, assignment, received, Rules(max_length_ratio=self.local.max_length_ratio)
            )
        self._state, heard = state, happened.replies
        self._seen = self.local.system.visited(self._seen, ids, heard.received, heard.seconds, heard.bytes_up)
        for kind, failure in happened.failures():
            log(INFO, "\t> round %s %s, %s", server_round, kind, failure)
        used = [answers[row] for row in np.flatnonzero(heard.received).tolist()]
        counts = {"asked": len(asked.messages), "received": int(heard.received.sum()), "refused": len(happened.refused)}
        self._given = self._tensors.record(state.x, self._rest(asked, used))
        return self._given, MetricRecord({**weighted_means(used), **counts})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a share of those who are there, drawn at the round's own address, to evaluate the model."""
        nodes = sorted(set(grid.get_node_ids()) & set(self._places.node.values() if self._places else ()))
        k = math.ceil(self.local.fraction_evaluate * len(nodes))
        where = rng_for(self.local.seed, server_round, Stream.SAMPLER, client=1).choice(len(nodes), k, replace=False)
        config = ConfigRecord({**config, "server-round": server_round})
        content = RecordDict({"arrays": arrays, "config": config})
        chosen = [nodes[i] for i in sorted(where.tolist())]
        return [Message(content, node, MessageType.EVALUATE, group_id=str(server_round)) for node in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of what the clients measured, weighted by their examples."""
        replies = list(replies)
        good = [reply.content for reply in replies if reply.has_content()]
        for reply in replies:
            if reply.has_error():
                log(INFO, "\t> evaluation failed at a node: %s", reply.error.reason)
        return MetricRecord({**weighted_means(good)}) if good else None

    # Behind the interface

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        local = self.local
        self._tensors = Tensors.of_record(arrays)
        strangers = None if self._needs else (local.batch_size, local.epochs)
        solver, upload = self.method.solver, self.method.upload
        self._asker = Asker(self._tensors, solver, local.seed, local.terms, strangers, upload)
        if self._needs:
            terms = replace(local.terms, connected=local.terms.connected or local.clients)
            self._places = Roster(grid, terms, self._clock, self._needs, 0 if upload.masks else None)
        else:
            self._places = Places(grid, local.terms, self._clock, local.clients)
        self._places.gather()
        self._blas = ThreadpoolController()  # finding the libraries takes longer than a small round
        self._seen: State = local.system.fresh(self._places.size)
        self._steps = np.zeros(self._places.size, np.int64)  # as reported; 0: never

    def _vector(self, arrays: ArrayRecord) -> Array:
        x = np.empty(self._tensors.layout.dim, self._tensors.dtype)
        self._tensors.read(arrays, x)
        return x

    def _population(self, there: Array) -> Population:
        """Return what is known of the clients; those never heard from are taken for average."""
        assert self._places is not None
        samples, n = self._places.samples, self._places.size
        known = samples > 0
        samples = np.where(known, samples, max(int(samples[known].mean()), 1) if known.any() else 1)
        batch = np.minimum(self.local.batch_size, samples)
        steps = np.where(self._steps > 0, self._steps, steps_of(np.full(n, self.local.epochs), samples, batch))
        base = Population(samples / samples.sum(), samples, steps, batch, np.zeros(n), np.ones(n), there)
        covered = self._places.covered if isinstance(self._places, Roster) else None
        size = np.full(n, self._tensors.layout.dim * self._tensors.dtype.itemsize)
        return self.local.system.known(replace(base, covered=covered, model_bytes=size), self._seen)

    def _check(self, heard: Replies, cohort: Cohort) -> None:
        """Refuse to go on without what the method must hear."""
        for field in self.method.sampler.required_fields():
            silent = heard.received & np.isnan(getattr(heard, field))
            if silent.any():
                raise BadInput(
                    f"{self.method.name} needs the {field.replace('_', '-')!r} of every client, and client "
                    f"{cohort.ids[silent][0]} does not report it among its metrics. {WRAPPER}"
                )

    @property
    def _outside(self) -> list[str]:
        """The arrays that are not averaged."""
        return [name for name in self._tensors.types if name not in self._tensors.layout.names]

    def _beside_the_model(self, content: RecordDict) -> RecordDict:
        """Return an answer without the arrays that are averaged: of many large ones only their sum stays in memory."""
        arrays = {
            key: ArrayRecord({name: record[name] for name in self._outside if name in record})
            for key, record in records_of(content, ArrayRecord).items()
        }
        return RecordDict({**arrays, **records_of(content, MetricRecord)})

    def _rest(self, asked: _Asked, answers: Sequence[RecordDict]) -> ArrayRecord:
        """Return the arrays that are not averaged: those of the first client that sent whole ones, or as they were."""
        for answer in answers if self._outside else ():
            for record in records_of(answer, ArrayRecord).values():
                if all(n in record and fits(n, record[n], asked.arrays[n]) for n in self._outside):
                    return record
        return asked.arrays


class _NoProbes:
    """What a strategy can offer to samplers while a round is planned: the model's layout, and no probes."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def losses(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput(
            "A strategy cannot ask clients for their losses before it chooses a cohort: give the method to "
            "fedweave.flower.server instead, which can."
        )

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise BadInput("A real fleet cannot be asked what everyone would send: this sampler is for the simulator.")

    rehearse = gradients = variances = _refuse


class _Asked:
    """A round between its question and its answers."""

    def __init__(
        self,
        state: ServerState,
        question: Question,
        messages: Sequence[Message],
        arrays: ArrayRecord,
        at: float,
    ):
        self.state, self.question, self.messages, self.arrays, self.at = state, question, messages, arrays, at

    def row(self, reply: Message) -> int | None:
        """Return the row of the cohort that a reply is from, None if from nobody who was asked.

        A reply is matched by the message it answers, which Flower names when it is sent, or else by its node.
        """
        by_node = self._by_node.get(reply.metadata.src_node_id)
        return self._by_message.get(reply.metadata.reply_to_message_id, by_node)

    @cached_property
    def _by_message(self) -> Mapping[str, int]:  # first asked for with a reply, so after the messages were named
        return {m.metadata.message_id: row for row, m in enumerate(self.messages) if m.metadata.message_id}

    @cached_property
    def _by_node(self) -> Mapping[int, int]:
        return {m.metadata.dst_node_id: row for row, m in enumerate(self.messages)}


def needs(method: Method) -> str:
    """Return what a method has its clients do beyond plain training, as a sentence; nothing for most."""
    solver, name = method.solver, type(method.solver).__name__
    if not method.upload.identity:
        what = f"encode their updates with {type(method.upload).__name__}"
    elif isinstance(solver, SGD | Adam):
        return ""
    else:
        what = f"keep {solver.memory_kind} from round to round ({name})" if solver.memory_kind else f"train with {name}"
    return f"The clients of {method.name} {what}, which a ClientApp of your own does not. {WRAPPER}"


def weighted_means(contents: Sequence[RecordDict]) -> Mapping[str, float]:
    """Return the means of the numbers that all clients report, weighted by their examples."""
    reported = [{k: v for record in records_of(c, MetricRecord).values() for k, v in record.items()} for c in contents]
    reported = [t for t in reported if not wrong_number("num-examples", t.get("num-examples"), 1, math.inf)]
    if not reported:
        return {}
    common = [
        k for k in reported[0] if all(isinstance(t.get(k), int | float) for t in reported) and k != "num-examples"
    ]
    weight = np.array([float(t["num-examples"]) for t in reported])
    return {k: float(weight @ [float(t[k]) for t in reported] / weight.sum()) for k in common}
