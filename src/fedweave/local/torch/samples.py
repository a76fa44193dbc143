"""Samples as torch takes them: batches on the device, ready for the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.data.columns import Column, Items, as_array, each, length, rows
from fedweave.data.dataset import numbers, scaling
from fedweave.local.client_data import ClientData
from fedweave.tasks.task import Batch

Change = Callable[[Any], Any]  # of the inputs of a batch, as they are stored


class Samples:
    """A set of samples that hands out batches ready for the network."""

    def __init__(self, x: Column, y: Column, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device):
        self.device, self.size = device, length(y)
        self.x, self.y = (each(column, self._moved) for column in (x, y))
        axes = self.x.dim() if isinstance(self.x, Tensor) else 4
        self.scale = tuple(t.to(device) for t in scaling(mean, std, axes)) if std else None

    def _moved(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(self.device)

    def take(self, index: Tensor, change: Change | None = None) -> Batch:
        """Return inputs and labels at ``index``, of any shape; ``change`` is applied to the inputs as stored."""
        flat = index.reshape(-1)
        if isinstance(self.x, Items):
            x, y = self._read(self.x, flat)
        else:
            x, y = _select(self.x, flat), _select(self.y, flat)
        x = x if change is None else change(x)
        if self.scale is not None:
            x = x.to(torch.float32).mul_(self.scale[0]).add_(self.scale[1])
        return Batch(x, y) if index.dim() == 1 else Batch(*(_shaped(part, index) for part in (x, y)))

    def _read(self, items: Items, flat: Tensor) -> tuple[Any, Any]:
        """Return lazy samples: their own labels if they are collated, else those that are kept."""
        found = items.read(flat.tolist())
        if items.collate is not None:
            x, y = items.collate(found)
            return _on(x, self.device), _on(y, self.device)
        tensors = [s if isinstance(s, Tensor) else torch.from_numpy(as_array(s)) for s, *_ in found]
        x = torch.stack(tensors).to(self.device)
        if x.dtype == torch.uint8 and self.scale is not None:
            return x[:, None] if x.dim() == 3 else x, _select(self.y, flat)
        return numbers(x), _select(self.y, flat)


def _select(column: Any, index: Tensor) -> Any:
    if isinstance(column, Mapping):
        return {name: tensor.index_select(0, index) for name, tensor in column.items()}
    return column.index_select(0, index)


def _shaped(part: Any, index: Tensor) -> Any:
    """Return samples in the shape of their index, in front of their own."""
    if isinstance(part, Mapping):
        return {name: tensor.reshape(*index.shape, *tensor.shape[1:]) for name, tensor in part.items()}
    return part.reshape(*index.shape, *part.shape[1:])


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _on(tensor, device) for name, tensor in value.items()}
    return value.to(device) if isinstance(value, Tensor) else torch.as_tensor(value).to(device)


def run(module: nn.Module, x: Any) -> Any:
    """Return the module's output; several inputs go by keyword."""
    return module(**x) if isinstance(x, Mapping) else module(x)


def first_samples(data: ClientData, count: int) -> Batch:
    """Return so many training samples, on which a model can be tried; the first ones again if there are fewer."""
    index = np.arange(count) % length(data.y)
    samples = Samples(rows(data.x, index), rows(data.y, index), data.mean, data.std, torch.device("cpu"))
    return samples.take(torch.arange(count))
