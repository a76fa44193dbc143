"""Partitions of a data set among clients, as positions in it; nothing is copied.

Every partition depends only on the generator it is given, assigns every training sample at most once, never leaves
a client empty, and gives each client test samples in its own label proportions (natural clients: their own).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveInt

from fedweave.core import plugins
from fedweave.core.settings import BadInput, choice, settings
from fedweave.data.arrays import imbalance as imbalance
from fedweave.data.columns import Array
from fedweave.data.dataset import Dataset
from fedweave.data.deal import Shares as Shares
from fedweave.data.deal import (
    add_test_samples,
    apportion,
    by_group,
    by_owner,
    deal,
    dirichlet,
    draw_subset,
    evenly,
    fill_up,
    share_classes,
    shuffled_by,
)
from fedweave.data.deal import label_counts as label_counts

CLIENTS = 20  # where a written form comes without a number of clients
ALPHA = 0.5  # of classes that are dealt without being told how
MOST_DRAWS = 1000  # of a Dirichlet distribution, until all clients have enough
Share = Annotated[float, Field(gt=0, lt=1)]


@settings
class Partition(ABC):
    """A rule that divides a data set among clients; ``clients`` is None only where the data determines the number."""

    clients: PositiveInt | None

    @abstractmethod
    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        """Divide training and test samples among the clients."""


@settings
class IID(Partition):
    """All samples shuffled and dealt equally; sizes differ by one at most."""

    clients: PositiveInt

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        _check_size(self, data, self.clients)
        order, owner = rng.permutation(len(data)), evenly(len(data), self.clients)
        return add_test_samples(data, by_owner(order, owner, self.clients), rng)


@settings
class Dirichlet(Partition):
    """Each class is dealt in proportions drawn from Dirichlet(α): small α, few classes per client.

    A client with fewer than ``min_samples`` is filled up one sample at a time, each taken from the most common label
    of the largest client. With ``fill=False`` the proportions are drawn again until all clients have enough.
    """

    clients: PositiveInt
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    min_samples: PositiveInt = 1
    fill: bool = True

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        labels, sizes = _class_sizes(self, data)
        _check_size(self, data, self.clients * self.min_samples)
        for _ in range(1 if self.fill else MOST_DRAWS):
            drawn = [apportion(dirichlet(self.alpha, self.clients, rng), int(n)) for n in sizes]
            counts = np.stack(drawn, axis=1)
            if self.fill or counts.sum(1).min() >= self.min_samples:
                counts = fill_up(counts, self.min_samples)
                return add_test_samples(data, deal(labels, counts, rng), rng)
        raise BadInput(
            f"{self}: in {MOST_DRAWS} draws some client always had fewer than {self.min_samples} samples. Use fewer "
            "clients, a larger alpha, or fill=True."
        )


@settings
class Shards(Partition):
    """Samples sorted by label and cut into equal blocks, ``per_client`` random ones each (McMahan 2017)."""

    clients: PositiveInt
    per_client: PositiveInt = 2

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        labels, _ = _class_sizes(self, data)
        blocks = self.clients * self.per_client
        _check_size(self, data, blocks)
        order, owner = shuffled_by(labels, rng), np.empty(blocks, np.int64)
        owner[rng.permutation(blocks)] = np.arange(blocks) // self.per_client
        return add_test_samples(data, by_owner(order, owner[evenly(len(data), blocks)], self.clients), rng)


@settings
class Classes(Partition):
    """Each client owns ``low`` classes, or a random number ``low``..``high``; owners share a class equally.

    ``deal`` "even": classes are drawn at random among those with the fewest owners, so client sizes stay even and no
    class is left out, unless there are more classes than all clients together can own. "random": each client draws its
    classes by itself (FedDD), so chance decides how many own a class; the samples of one without owners are unused.
    ``rare``: what is scarce of classes with few samples (``imbalance``). "samples": they have as many owners as others,
    each with fewer samples. "owners": the number of owners is in proportion to the samples, and each has as many.
    """

    clients: PositiveInt
    low: PositiveInt
    high: PositiveInt | None = None
    deal: Literal["even", "random"] = "even"
    rare: Literal["samples", "owners"] = "samples"

    def __post_init__(self) -> None:
        if self.high is not None and self.high < self.low:
            raise ValueError(f"The 'high' parameter of Classes must be at least low = {self.low}. Got {self.high}.")

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        labels, sizes = _class_sizes(self, data)
        _check_size(self, data, self.clients)
        present, most = np.flatnonzero(sizes), self.high or self.low
        if most > len(present):
            raise BadInput(f"{self} asks for {most} classes per client, {data.name} has {len(present)}. Use fewer.")
        number = rng.integers(self.low, most, self.clients, endpoint=True)
        owned, owners = np.zeros((self.clients, data.classes), bool), np.zeros(len(present), np.int64)
        wanted = sizes[present] / sizes[present].max() if self.rare == "owners" else np.ones(len(present))
        for mine, k in zip(owned, number, strict=True):
            if self.deal == "random":
                drawn = draw_subset(wanted, int(k), rng)
            else:  # the fewest owners so far, of as many as are wanted
                drawn = np.lexsort((rng.random(len(present)), (owners + 0.5) / wanted, owners > 0))[:k]
            owners[drawn] += 1
            mine[present[drawn]] = True
        return add_test_samples(data, deal(labels, _class_counts(self, owned, sizes), rng), rng)


@settings
class OneClass(Partition):
    """Each client has one class; the clients of a class share it equally.

    With ``order="mixed"`` the classes alternate, so any C consecutive clients own all of them and a slow first half of
    the clients has the same classes as a fast second half. With "sorted" neighbours own the same class, so the halves
    have different classes and no client of the other half can make up for one that is lost.
    """

    clients: PositiveInt
    order: Literal["mixed", "sorted"] = "mixed"

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        labels, sizes = _class_sizes(self, data)
        _check_size(self, data, self.clients)
        if self.order == "mixed":
            return Classes(self.clients, 1).split(data, rng)
        present = np.flatnonzero(sizes)
        owned = np.zeros((self.clients, data.classes), bool)
        owned[np.arange(self.clients), present[np.arange(self.clients) * len(present) // self.clients]] = True
        return add_test_samples(data, deal(labels, _class_counts(self, owned, sizes), rng), rng)


@settings
class Split(Partition):
    """Few clients own most data: the share ``owners`` of the clients gets the ``share`` of the samples.

    Sorted by label (labels in random order; by target in regression), the first part goes in equal blocks to
    the owners; the rest is shuffled and dealt equally to the others. Fashion-MNIST with 109 clients and
    owners 9/109 is DELTA's Split-FashionMNIST: 9 clients with 6,000 images of one label and 100 with 60.
    """

    clients: PositiveInt
    owners: Share = 0.1
    share: Share = 0.9

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        n, owners = len(data), round(self.owners * self.clients)
        others, first = self.clients - owners, round(self.share * n)
        if owners < 1 or others < 1:
            raise BadInput(f"{self} has {owners} owners and {others} others. Use more clients or other owners.")
        if first < owners or n - first < others:
            raise BadInput(
                f"{self} deals {first} samples to {owners} owners and {n - first} to {others} others, "
                "which is less than one each. Use fewer clients or another share."
            )
        if data.labels is not None:
            key = rng.permutation(data.classes)[data.labels]
        elif isinstance(data.y, np.ndarray) and data.y.ndim == 1:
            key = data.y
        else:
            raise BadInput(f"{self} sorts by label, but {data.name} has no single one per sample. Use IID or Natural.")
        order = shuffled_by(key, rng)
        order[first:] = rng.permutation(order[first:])
        owner = np.concatenate([evenly(first, owners), owners + evenly(n - first, others)])
        return add_test_samples(data, by_owner(order, owner, self.clients), rng)


@settings
class Natural(Partition):
    """The data's own clients (writers, celebrities): all of them, or a random ``clients`` of them."""

    clients: PositiveInt | None = None

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        if data.group is None:
            raise BadInput(
                f"{data.name} has no natural clients. Use femnist, celeba, shakespeare, synthetic or another partition."
            )
        groups = np.unique(data.group)
        if self.clients is not None and self.clients > len(groups):
            raise BadInput(f"{self} asks for {self.clients} clients, {data.name} has {len(groups)}. Use fewer.")
        if self.clients is not None:
            groups = np.sort(rng.choice(groups, self.clients, replace=False))
        train = by_group(data.group, groups)
        if data.test_group is None:
            return add_test_samples(data, train, rng)
        return Shares(train, by_group(data.test_group, groups))


