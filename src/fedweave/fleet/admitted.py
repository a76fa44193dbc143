"""The answers of a strategy's round beside their updates: which of them count, by which weights, and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import WARNING

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.supercore import log

from fedweave.core.records import Array, Cohort, Failure, Replies
from fedweave.core.settings import BadInput
from fedweave.fleet.metrics import EXAMPLES, reported, wrong_weight
from fedweave.fleet.options import WRAPPER
from fedweave.fleet.wire.tensors import Tensors, fits, packed, records_of
from fedweave.method import Method


class Remainder:
    """What answers hold beside the arrays that are averaged."""

    def __init__(self, tensors: Tensors):
        self._tensors = tensors
        self.names = [name for name in tensors.types if name not in tensors.layout.names]  # that are not averaged
        self._noted = False  # that answers are cast

    def of(self, content: RecordDict) -> RecordDict:
        """Return an answer without the arrays that are averaged: of many large ones only their sum stays in memory."""
        arrays = dict[str, ArrayRecord]()
        for key, record in records_of(content, ArrayRecord).items():
            if not self._noted and (cast := self._tensors.cast(record)):
                self._noted, name = True, cast[0]
                found = record[name].dtype, self._tensors.types[name]
                log(WARNING, "fedweave: clients send %s as %s, which is cast to the model's %s", name, *found)
            arrays[key] = ArrayRecord({name: record[name] for name in self.names if name in record})
        return RecordDict({**arrays, **records_of(content, MetricRecord)})

    def medians(self, answers: Iterable[RecordDict], asked: ArrayRecord) -> ArrayRecord:
        """Return the arrays that are not averaged: the lower median of each entry that clients sent, or as it was."""
        if not self.names:
            return asked
        whole = [record for answer in answers if (record := self._whole(answer, asked))]  # one of each client
        if not whole:
            return asked
        stacks, middle = {n: np.stack([r[n].numpy() for r in whole]) for n in self.names}, (len(whole) - 1) // 2
        return ArrayRecord({n: packed(np.sort(stack, axis=0)[middle]) for n, stack in stacks.items()})

    def _whole(self, answer: RecordDict, asked: ArrayRecord) -> ArrayRecord | None:
        records = records_of(answer, ArrayRecord).values()
        return next((r for r in records if all(n in r and fits(n, r[n], asked[n]) for n in self.names)), None)


def with_examples(content: RecordDict, key: str, most: float) -> RecordDict:
    """Return an answer with a number of examples: an app that is weighted by another metric need not report it."""
    if key == EXAMPLES or EXAMPLES in reported(content) or wrong_weight(content, key, most):
        return content
    count = max(1, round(float(reported(content)[key])))
    return RecordDict({**content, "fedweave.examples": MetricRecord({EXAMPLES: count})})


def weighed(
    heard: Replies, cohort: Cohort, answers: Mapping[int, RecordDict], weights: Array, key: str, most: float
) -> Replies:
    """Note the weights that clients report under another name than that of their examples; refuse what is none."""
    if key == EXAMPLES:
        return heard
    rows = np.flatnonzero(heard.received).tolist()
    wrong = {row: why for row in rows if (why := wrong_weight(answers[row], key, most))}
    for row in set(rows) - set(wrong):
        weights[cohort.ids[row]] = float(reported(answers[row])[key])
    return _without(heard, cohort, wrong)


def complete(heard: Replies, cohort: Cohort, method: Method, first: bool) -> Replies:
    """Refuse answers without what the method must hear; where at first nobody tells it, the app is wrong."""
    for field in method.sampler.required_fields():
        silent, name = heard.received & np.isnan(getattr(heard, field)), field.replace("_", "-")
        if first and silent.any() and silent.sum() == heard.received.sum():
            raise BadInput(
                f"{method.name} needs the {name!r} of every client, and client {cohort.ids[silent][0]} does "
                f"not report it among its metrics. {WRAPPER}"
            )
        heard = _without(heard, cohort, dict.fromkeys(np.flatnonzero(silent).tolist(), f"no {name!r}"))
    return heard


def _without(heard: Replies, cohort: Cohort, wrong: Mapping[int, str]) -> Replies:
    """Return the answers without those of these rows, which are refused for these reasons."""
    if not wrong:
        return heard
    fine = np.array([row not in wrong for row in range(heard.received.size)], bool)
    refused = *heard.failures.refused, *(Failure(int(cohort.ids[row]), why) for row, why in wrong.items())
    return heard.keep_only(fine)._replace(failures=heard.failures._replace(refused=refused))
