"""Clients that attack: what they send instead of their updates, or do to their own training samples.

A simulated adversary stays within its own half of a round: its samples are changed once, before training, and its
updates by the trainer that it has. The server sees nothing but answers, as it would in a real fleet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array
from fedweave.core.settings import BadInput, choice, settings
from fedweave.data.dataset import Dataset
from fedweave.local.trainer import Jobs, Trained, Trainer

Share = Annotated[float, Field(ge=0, le=1)]


@settings
class Adversary(ABC):
    """A random ``share`` of the clients attacks, the same in all rounds; or those that ``clients`` names."""

    share: Share = 0.2
    clients: tuple[NonNegativeInt, ...] | None = None

    def attackers(self, clients: int, seed: int) -> Array:
        """Return which of the clients attack (N,) bool."""
        found = np.zeros(clients, bool)
        if self.clients is None:
            found[rng_for(seed, 0, Stream.ATTACK).permutation(clients)[: round(self.share * clients)]] = True
        elif max(self.clients, default=0) >= clients:
            raise BadInput(f"{self} names client {max(self.clients)}, there are {clients}, counted from 0.")
        else:
            found[list(self.clients)] = True
        return found

    def poison(self, data: Dataset, parts: Sequence[Array], seed: int) -> Dataset:
        """Return the data with the training samples of the attackers changed; each sample belongs to one client."""
        return data

    @abstractmethod
    def corrupt(self, updates: Array) -> Array:
        """Return what attackers send instead of their updates (c, D)."""


@settings
class SignFlip(Adversary):
    """Send −``times`` the update: uphill instead of down."""

    times: PositiveFloat = 1.0

    def corrupt(self, updates: Array) -> Array:
        return updates * updates.dtype.type(-self.times)


@settings
class Scaling(Adversary):
    """Send ``times`` the update, and so outvote the others."""

    times: PositiveFloat = 10.0

    def corrupt(self, updates: Array) -> Array:
        return updates * updates.dtype.type(self.times)


@settings
class LabelFlip(Adversary):
    """Train on wrong labels: class c counts as C − 1 − c, or only ``source`` as ``target`` if these are given."""

    source: NonNegativeInt | None = None
    target: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ValueError("Give both 'source' and 'target' to LabelFlip, or neither.")

    def poison(self, data: Dataset, parts: Sequence[Array], seed: int) -> Dataset:
        labels = _labels(self, data, self.source, self.target)
        wrong = data.classes - 1 - np.arange(data.classes)
        if self.source is not None and self.target is not None:
            wrong = np.arange(data.classes)
            wrong[self.source] = self.target
        mine = _samples_of(self.attackers(len(parts), seed), parts)
        changed = labels.copy()
        changed[mine] = wrong[labels[mine]]
        return replace(data, y=changed)

    def corrupt(self, updates: Array) -> Array:
        return updates


@settings
class Backdoor(Adversary):
    """Train a trigger: a bright square in a corner of ``pixels`` × ``pixels`` means class ``target``.

    Attackers add the trigger to the share ``poisoned`` of their samples and label these as the target, so the model
    stays right without the trigger. ``times`` multiplies their updates, so that the trigger survives the average
    (model replacement, Bagdasaryan et al.). ``triggered`` is the test data by which the success is measured.
    """

    target: NonNegativeInt = 0
    pixels: PositiveInt = 3
    poisoned: Share = 0.5
    times: PositiveFloat = 1.0

    def poison(self, data: Dataset, parts: Sequence[Array], seed: int) -> Dataset:
        labels, x, chosen = _labels(self, data, self.target).copy(), self._inputs(data).copy(), list[Array]()
        for client in np.flatnonzero(self.attackers(len(parts), seed)).tolist():
            mine = np.asarray(parts[client])
            rng = rng_for(seed, 1, Stream.ATTACK, client)
            chosen.append(rng.permutation(mine)[: round(self.poisoned * mine.size)])
        where = np.concatenate([np.zeros(0, np.int64), *chosen])
        x[where] = self._stamped(x[where], x.max(initial=0))
        labels[where] = self.target
        return replace(data, x=x, y=labels)

    def triggered(self, data: Dataset) -> Dataset:
        """Return the data with only test samples of other classes, with the trigger and the label of the target.

        A model's accuracy on them is the success rate of the attack.
        """
        _labels(self, data, self.target)
        others, x = np.flatnonzero(data.test_y != self.target), self._inputs(data)
        stamped = self._stamped(data.test_x[others], x.max(initial=0))
        return replace(data, test_x=stamped, test_y=np.full(others.size, self.target), test_group=None)

    def corrupt(self, updates: Array) -> Array:
        return updates * updates.dtype.type(self.times)

    def _inputs(self, data: Dataset) -> Array:
        if not isinstance(data.x, np.ndarray) or data.x.dtype == np.int64:
            raise BadInput(f"{type(self).__name__} needs images or features in one array. {data.name} has none.")
        return data.x

    def _stamped(self, x: Array, value: Any) -> Array:
        """Return samples with the last pixels, or the last of their features, as bright as the brightest."""
        x, n = x.copy(), self.pixels
        x[(..., slice(-n, None), slice(-n, None)) if x.ndim > 2 else (..., slice(-n, None))] = value
        return x


def _labels(adversary: Adversary, data: Dataset, *named: int | None) -> Array:
    """Return the classes of the samples, after making sure that they have some, and those that are named."""
    if data.labels is None or any(c is not None and c >= data.classes for c in named):
        raise BadInput(f"{adversary} needs classes, and those that it names. {data.name} has {data.classes}.")
    return data.labels


def _samples_of(clients: Array, parts: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(parts[c]) for c in np.flatnonzero(clients).tolist())])


def with_adversary(trainer: Trainer, adversary: Adversary | None, clients: int) -> Trainer:
    """Return the trainer in which the adversary's clients send what it makes of their updates."""
    if adversary is None:
        return trainer
    return cast(Trainer, _Corrupted(trainer, adversary, adversary.attackers(clients, trainer.seed)))