@settings
class Auto(Partition):
    """The data's own clients if it has them; else classes dealt by Dirichlet(0.5), or all equally without classes."""

    clients: PositiveInt | None = None

    def chosen(self, data: Dataset) -> Partition:
        """Return the partition that this data gets."""
        if data.group is not None:
            return Natural(self.clients)
        clients = self.clients or CLIENTS
        return IID(clients) if data.labels is None else Dirichlet(clients, ALPHA)

    def split(self, data: Dataset, rng: np.random.Generator) -> Shares:
        return self.chosen(data).split(data, rng)


def _class_sizes(partition: Partition, data: Dataset) -> tuple[Array, Array]:
    """Return the classes of all samples, and how many there are of each."""
    labels = data.labels
    if labels is None:
        raise BadInput(f"{partition} deals by class, but {data.name} has no classes. Use IID, Split or Natural.")
    return labels, np.bincount(labels, minlength=data.classes)


def _class_counts(partition: Partition, owned: Array, sizes: Array) -> Array:
    """Return how many samples of each class each client gets; owners share a class equally."""
    counts = share_classes(owned, sizes)
    if not counts.any(axis=1).all():
        raise BadInput(
            f"{partition} leaves a client without samples: its classes have fewer samples than owners. "
            "Use fewer clients, more classes per client, or more data."
        )
    return counts


