"""What a client insists on: no answer, and no difference of two, is by its form that of a few samples.

It is no privacy against models that are made to single samples out: that takes noise, or few answers.
"""

from __future__ import annotations

import hmac
import json
import secrets

from flwr.app import ConfigRecord, Context
from pydantic import PositiveInt

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, settings
from fedweave.fleet.wire.request import TrainRequest

SECRET = "fedweave.secret"  # a record of Context.state, which never leaves the node
ANSWERS = "fedweave.answers"  # another one: how many were given in this run
CLASSES = "fedweave.classes"  # another one: for how many classes the client has said how its samples cover them
OPEN = "secret-batches"  # in a node's configuration: false where the server may know which samples are in a batch
NO_EVALUATION = "This client does not evaluate models for others: flower.client(…, evaluate=True) allows it."


@settings
class Floors:
    """What a client insists on before it answers: what it sends must not be that of a few samples."""

    min_samples: PositiveInt
    min_steps: PositiveInt
    min_batch: PositiveInt
    evaluate: bool
    max_answers: PositiveInt | None = None  # in a run

    def check_size(self, samples: int) -> None:
        """Refuse to say anything about too few samples; not even how many there are."""
        if samples < self.min_samples:
            raise BadInput(
                f"This client has fewer samples than its min_samples={self.min_samples}: it does not answer."
            )

    def check_work(self, request: TrainRequest) -> None:
        """Refuse work whose outcome would be that of a few samples."""
        asked = {
            "min_steps": (request.steps, "steps"),
            "min_batch": (request.batch_size, "samples in a batch"),
            "min_samples": (request.steps * request.batch_size, "samples in all"),
        }
        for name, (found, what) in asked.items():
            if found < (least := getattr(self, name)):
                raise BadInput(f"The server asks for {found} {what}, this client trains with {name}={least} or more.")

    def check_evaluation(self) -> None:
        """Refuse a measurement that the client's operator has not allowed."""
        if not self.evaluate:
            raise BadInput(NO_EVALUATION)

    def count_answer(self, context: Context) -> None:
        """Refuse one answer more than this client gives in a run, or count this one."""
        if self.max_answers is None:
            return
        given = context.state.config_records.get(ANSWERS, {}).get("given", 0)
        if not isinstance(given, int) or given >= self.max_answers:
            raise BadInput(f"This client has given the max_answers={self.max_answers} answers of a run.")
        context.state[ANSWERS] = ConfigRecord({"given": given + 1})

    def own_batch(self, samples: int, steps: int, asked: int) -> int:
        """Return the batch size nearest to the one asked for, rather smaller, that cuts off no few samples.

        A pass over the samples must have no last batch of fewer than ``min_batch``: from that pass and an answer about
        all samples, the gradient of these few would follow.
        """
        asked, smallest = min(asked, samples), max(self.min_batch, -(-self.min_samples // steps))
        sizes = (*range(asked, smallest - 1, -1), *range(asked + 1, samples + 1))
        return next((size for size in sizes if not 0 < samples % size < self.min_batch), samples)


def check_classes(context: Context, classes: int) -> None:
    """Refuse to say how the samples cover other numbers of classes than the first: together these count the labels."""
    said = context.state.config_records.get(CLASSES, {}).get("classes")
    if said is None:
        context.state[CLASSES] = ConfigRecord({"classes": classes})
    elif said != classes:
        raise BadInput(f"This client has said how its samples cover {said} classes, and does not say it for {classes}.")


def keeps_secret(context: Context) -> bool:
    """Return whether the samples of this node's batches are its secret, as they are unless its operator says no."""
    value = context.node_config.get(OPEN, True)
    if not isinstance(value, bool):
        raise BadInput(f"A node's configuration has {OPEN}=true or false. This one has {value!r}.")
    return value


def secret_seed(context: Context, request: TrainRequest, x: Array, sent: Array | None) -> int:
    """Return the seed of a training that only this node knows, another one for every question.

    The batches of two questions then have nothing in common, in whatever the server makes them differ; a question that
    is repeated gets the same answer. ``sent`` is what comes with the model; a memory is named in the request.
    """
    record = context.state.config_records.get(SECRET)
    if record is None:
        record = context.state[SECRET] = ConfigRecord({"secret": secrets.token_bytes(32)})
    code = hmac.new(record["secret"], json.dumps(request).encode(), "sha256")  # pyright: ignore[reportArgumentType]
    for vector in (x, sent):
        code.update(b"" if vector is None else vector.tobytes())
    return int.from_bytes(code.digest()[:16], "big")
