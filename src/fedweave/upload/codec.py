"""The models that uploads are made of: the whole one, or the part of it that a client trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedweave.core.records import Array, Layout
from fedweave.core.returned import check_pair, check_vector, kind_of
from fedweave.core.roles import Parcel
from fedweave.core.settings import BadInput, brief
from fedweave.upload.channels import Channels, channels_of

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class ClientModel:
    """A model that some clients train: the whole one, or a part of it."""

    layout: Layout
    where: Array | None = None  # (d,) its entries in the whole model's vector; None: it is the whole
    coverage: Array | None = None  # (G,) share of all clients that have each of its channels; None: all have all
    dtype: np.dtype = FLOAT32

    @property
    def channels(self) -> Channels:
        """Its channels."""
        return channels_of(self.layout)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.layout.dim * self.dtype.itemsize

    def of(self, vectors: Array) -> Array:
        """Return this model's part (…, d) of whole vectors (…, D)."""
        return vectors if self.where is None else vectors[..., self.where]

    def whole(self, part: Array, dim: int, rest: Any) -> Array:
        """Return whole vectors (…, D) with this part in them, and ``rest`` elsewhere."""
        if self.where is None:
            return part
        out = np.full((*part.shape[:-1], dim), rest, part.dtype)
        out[..., self.where] = part
        return out


def check_decoded(found: Any, upload: Any, model: ClientModel) -> tuple[Array, Array | None]:
    """Return what an upload decoded, the update and which entries were sent, or say what is wrong with it."""
    dim = model.layout.dim
    update, sent = check_pair(found, upload, "decode", "the update and which entries were sent")
    check_vector(update, dim, upload, "decode")
    if sent is not None and not (isinstance(sent, np.ndarray) and sent.shape == (dim,) and sent.dtype == bool):
        who = f"{type(upload).__name__}.decode"
        raise BadInput(f"{who} must return which entries were sent as {dim} booleans. It returned {kind_of(sent)}.")
    return update, sent


def check_parcel(found: Any, upload: Any, model: ClientModel, budget: float | None) -> Parcel:
    """Return what an upload encoded, or say what is wrong with it."""
    who = type(upload).__name__
    if not isinstance(found, Parcel) or not isinstance(found.payload, bytes | bytearray):
        raise BadInput(f"{who}.encode must return a Parcel of bytes. It returned {brief(found)}.")
    sent, size = len(found.payload), check_size(upload.size(model, budget), upload)
    if sent != size:
        raise BadInput(f"{who}.encode must return as many bytes as {who}.size says, {size}. It returned {sent}.")
    if upload.keeps and found.kept is not None:
        check_vector(found.kept, model.layout.dim, upload, "encode")
    return found


def check_size(found: Any, upload: Any) -> int:
    """Return the bytes that an upload says its payload has."""
    if not isinstance(found, int | np.integer) or found < 0:
        raise BadInput(f"{type(upload).__name__}.size must return a whole number of bytes. It returned {brief(found)}.")
    return int(found)


@dataclass(frozen=True)
class ModelFleet:
    """Which client trains which model."""

    models: tuple[ClientModel, ...]
    kind: Array | None = None  # (N,) each client's place in ``models``; None: all train the first
    rolled: Callable[[int, int], Array] | None = None  # where model i lies in a dispatch; None: always in its place

    @classmethod
    def mixed(cls, models: tuple[ClientModel, ...], kind: Array) -> ModelFleet:
        """Return a fleet of several models, each with the share of clients that have its channels: FedDD's CR."""
        parent = max((m.channels.widths for m in models), key=sum)
        have = [np.zeros(width) for width in parent]
        for i, model in enumerate(models):
            for layer, width in zip(have, model.channels.widths, strict=True):
                layer[:width] += np.mean(kind == i)

        def coverage(model: ClientModel) -> Array:
            return np.concatenate([layer[:w] for layer, w in zip(have, model.channels.widths, strict=True)])

        return cls(tuple(ClientModel(m.layout, m.where, coverage(m), m.dtype) for m in models), kind)

    def of(self, client: int, dispatch: int) -> ClientModel:
        """Return the model that a client trains in this dispatch."""
        i = 0 if self.kind is None else int(self.kind[client])
        return self.models[i] if self.rolled is None else replace(self.models[i], where=self.rolled(i, dispatch))

    def sizes(self, ids: Array) -> Array:
        """Return the bytes of these clients' models (k,)."""
        if self.kind is None:
            return np.full(ids.size, self.models[0].nbytes)
        return np.array([m.nbytes for m in self.models])[self.kind[ids]]

    @cached_property
    def is_mixed(self) -> bool:
        """Whether any client trains less than the whole model."""
        return any(m.where is not None for m in self.models)
