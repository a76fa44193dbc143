"""The client's app: the local training of the simulator, on data that stays where it is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput
from fedweave.data import Dataset, load, partition
from fedweave.data.arrays import MOST_CLASSES
from fedweave.data.deal import covered, label_counts
from fedweave.fleet.wire.answer import Answer, answer
from fedweave.fleet.wire.seal import sealed
from fedweave.fleet.wire.tensors import (
    ANYONE,
    QUERY_LOSS,
    Extras,
    Tensors,
    TrainRequest,
    opened,
    packed,
    read_request,
    read_setting,
    read_vectors,
    solver_of,
    upload_of,
)
from fedweave.system.worlds import steps_of
from fedweave.upload.channels import channels_of

if TYPE_CHECKING:
    from torch import nn

    from fedweave.local.torch.trainer import TorchTrainer

Model = str | Callable[[], "nn.Module"]
LoadPartition = Callable[[int, int], Dataset | tuple[Array, Array]]
KEPT, LEARNED = "fedweave.kept", "fedweave.learned"  # what a client remembers, before and after its last answer
OWN = "fedweave.own.kept", "fedweave.own.learned"  # what it did not send and goes on from, likewise


def client(
    model: Model,
    load_partition: LoadPartition,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> ClientApp:
    """Return a ClientApp that trains ``model`` on the samples of ``load_partition(partition_id, num_partitions)``.

    ``model`` is a name of ``fedweave list models`` or a function that makes a torch module; ``load_partition`` returns
    a ``fedweave.data.Dataset`` or a pair of arrays, inputs ready for the network and labels. Steps, batch size,
    learning rate and solver come from the server each round. What a method has its clients remember stays in
    ``Context.state``.
    The node says who it is: ``--node-config 'partition-id=3 num-partitions=10'``.
    """
    app, trainers = ClientApp(), _Trainers(model, load_partition, device)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Say who this is and how many samples it has, and if asked how well they cover the classes; nothing else."""
        who, of = identity(context)
        data = trainers.data(who, of)
        about: dict[str, Any] = {"client": who, "clients": of, "num-examples": len(data.x)}
        if "fedweave" in message.content.config_records and data.classes:
            data = replace(data, classes=max(data.classes, read_setting(message.content, "classes", MOST_CLASSES)))
            about["covered"] = float(covered(label_counts(data, [np.arange(len(data.x))]))[0])
        return Message(RecordDict({"hello": MetricRecord(about)}), reply_to=message)

    @app.query(QUERY_LOSS.partition(".")[2])
    def query_loss(message: Message, context: Context) -> Message:
        """Tell the mean loss of the model on this client's own training samples."""
        who, of = identity(context)
        trainer = trainers.trainer(who, of, read_setting(message.content, "seed", 2**63), None)
        x, _ = read_vectors(message.content, Tensors.of_layout(trainer.layout))
        loss = trainer.loss(x, who)
        return Message(RecordDict({"loss": MetricRecord({"loss": loss})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train as the server asks and send the displacement."""
        begin = time.perf_counter()
        request = read_request(message.content)
        who, of, number = *identity(context), request.client
        samples = len(trainers.data(who, of).x)
        request = _own_work(request, samples) if not request.steps else request
        request = request._replace(client=who) if request.client == ANYONE else request
        if request.client != who:
            raise BadInput(f"The server asked client {request.client}, but this node is client {who}.")
        solver = solver_of(request)
        trainer = trainers.trainer(who, of, request.seed, solver)
        tensors = Tensors.of_layout(trainer.layout)
        x, extras = read_vectors(message.content, tensors)
        memory = _recall(context, request, extras, x.size) if solver.memory_kind else None
        own = _own(context, request)
        start = x if own is None else np.where(np.isnan(own), x, own)
        update, loss, first, variance = _train(trainer, x, request, extras.sent, memory, start)
        if memory is not None:
            _learn(context, solver, request, extras.sent, memory, update, tensors.layout.parameters)
        about = Answer(samples, request.steps, loss, first, time.perf_counter() - begin, variance)
        kept = None if request.dropout is None else _chosen(context, request, tensors, x, own, start, update)
        return Message(sealed(answer(update, about, tensors, kept), request.round, number), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """Measure the model on this client's own test samples, or on its training samples if it has no others."""
        trainer = trainers.trainer(*identity(context), 0, None)
        x, _ = read_vectors(message.content, Tensors.of_layout(trainer.layout))
        n = trainer.test_size
        scores = trainer.task.finish(trainer.evaluate(x, 0, n))
        found: Any = {"num-examples": n} | {name: value for name, value in scores.items() if isinstance(value, float)}
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app


def dealt(data: str | Dataset, form: str = "dirichlet:0.5", seed: int = 0) -> LoadPartition:
    """Return a ``load_partition`` that deals a data set out among the clients, as the simulator does: for rehearsals.

    ``data`` and ``form`` are those of ``fedweave run --data --partition``.
    """

    def load_partition(who: int, of: int) -> Dataset:
        whole = load(data) if isinstance(data, str) else data
        shares = partition.parse(form, of).split(whole, rng_for(seed, 0, Stream.PARTITION))
        part = shares.train[who]
        return replace(whole, x=whole.x[part], y=whole.y[part], test_x=whole.x[:0], test_y=whole.y[:0])

    return load_partition


def identity(context: Context) -> tuple[int, int]:
    """Return which client of how many this node is, as its operator has said."""
    found = [context.node_config.get(name) for name in ("partition-id", "num-partitions")]
    who, of = (value if isinstance(value, int) and not isinstance(value, bool) else -1 for value in found)
    if not 0 <= who < of:
        raise BadInput(
            "Every node says which client it is: flower-supernode … --node-config 'partition-id=0 num-partitions=10', "
            f"partition-id from 0. This one has {dict(context.node_config)}."
        )
    return who, of


class _Trainers:
    """Data and trainers of the clients in this process, made when first needed."""

    def __init__(self, model: Model, load_partition: LoadPartition, device: str):
        self._model, self._load, self._device = model, load_partition, device
        self._data: dict[int, Dataset] = {}
        self._made: dict[int, tuple[Any, TorchTrainer]] = {}

    def data(self, who: int, of: int) -> Dataset:
        if who not in self._data:
            self._data[who] = as_dataset(self._load(who, of), who)
        return self._data[who]

    def trainer(self, who: int, of: int, seed: int, solver: Solver | None) -> TorchTrainer:
        """Return the trainer of a client; the last one is kept, for the next round."""
        # Torch takes seconds to load, and a client that only says hello does not need it.
        from fedweave.engine.simulator import choose_device
        from fedweave.local.client_data import ClientData
        from fedweave.local.solvers import SGD
        from fedweave.local.torch.flat_module import build_module
        from fedweave.local.torch.trainer import TorchTrainer

        found = self._made.get(who)
        if found is None or found[0] != (seed, solver):
            data = self.data(who, of)
            test = (data.test_x, data.test_y) if len(data.test_y) else (data.x, data.y)
            parts: Any = {who: np.arange(len(data.x))}
            mine = ClientData(data.x, data.y, *test, data.classes, data.mean, data.std, parts)
            module, device = build_module(factory(self._model, data), seed), choose_device(self._device)[0]
            found = (seed, solver), TorchTrainer(module, mine, solver or SGD(), seed, device)
            self._made[who] = found
        return found[1]


def as_dataset(found: Any, who: int) -> Dataset:
    """Return a client's samples as a data set."""
    if isinstance(found, Dataset):
        data = found
    elif isinstance(found, tuple) and len(found) == 2:
        x, y = (np.asarray(part) for part in found)
        whole = np.issubdtype(y.dtype, np.integer)
        y = y.astype(np.int64 if whole else np.float32)
        x = x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
        data = Dataset("partition", x, y, x[:0], y[:0], int(y.max(initial=0)) + 1 if whole else 0)
    else:
        raise BadInput(f"load_partition must return a Dataset or a pair of arrays (x, y). It returned {type(found)}.")
    if not len(data.x) or len(data.x) != len(data.y):
        raise BadInput(f"Client {who} has {len(data.x)} inputs and {len(data.y)} labels; it needs as many, and some.")
    return data


def factory(model: Model, data: Dataset) -> Callable[[], nn.Module]:
    """Return a function that makes the model for this data."""
    from fedweave import models

    if not isinstance(model, str):
        return model
    name = models.default_for(data.shape, data.classes) if model == "auto" else model
    models.check(name, data.shape, data.classes)
    return lambda: models.build(name, data.shape, data.classes)


def _train(
    trainer: TorchTrainer, x: Array, request: TrainRequest, sent: Array | None, memory: Array | None, start: Array
) -> tuple[Array, float, float, float]:
    from fedweave.local.trainer import Jobs

    jobs = Jobs(
        client=np.array([request.client]),
        steps=np.array([request.steps]),
        batch_size=np.array([request.batch_size]),
        dispatch=np.array([request.round]),
        lr=np.array([float(request.lr)]),
        memory=None if memory is None else memory[None],
        broadcast=sent,
        share=np.array([request.share]),
        starts=None if start is x else start[None],
        measure=request.measure,
    )
    trained = trainer.train(x, jobs)
    update, loss, first, variance = (column[0] for column in trained[:4])
    return update, float(loss), float(first), float(variance)


def _own_work(request: TrainRequest, samples: int) -> TrainRequest:
    """Return the request with its steps counted: the server does not know how many samples this client has."""
    batch = min(request.batch_size, samples)
    steps = steps_of(np.array([request.epochs]), np.array([samples]), np.array([batch]))
    return request._replace(steps=int(steps[0]), batch_size=batch)


def digest(memory: Array) -> str:
    """Return the name of a memory; that of nothing but zeros, where everyone begins, is empty."""
    return hashlib.sha256(memory.tobytes()).hexdigest() if memory.any() else ""


def _recall(context: Context, request: TrainRequest, extras: Extras, dim: int) -> Array:
    """Return the memory that the server takes for granted.

    What was learned last time counts only if the server heard it, and only the server knows: so a client keeps both,
    the memory before its last answer and the one after, and the server names the one that holds.
    """
    if not request.memory:
        return np.zeros(dim, np.float32)
    if extras.memory is not None:
        return extras.memory
    for name in (KEPT, LEARNED):
        record = context.state.array_records.get(name)
        if record is not None and request.memory in record:
            return opened("memory", record[request.memory]).copy()
    raise BadInput(f"Client {request.client} has lost what it remembered; the server will send it next time.")


def _learn(
    context: Context,
    solver: Solver,
    request: TrainRequest,
    sent: Array | None,
    memory: Array,
    update: Array,
    parameters: int,
) -> None:
    from fedweave.round.memories import learned

    steps, share = np.array([request.steps]), np.array([request.share])
    after = memory + learned(solver, update[None], parameters, sent, steps, share, request.lr)[0]
    context.state[KEPT] = ArrayRecord({request.memory: packed(memory)} if request.memory else {})
    context.state[LEARNED] = ArrayRecord({digest(after): packed(after)})


def _own(context: Context, request: TrainRequest) -> Array | None:
    """Return the part of its model that this client goes on from, nan elsewhere; None: it begins at the server's model.

    As with memories the server says which of two holds, but it does not know the values: they are named by the round
    after which they were kept. A client that has lost them takes the whole model, as everyone does now and then.
    """
    for name in OWN if request.own else ():
        record = context.state.array_records.get(name)
        if record is not None and str(request.own) in record:
            return opened("own", record[str(request.own)])
    return None


def _chosen(
    context: Context, request: TrainRequest, tensors: Tensors, x: Array, own: Array | None, start: Array, update: Array
) -> Array:
    """Return which channels (G,) to send, and keep the others for the next time."""
    from fedweave.upload.send import own_part, upload_rng

    assert request.dropout is not None
    channels = channels_of(tensors.layout)
    upload, luck = upload_of(request, tensors.layout), upload_rng(request.seed, request.round)(request.client)
    everyone = np.ones(channels.count)  # has every channel: all train the same model
    kept = upload.send(channels, start, x + update, request.dropout, everyone, luck)
    before, after = OWN
    context.state[before] = ArrayRecord({} if own is None else {str(request.own): packed(own)})
    context.state[after] = ArrayRecord({str(request.round): packed(own_part(x, update, channels.spread(kept)))})
    return kept
