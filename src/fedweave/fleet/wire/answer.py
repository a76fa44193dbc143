"""What clients answer: an update, whole or in part, and a few numbers; read with every bound checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedweave.core.records import Array
from fedweave.core.roles import Buffer, Upload
from fedweave.core.settings import BadInput, brief
from fedweave.fleet.wire.tensors import Tensors, Unfit, opened, packed, records_of
from fedweave.round.admission import wrong_number
from fedweave.upload.codec import ClientModel, check_decoded

LOSS_NAMES = ("loss", "train-loss", "train_loss")
MOST_NUMBERS, MOST_NAME = 1000, 200  # of an answer, and characters of the name of each
MOST_EVALUATION = 2**20  # bytes


def read_loss(content: RecordDict) -> float:
    """Return the loss that a client tells."""
    reported = records_of(content, MetricRecord).get("loss", {}).get("loss")
    if wrong := wrong_number("loss", reported, *LIMITS["loss"]):
        raise Unfit(wrong)
    return float(cast(float, reported))


def check_evaluation(content: RecordDict, most_samples: float, key: str = "num-examples") -> None:
    """Refuse an evaluation by the measure of every answer: few numbers, all finite, and as many samples as may be.

    ``key`` is the number by which it is weighed.
    """
    if (found := size(content)) > MOST_EVALUATION:
        raise Unfit(f"sent {found} bytes to say how the model does, more than {MOST_EVALUATION}")
    reported = _all_numbers(records_of(content, MetricRecord))
    least = 1 if key == "num-examples" else sys.float_info.min  # other weights may be small
    if wrong := wrong_number(key, reported.get(key), least, most_samples):
        raise Unfit(wrong)


class Answer(NamedTuple):
    """What a client reports beside its update."""

    samples: float
    steps: float = float("nan")
    loss: float = float("nan")  # mean over the local steps
    first_gradient: float = float("nan")  # norm, at the model that was sent
    variance: float = float("nan")  # of its gradients on the way, where it was asked for
    first_loss: float = float("nan")  # of the first batch, at the model that was sent
    squared_loss: float = float("nan")  # mean squared loss of the samples over the local steps


def answer(about: Answer, tensors: Tensors, update: Array, payload: Buffer | None = None) -> RecordDict:
    """Return what a client sends: the displacement y − x by name, or an upload's payload, and a few numbers."""
    fields = {name.replace("_", "-"): float(value) for name, value in about._asdict().items() if value == value}
    fields["num-examples"] = fields.pop("samples")
    records: dict[str, Any] = {"metrics": MetricRecord(dict(fields))}
    if payload is None:
        return RecordDict({"update": tensors.record(update), **records})
    values = np.frombuffer(payload, np.uint8)
    return RecordDict({"payload": ArrayRecord({"payload": packed(values)}), **records})


def read_answer(
    content: RecordDict, tensors: Tensors, x: Array, out: Array, most_samples: float, expected: Expected | None = None
) -> Answer:
    """Write a client's update into ``out`` and return the rest, or say in ``Unfit`` why it is refused.

    A client of ours sends the displacement; any other app sends its model, from which the displacement follows. Where
    an upload has a payload ``expected``, that is decoded instead.
    """
    about = _numbers(records_of(content, MetricRecord), most_samples)
    sets = records_of(content, ArrayRecord)
    if len(sets) != 1:
        raise Unfit(f"sent {len(sets)} sets of arrays instead of one")
    ((name, record),) = sets.items()
    if expected is not None:
        out[...] = expected.read(record)
    else:
        tensors.read(record, out, minus=None if name == "update" else x)
    return about


class Expected(NamedTuple):
    """The payload that a client must send."""

    upload: Upload
    model: ClientModel
    budget: float | None
    sent: Array | None = None  # (D,) bool: set to which entries came, where the upload masks

    def read(self, record: ArrayRecord) -> Array:
        """Return the update in a record; its length is compared before it is decoded."""
        if list(record) != ["payload"]:
            raise Unfit("sent something else than the payload of its upload")
        found = opened("payload", record["payload"])
        if found.dtype != np.uint8 or found.ndim != 1:
            raise Unfit(f"sent its payload as {brief(str(found.dtype))}{found.shape}, which is not bytes")
        if found.size != (size := self.upload.size(self.model, self.budget)):
            raise Unfit(f"sent a payload of {found.size} bytes instead of {size}")
        try:
            update, sent = check_decoded(self.upload.decode(found.data, self.model), self.upload, self.model)
        except Exception as e:  # a codec of one's own may meet rubbish with errors of any kind
            why = str(e) if isinstance(e, BadInput) else type(e).__name__
            raise Unfit(f"sent a payload that cannot be decoded: {brief(why, 300)}") from None
        if self.sent is not None:
            self.sent[...] = True if sent is None else sent
        return update


MOST = 1e60  # of any number
LIMITS = {
    "steps": (1, 2**31),
    "loss": (-1e30, 1e30),
    "first_gradient": (0, 1e30),
    "variance": (0, 1e30),
    "first_loss": (-1e30, 1e30),
    "squared_loss": (0, MOST),
}


def _all_numbers(records: Mapping[str, MetricRecord]) -> dict[str, Any]:
    """Return all numbers of an answer by their names, also those that only the app knows."""
    reported: dict[str, Any] = {name: value for record in records.values() for name, value in record.items()}
    lists = {name: value if isinstance(value, list) else [value] for name, value in reported.items()}
    if (found := sum(map(len, lists.values()))) > MOST_NUMBERS or len(lists) > MOST_NUMBERS:
        raise Unfit(f"reports {max(found, len(lists))} numbers, more than {MOST_NUMBERS}")
    for name, values in lists.items():
        if len(name) > MOST_NAME:
            raise Unfit(f"reports a number with a name of {len(name)} characters, more than {MOST_NAME}")
        if wrong := next((wrong for v in values if (wrong := wrong_number(brief(name), v, -MOST, MOST))), ""):
            raise Unfit(wrong)
    return reported


def _numbers(records: Mapping[str, MetricRecord], most_samples: float) -> Answer:
    reported = _all_numbers(records)
    if wrong := wrong_number("num-examples", reported.get("num-examples"), 1, most_samples):
        raise Unfit(wrong)
    found = {name: reported.get(name.replace("_", "-")) for name in LIMITS}
    found["loss"] = next((reported[name] for name in LOSS_NAMES if name in reported), None)
    found = {name: value for name, value in found.items() if value is not None}
    for name, value in found.items():
        if wrong := wrong_number(name.replace("_", "-"), value, *LIMITS[name]):
            raise Unfit(wrong)
    return Answer(float(reported["num-examples"]), **{name: float(value) for name, value in found.items()})


def size(content: RecordDict) -> int:
    """Return the bytes of a message's content; Flower's own count does not take every setting that Flower sends."""
    reported = [*records_of(content, MetricRecord).values(), *records_of(content, ConfigRecord).values()]
    values = [(name, value) for record in reported for name, value in record.items()]
    arrays = sum(record.count_bytes() for record in records_of(content, ArrayRecord).values())
    return arrays + sum(len(name) + _bytes(value) for name, value in values)


def _bytes(value: Any) -> int:
    if isinstance(value, list):  # of one type
        return sum(map(_bytes, value)) if isinstance(next(iter(value), 0), str | bytes) else 8 * len(value)
    return len(value) if isinstance(value, str | bytes) else 8
