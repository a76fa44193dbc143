"""The client's app: the local training of the simulator, on data that stays where it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedweave import models
from fedweave.client.participate import Kept, participate
from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput, choice
from fedweave.data import Dataset, load, partition
from fedweave.data.arrays import from_pair
from fedweave.data.checks import MOST_CLASSES
from fedweave.data.columns import length, rows
from fedweave.data.deal import covered
from fedweave.data.partition import Partition
from fedweave.fleet.floors import Floors, check_classes, keeps_secret, secret_seed
from fedweave.fleet.mods import check_mods, seal_last, with_model
from fedweave.fleet.wire.answer import Answer, answer
from fedweave.fleet.wire.request import (
    ANYONE,
    QUERY_LOSS,
    Extras,
    TrainRequest,
    read_request,
    read_setting,
    read_vectors,
    solver_of,
    upload_of,
)
from fedweave.fleet.wire.tensors import Tensors, opened, packed
from fedweave.local.client_data import ClientData
from fedweave.local.trainer import Jobs, Trained
from fedweave.system.worlds import steps_of
from fedweave.tasks import Task
from fedweave.tasks import parse as parse_task

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod
    from torch import nn

    from fedweave.local.torch.trainer import TorchTrainer

Model = str | Callable[[], "nn.Module"]
LoadPartition = Callable[[int, int], Dataset | tuple[Array, Array]]
KEPT, LEARNED = "fedweave.kept", "fedweave.learned"  # what a client remembers, before and after its last answer
UPLOAD = "fedweave.upload.before", "fedweave.upload.after"  # what its upload kept, likewise


def client(
    model: Model,
    load_partition: LoadPartition,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    task: Task | str | None = None,
    min_samples: int = 10,
    min_steps: int = 1,
    min_batch: int = 4,
    evaluate: bool = False,
    max_answers: int | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that trains ``model`` on the samples of ``load_partition(partition_id, num_partitions)``.

    ``model`` is a name of ``fedweave list models`` or a function that makes a torch module; ``load_partition`` returns
    a ``fedweave.data.Dataset`` or a pair of arrays, inputs ready for the network and labels; ``task`` is the one that
    fits the labels, unless it is given. Steps, batch size,
    learning rate and solver come from the server each round. What a method has its clients remember stays in
    ``Context.state``. ``mods`` are Flower's, around the training alone, the first one outermost.
    The node says who it is: ``--node-config 'partition-id=3 num-partitions=10'``.

    The client does not do all that a server asks. It answers nothing if it has fewer than ``min_samples`` samples, and
    no request that visits fewer, takes fewer than ``min_steps`` steps, or has batches of fewer than ``min_batch``.
    Which samples are in which batch is the node's secret, so that two answers do not differ by a sample through their
    batches; ``--node-config '… secret-batches=false'`` has the batches of the simulator. Only with ``evaluate`` it
    measures models for others, the loss that Power-of-Choice asks for included. A server that makes up its models can
    still read samples out of a few answers: noise (``mods=[LocalDpMod(…)]``) prevents it, and ``max_answers`` training
    requests and evaluations in a run limit it.
    """
    task = parse_task(task) if isinstance(task, str) else task
    if not callable(model) and model not in (known := ["auto", *models.names()]):
        raise BadInput(choice("model", model, known))
    check_mods(mods)
    floors = Floors(min_samples, min_steps, min_batch, evaluate, max_answers)
    app, trainers = ClientApp(), _Trainers(model, load_partition, device, task, floors)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Say who this is and how many samples it has, and if asked how well they cover the classes; nothing else."""
        who, of = identity(context)
        data = trainers.data(who, of)
        about: dict[str, Any] = {"client": who, "clients": of, "num-examples": len(data)}
        if "fedweave" in message.content.config_records and data.labels is not None:
            data = replace(data, classes=max(data.classes, read_setting(message.content, "classes", MOST_CLASSES)))
            check_classes(context, data.classes)
            about["covered"] = float(covered(data, [np.arange(len(data))])[0])
        return Message(RecordDict({"hello": MetricRecord(about)}), reply_to=message)

    @app.query(QUERY_LOSS.partition(".")[2])
    def query_loss(message: Message, context: Context) -> Message:
        """Report the mean loss of the model on this client's own training samples."""
        floors.check_evaluation()
        floors.count_answer(context)
        who, of = identity(context)
        trainer = trainers.trainer(who, of, read_setting(message.content, "seed", 2**63), None)
        x, _ = read_vectors(message.content, Tensors.of_layout(trainer.layout), who)
        loss = trainer.losses(x, np.array([who]))
        return Message(RecordDict({"loss": MetricRecord({"loss": float(loss[0])})}), reply_to=message)

    @app.train(mods=[seal_last, *mods])
    def train(message: Message, context: Context) -> Message:
        """Train as the server asks and send the displacement."""
        request = read_request(message.content)
        who, of = identity(context)
        samples = len(trainers.data(who, of))
        request = _own_work(request, samples) if not request.steps else request
        floors.check_work(request)
        floors.count_answer(context)
        request = request._replace(client=who) if request.client == ANYONE else request
        if request.client != who:
            raise BadInput(f"The server asked client {request.client}, but this node is client {who}.")
        solver = solver_of(request)
        trainer = trainers.trainer(who, of, request.seed, solver)
        tensors = Tensors.of_layout(trainer.layout)
        x, extras = read_vectors(message.content, tensors, who)
        trainer.seed = request.seed
        if keeps_secret(context):
            request = request._replace(batch_size=floors.own_batch(samples, request.steps, request.batch_size))
            trainer.seed = secret_seed(context, request, x, extras.sent)
        upload = upload_of(request, tensors.layout)
        memory = _recall(context, request, extras, x.size) if solver.memory_kind else None
        kept = _kept(context, request) if upload.keeps else None
        answers = participate(
            trainer,
            x,
            _job(request, memory, extras.sent),
            upload,
            None if request.budget is None else np.array([request.budget]),
            None if kept is None else Kept(kept[None], np.ones(1, bool)),
        )
        if memory is not None and answers.memory_change is not None:
            _keep_memory(context, request, memory, memory + answers.memory_change[0])
        payload = None
        if answers.parcels is not None:
            payload = answers.parcels[0].payload
            _keep(context, request, kept, answers.parcels[0].kept)
        update, *numbers = (column[0] for column in answers.trained[:-1])
        names = Trained._fields[1:-1]
        reported = {name: float(number) for name, number in zip(names, numbers, strict=True)}
        about = Answer(samples, request.steps, **reported)
        content = answer(about, tensors, update, payload)
        if payload is None and (mods or request.whole):
            content = with_model(content, message.content["arrays"], x, update, tensors, solver.memory_kind)  # pyright: ignore[reportArgumentType]
        return Message(content, reply_to=message)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        """Measure the model on all of this client's test samples, or on its training samples if it has no others."""
        floors.check_evaluation()
        who, of = identity(context)
        trainer = trainers.trainer(who, of, 0, None)
        x, _ = read_vectors(message.content, Tensors.of_layout(trainer.layout), who)
        n = trainer.test_size
        floors.check_size(n)
        floors.count_answer(context)
        scores = trainer.task.finish(trainer.evaluate(x, 0, n))
        found: Any = {"num-examples": n} | {name: value for name, value in scores.items() if isinstance(value, float)}
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app