def _check_size(partition: Partition, data: Dataset, needed: int) -> None:
    if len(data) < needed:
        raise BadInput(
            f"{partition} needs at least {needed} training samples, {data.name} has {len(data)}. "
            "Use fewer clients or more data."
        )


class Form(NamedTuple):
    """How a partition is written on the command line."""

    make: Callable[..., Partition]
    form: str
    about: str


def _classes(clients: int, number: str, *deal_and_rare: str) -> Classes:
    low, *high = number.split("-", 1)
    given: tuple[Any, ...] = (low, *(high or [None]), *deal_and_rare)
    return Classes(clients, *given)


FORMS = {
    "auto": Form(
        Auto, "auto", "natural where the data has clients of its own, else dirichlet:0.5, or iid without classes"
    ),
    "iid": Form(IID, "iid", "shuffled and dealt equally"),
    "dirichlet": Form(Dirichlet, "dirichlet:ALPHA", "classes dealt by Dirichlet(ALPHA): dirichlet:0.1"),
    "shards": Form(Shards, "shards:K", "sorted by label, K equal blocks per client: shards:2"),
    "classes": Form(
        _classes,
        "classes:K:DEAL:RARE or classes:K or classes:LOW-HIGH",
        "K classes per client: classes:2-10; classes:3:random draws them without regard to the others; "
        "classes:3:random:owners: classes with few samples have few owners",
    ),
    "one-class": Form(OneClass, "one-class:sorted or one-class", "one class per client; sorted: neighbours share one"),
    "split": Form(Split, "split:OWNERS:SHARE", "few clients own most samples: split:0.1:0.9"),
    "natural": Form(Natural, "natural", "the data's own clients: femnist, celeba, shakespeare, synthetic"),
}


def forms() -> dict[str, str]:
    """Return the meaning of each written form."""
    return {form.form: form.about for form in FORMS.values()}


def parse(text: str, clients: int | None = None) -> Partition:
    """Turn a written form such as ``dirichlet:0.1`` into a partition of ``clients`` clients.

    Without a number there are ``CLIENTS``, or as many as the data itself has if they are its own.
    """
    kind, *values = text.strip().split(":")
    if kind not in FORMS:
        if plugin := plugins.plugin_text("partitions", text.strip()):
            given = {"clients": clients or CLIENTS}
            return plugins.make(
                plugin,
                Partition,
                "a Partition",
                lambda f: f(**given) if clients or plugins.needs(f, "clients") else f(),
            )
        unknown = choice("partition", kind, [*FORMS, *plugins.offered("partitions")])
        raise BadInput(f"{unknown} Forms: {', '.join(forms())}.{plugins.hint(text)}")
    form = FORMS[kind]
    if clients is None and kind not in ("auto", "natural"):
        clients = CLIENTS
    if len(values) > form.form.split(" ")[0].count(":"):
        raise BadInput(f"The partition {text!r} has too many values. Write {form.form}.")
    if len(values) < min(way.count(":") for way in form.form.split(" or ")):
        raise BadInput(f"The partition {text!r} lacks a value. Write {form.form}.")
    try:
        return form.make(clients, *values)  # settings turn the written numbers into numbers
    except BadInput as e:
        if all(re.fullmatch(r"[-+.\deE]+", value) for value in values):  # numbers where numbers belong
            raise
        raise BadInput(*e.problems, f"A partition of this kind is written {form.form}.") from None