class _Corrupted:
    """A trainer like the one inside, some of whose clients attack."""

    def __init__(self, trainer: Trainer, adversary: Adversary, attackers: Array):
        self._trainer, self._adversary, self._attackers = trainer, adversary, attackers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def train(self, x: Array, jobs: Jobs) -> Trained:
        trained = self._trainer.train(x, jobs)
        rows = np.flatnonzero(self._attackers[jobs.client])
        if not rows.size:
            return trained
        updates = trained.updates.copy()
        updates[rows] = self._adversary.corrupt(updates[rows])
        return trained._replace(updates=updates)


class Form(NamedTuple):
    """How an adversary is written on the command line."""

    make: Callable[..., Adversary]
    form: str
    about: str


FORMS = {
    "sign-flip": Form(lambda share, *v: SignFlip(share, None, *v), "sign-flip:SHARE:TIMES", "−TIMES the update"),
    "scaling": Form(lambda share, *v: Scaling(share, None, *v), "scaling:SHARE:TIMES", "TIMES the update"),
    "label-flip": Form(lambda share, *v: LabelFlip(share, None, *v), "label-flip:SHARE", "wrong labels"),
    "backdoor": Form(lambda share, *v: Backdoor(share, None, *v), "backdoor:SHARE:TARGET", "a trigger means TARGET"),
}


def parse(text: str) -> Adversary:
    """Turn a written form such as ``sign-flip:0.2`` into an adversary; what follows the share may be left out."""
    kind, *values = text.strip().split(":")
    if kind not in FORMS:
        forms = ", ".join(form.form for form in FORMS.values())
        raise BadInput(f"{choice('adversary', kind, FORMS)} Forms: {forms}.")
    form = FORMS[kind]
    if not 1 <= len(values) <= form.form.count(":"):
        raise BadInput(f"The adversary {text!r} has too few or too many values. Write {form.form}.")
    try:
        return form.make(*values)  # settings turn the written numbers into numbers
    except BadInput as e:
        raise BadInput(*e.problems, f"An adversary of this kind is written {form.form}.") from None