def dealt(data: str | Dataset, form: str | Partition = "dirichlet:0.5", seed: int = 0) -> LoadPartition:
    """Return a ``load_partition`` that deals a data set out among the clients, as the simulator does: for rehearsals.

    ``data`` and ``form`` are those of ``fedweave run --data --partition``, or of an ``Experiment``.
    """

    def load_partition(who: int, of: int) -> Dataset:
        whole = load(data) if isinstance(data, str) else data
        deal = partition.parse(form, of) if isinstance(form, str) else form
        shares = deal.split(whole, rng_for(seed, 0, Stream.PARTITION))
        mine, nothing = whole.take(shares.train[who]), np.zeros(0, np.int64)
        return replace(mine, test_x=rows(whole.x, nothing), test_y=rows(whole.y, nothing), test_group=None)

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

    def __init__(self, model: Model, load_partition: LoadPartition, device: str, task: Task | None, floors: Floors):
        self._model, self._load, self._device, self._task = model, load_partition, device, task
        self._floors = floors
        self._data: dict[int, Dataset] = {}
        self._made: dict[int, tuple[Any, TorchTrainer]] = {}

    def data(self, who: int, of: int) -> Dataset:
        if who not in self._data:
            data = as_dataset(self._load(who, of), who)
            features = isinstance(self._model, str) and not models.takes_tokens(self._model, *data.sample)
            self._data[who] = data.as_features() if features else data
        self._floors.check_size(len(self._data[who]))
        return self._data[who]

    def trainer(self, who: int, of: int, seed: int, solver: Solver | None) -> TorchTrainer:
        """Return the trainer of a client; the last one is kept, for the next round."""
        # Torch takes seconds to load, and a client that only says hello does not need it.
        from fedweave.local.solvers import SGD
        from fedweave.local.torch.device import choose_device
        from fedweave.local.torch.flat_module import build_module
        from fedweave.local.torch.trainer import TorchTrainer

        found = self._made.get(who)
        if found is None or found[0] != (seed, solver):
            data = self.data(who, of)
            data = data if length(data.test_y) else replace(data, test_x=data.x, test_y=data.y, test_group=data.group)
            parts: Any = {who: np.arange(len(data))}
            mine, device = ClientData.of(data, parts), choose_device(self._device)[0]
            module = build_module(factory(self._model, data), seed, mine)
            found = (seed, solver), TorchTrainer(module, mine, solver or SGD(), seed, device, self._task)
            self._made[who] = found
        return found[1]


