"""What all compressing codecs have in common: what is trained is compressed, buffers travel as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from fedweave.core.records import Array
from fedweave.core.roles import Buffer, Parcel
from fedweave.core.settings import BadInput
from fedweave.upload.codec import ClientModel


class Compressor(ABC):
    """The ``size``, ``encode`` and ``decode`` of an Upload, from three functions of a vector.

    Declare ``class Mine(Compressor, Upload)``.

    Only trained entries are compressed. Buffers (batch-norm averages) travel whole behind them: they are few, their
    sizes would crowd out the weights of a top-k, and a variance with noise could become negative. Numbers have the
    model's precision, float32 for every network.

    A value that is not finite must not get lost on the way, so that admission can refuse the update: ``decode`` lets
    such values through, and ``compress`` must send one if there is any.
    """

    @abstractmethod
    def compressed_size(self, dim: int, itemsize: int) -> int:
        """Return the bytes of a compressed vector of ``dim`` numbers of ``itemsize`` bytes."""

    @abstractmethod
    def compress(self, values: Array, rng: np.random.Generator) -> bytes:
        """Return a vector (d,) as so many bytes; ``rng`` lies at the client's own address."""

    @abstractmethod
    def expand(self, payload: Buffer, out: Array) -> None:
        """Write the vector into ``out`` (d,), which is zero; ``payload`` has the right length and nothing else."""

    def size(self, model: ClientModel, budget: float | None) -> int:
        """Return the exact length of the payload."""
        trained = model.layout.parameters
        buffers = model.dtype.itemsize * (model.layout.dim - trained)
        return self.compressed_size(trained, model.dtype.itemsize) + buffers

    def encode(
        self,
        update: Array,
        x: Array,
        start: Array,
        budget: float | None,
        kept: Array | None,
        rng: np.random.Generator,
        model: ClientModel,
    ) -> Parcel:
        """Return the compressed update."""
        update, trained = np.ascontiguousarray(update, model.dtype), model.layout.parameters
        return Parcel(self.compress(update[:trained], rng) + as_bytes(update[trained:]))

    def decode(self, payload: Buffer, model: ClientModel) -> tuple[Array, Array | None]:
        """Return the update; entries that were not sent are zero."""
        trained, size, wanted = model.layout.parameters, len(payload), self.size(model, None)
        if size != wanted:
            raise BadInput(f"An update by {type(self).__name__} has {wanted} bytes. Got {size}.")
        view, update = memoryview(payload), np.zeros(model.layout.dim, model.dtype)
        buffers = size - model.dtype.itemsize * (model.layout.dim - trained)
        self.expand(view[:buffers], update[:trained])
        update[trained:] = as_numbers(view[buffers:], model.dtype)
        return update, None


def as_bytes(values: Array) -> bytes:
    """Return numbers as they travel, little-endian."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def as_numbers(payload: Buffer, dtype: np.dtype) -> Array:
    """Return what ``as_bytes`` wrote."""
    return np.frombuffer(payload, dtype.newbyteorder("<"))