def as_dataset(found: Any, who: int) -> Dataset:
    """Return a client's samples as a data set."""
    if isinstance(found, Dataset):
        data = found
    elif isinstance(found, tuple) and len(found) == 2:
        data = from_pair(*found, name="partition")
    else:
        raise BadInput(f"load_partition must return a Dataset or a pair of arrays (x, y). It returned {type(found)}.")
    if not len(data):
        raise BadInput(f"Client {who} has no samples; it needs some.")
    return data


def factory(model: Model, data: Dataset) -> Callable[[], nn.Module]:
    """Return a function that makes the model for this data."""
    if not isinstance(model, str):
        return model
    name = models.default_for(*data.sample) if model == "auto" else model
    models.check(name, *data.sample)
    return lambda: models.build(name, *data.sample)


def _job(request: TrainRequest, memory: Array | None, broadcast: Array | None) -> Jobs:
    """Return the request as a trainer takes it."""
    return Jobs(
        client=np.array([request.client]),
        steps=np.array([request.steps]),
        batch_size=np.array([request.batch_size]),
        dispatch=np.array([request.round]),
        lr=np.array([float(request.lr)]),
        memory=None if memory is None else memory[None],
        broadcast=broadcast,
        share=np.array([request.share]),
        measure=request.measure,
    )


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
        if digest(extras.memory) != request.memory:
            raise BadInput("The server sent another memory than its request names.")
        return extras.memory
    for name in (KEPT, LEARNED):
        record = context.state.array_records.get(name)
        if record is not None and request.memory in record:
            return opened("memory", record[request.memory]).copy()
    raise BadInput(f"Client {request.client} has lost what it remembered; the server will send it next time.")


def _keep_memory(context: Context, request: TrainRequest, before: Array, after: Array) -> None:
    """Keep the memory before this answer and the one after it."""
    context.state[KEPT] = ArrayRecord({request.memory: packed(before)} if request.memory else {})
    context.state[LEARNED] = ArrayRecord({digest(after): packed(after)})


def _kept(context: Context, request: TrainRequest) -> Array | None:
    """Return what this client's upload kept, or None.

    As with memories the server says which of two holds, but it does not know the values: they are named by the round
    of the answer they belong to. A client that has lost them takes the whole model, as everyone does now and then.
    """
    for name in UPLOAD if request.kept else ():
        record = context.state.array_records.get(name)
        if record is not None and str(request.kept) in record:
            return opened("kept", record[str(request.kept)])
    return None


def _keep(context: Context, request: TrainRequest, before: Array | None, after: Array | None) -> None:
    """Keep what the upload kept before this answer, and what it keeps if this answer is received."""
    pairs = zip(UPLOAD, (str(request.kept), str(request.round)), (before, after), strict=True)
    for record, name, values in pairs:
        context.state[record] = ArrayRecord({} if values is None else {name: packed(values)})
