"""Clients with narrower networks: each trains some channels of every layer of one model.

The first ones (HeteroFL, FedDD), or a window that moves on from round to round (FedRolex: Alam, Liu, Yan, Zhang). The
full text of FedRolex could not be had: the window is that of its authors' code, where it moves the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Layout
from fedweave.core.roles import Solver
from fedweave.core.settings import BadInput
from fedweave.local.client_data import ClientData
from fedweave.local.torch.flat_module import initial_vector
from fedweave.local.torch.trainer import TorchTrainer
from fedweave.local.trainer import Jobs, Trained
from fedweave.tasks.task import Sums, Task
from fedweave.upload.codec import ClientModel, ModelFleet

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)


def places(whole: Layout, part: Layout, shift: int = 0, every: bool = False) -> Array:
    """Return where a sub-model's entries (d,) lie in the whole model's vector: the first of every dimension.

    With a ``shift`` of j, where it has w of a layer's W channels, these are j mod W, …, (j + w − 1) mod W (FedRolex).
    ``every``: return all entries (D,), those of the sub-model's narrower dimensions in this order, around the end.
    """
    if set(whole.names) != set(part.names):
        other = sorted(set(whole.names) ^ set(part.names))[0]
        raise BadInput(f"A sub-model must have the layers of the whole model. {other!r} is in one of them alone.")
    ends = dict(zip(whole.names, np.cumsum(whole.sizes), strict=True))
    shapes, found, width = dict(zip(whole.names, whole.shapes, strict=True)), [], 1
    for name, shape in zip(part.names, part.shapes, strict=True):
        large = shapes[name]
        if len(shape) != len(large) or any(a > b for a, b in zip(shape, large, strict=True)):
            raise BadInput(f"A sub-model must not be wider than the whole model: {name} is {shape}, the whole {large}.")
        here = np.arange(prod(large)).reshape(large)
        for axis, (n, size) in enumerate(zip(shape, large, strict=True)):
            # A linear layer behind a flattened image has several inputs for each channel of the layer before.
            inputs = size // width if axis == 1 and len(large) == 2 and size % width == 0 else 1
            first = 0 if n == size else shift * inputs
            here = here.take((np.arange(size if every else n) + first) % size, axis)
        found.append(here.ravel() + ends[name] - prod(large))
        width = large[0] if len(large) > 1 else width
    return np.concatenate(found)


def shrunk(model: Callable[[], nn.Module], shape: tuple[int, ...], share: float) -> nn.Module:
    """Return the network with the first ``share`` of the channels of every layer but the last, which answers.

    Layers are narrowed in the order in which a sample of this ``shape`` meets them, each to the inputs that arrive: so
    it works for any module made of linear, convolution and normalisation layers whose own code fixes no width.
    """
    narrow = model()
    if share == 1:
        return narrow
    odd = [m for m in narrow.modules() if not isinstance(m, LAYERS) and any(True for _ in m.parameters(recurse=False))]
    if odd:
        kinds = "linear, convolution and normalisation layers"
        raise BadInput(f"Sub-models are made of {kinds}. This model has {type(odd[0]).__name__}: give them as models.")
    training, sample = narrow.training, torch.zeros(2, *shape)
    narrow.eval()
    met: list[nn.Module] = []
    watch = [m.register_forward_pre_hook(lambda m, _: met.append(m)) for m in narrow.modules() if isinstance(m, LAYERS)]
    answer = narrow(sample).shape
    for hook in watch:
        hook.remove()
    head = [m for m in met if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)][-1]
    _check_share([m for m in met if m is not head], share)
    done: set[nn.Module] = set()
    cuts = [m.register_forward_pre_hook(partial(_cut, share=share, head=head, done=done)) for m in dict.fromkeys(met)]
    try:
        after = narrow(sample).shape
    except BadInput:
        raise
    except Exception as e:
        raise BadInput(f"The model cannot be narrowed to {share:g}: {e}. Give its sub-models as models.") from None
    for hook in cuts:
        hook.remove()
    if after != answer:
        raise BadInput(f"Narrowed to {share:g} the model answers {tuple(after)} instead of {tuple(answer)}.")
    return narrow.train(training)


def _check_share(hidden: Sequence[nn.Module], share: float) -> None:
    """Refuse a share of which nothing would be left in some layer, or that would change no layer at all."""
    linear = [m.out_features for m in hidden if isinstance(m, nn.Linear)]
    widths = linear + [m.out_channels for m in hidden if isinstance(m, CONVOLUTIONS) and m.groups == 1]
    if not widths:
        raise BadInput("This model has no hidden layer to narrow. Use another one, or no sub-models.")
    if share * min(widths) < 1 - 1e-9:
        least = min(widths)
        raise BadInput(
            f"The share {share:g} of a sub-model is less than one of {least} channels of a layer. "
            f"Use at least {1 / least:g}."
        )


def _cut(layer: nn.Module, inputs: tuple[Tensor, ...], share: float, head: nn.Module, done: set[nn.Module]) -> None:
    """Narrow a layer to what arrives, and its outputs to their share."""
    if layer in done:  # used twice
        return
    done.add(layer)
    if isinstance(layer, nn.Linear):
        outputs = layer.out_features if layer is head else _width(layer.out_features, share)
        layer.in_features, layer.out_features = inputs[0].shape[-1], outputs
        _keep(layer, weight=(outputs, layer.in_features), bias=(outputs,))
    elif isinstance(layer, CONVOLUTIONS):
        _cut_convolution(layer, inputs[0].shape[1], share, layer is head)
    elif isinstance(layer, nn.LayerNorm):
        if len(layer.normalized_shape) > 1:
            raise BadInput("A LayerNorm over several dimensions cannot be narrowed. Give the sub-models as models.")
        layer.normalized_shape = (inputs[0].shape[-1],)
        _keep(layer, weight=layer.normalized_shape, bias=layer.normalized_shape)
    else:
        channels = inputs[0].shape[1]
        if isinstance(layer, nn.GroupNorm):
            if channels % layer.num_groups:
                raise BadInput(f"{layer.num_groups} groups of a GroupNorm do not divide {channels} channels.")
            layer.num_channels = channels
        elif isinstance(layer, BATCH_NORMS):
            layer.num_features = channels
        _keep(layer, **dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (channels,)))


def _cut_convolution(layer: nn.Module, inputs: int, share: float, head: bool) -> None:
    c: Any = layer
    if c.groups not in (1, c.in_channels):
        raise BadInput(f"A convolution of {c.groups} groups cannot be narrowed. Give the sub-models as models.")
    each = c.groups > 1  # one filter per channel: as many as arrive
    outputs = c.out_channels if head else inputs * (c.out_channels // c.in_channels) if each else None
    outputs = _width(c.out_channels, share) if outputs is None else outputs
    c.in_channels, c.out_channels, c.groups = inputs, outputs, inputs if each else 1
    _keep(layer, weight=(outputs, 1 if each else inputs), bias=(outputs,))


def _width(width: int, share: float) -> int:
    return max(1, ceil(share * width - 1e-9))


def _keep(layer: nn.Module, **sizes: tuple[int, ...]) -> None:
    """Cut tensors of a layer to their first entries."""
    for name, size in sizes.items():
        tensor = getattr(layer, name, None)
        if tensor is None:
            continue
        cut = tensor.detach()[tuple(slice(n) for n in size)].clone()
        setattr(layer, name, nn.Parameter(cut, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cut)


class SubmodelTrainer:
    """Trains clients that have different parts of one model, in the whole model's coordinates."""

    def __init__(
        self,
        whole: nn.Module,
        parts: Sequence[nn.Module],
        kind: Array,
        data: ClientData,
        solver: Solver,
        seed: int,
        device: str = "cpu",
        task: Task | None = None,
        roll: int = 0,
    ):
        """Train in turn one of the ``parts``; each round they begin ``roll`` channels further on."""
        self.whole = TorchTrainer(whole, data, solver, seed, device, task)
        self.parts = [TorchTrainer(part, data, solver, seed, device, task) for part in parts]
        for part in self.parts:  # one copy of the samples, on whichever device
            part.train_set, part.test_set = self.whole.train_set, self.whole.test_set
        models = tuple(ClientModel(p.layout, places(self.layout, p.layout)) for p in self.parts)
        self.models, self.solver, self.seed, self._kind = ModelFleet.mixed(models, kind), solver, seed, kind
        self._roll = roll
        if roll:
            self._check_roll()
            self.models = replace(self.models, rolled=lru_cache(2 * len(parts))(self._places))

    def _places(self, part: int, dispatch: int) -> Array:
        return places(self.layout, self.parts[part].layout, self._roll * (dispatch - 1))

    def _check_roll(self) -> None:
        """Refuse a model whose channels were not found: rolling all of them together must leave its loss as it is."""
        drawn = rng_for(self.seed, 0, Stream.MEASURE).random(self.layout.dim) / 10
        x = initial_vector(self.whole.flat.module) + drawn.astype(np.float32)
        client = np.array([max(range(len(self._kind)), key=lambda c: len(self.whole.data.parts[c]))])
        for part in self.parts:
            other = x[places(self.layout, part.layout, 1, every=True)]
            if not np.allclose(self.losses(other, client), self.losses(x, client), rtol=1e-3):
                raise BadInput(
                    "Sub-models of this model cannot roll: its channels depend on their order, as in a GroupNorm. "
                    "Use 'roll' 0."
                )

    @property
    def name(self) -> str:
        """What trains."""
        return f"SubmodelTrainer of {self.parts[0].name}"

    @property
    def layout(self) -> Layout:
        """The whole model's tensors in the flat vector."""
        return self.whole.layout

    @property
    def task(self) -> Task:
        """The task of all models."""
        return self.whole.task

    @property
    def test_size(self) -> int:
        """How many test samples there are."""
        return self.whole.test_size

    def pieces(self, jobs: Jobs) -> list[Array]:
        """Return the rows that train together: clients with the same part of the model, in the same place."""
        kind, many = self._kind[jobs.client], len(self.parts)
        key = kind + many * jobs.dispatch if self._roll else kind
        groups = ((k % many, np.flatnonzero(key == k)) for k in np.unique(key))
        return [mine[rows] for k, mine in groups for rows in self.parts[k].pieces(jobs.take(mine))]

    def train(self, x: Array, jobs: Jobs) -> Trained:
        """Train one piece from the whole model ``x``; updates are zero outside of the clients' part."""
        model = self.models.of(int(jobs.client[0]), int(jobs.dispatch[0]))
        starts = None if jobs.starts is None else model.of(jobs.starts)
        trained = self.parts[self._kind[jobs.client[0]]].train(model.of(x), jobs._replace(starts=starts))
        return trained._replace(updates=model.whole(trained.updates, x.shape[-1], rest=0))

    def gradients(self, x: Array, clients: Array) -> Array:
        """Return the gradients of clients' losses by the whole model."""
        return self.whole.gradients(x, clients)

    def variances(self, x: Array, dispatch: int, clients: Array, batch_size: Array) -> Array:
        """Return the variances of clients' stochastic gradients by the whole model."""
        return self.whole.variances(x, dispatch, clients, batch_size)

    def losses(self, x: Array, clients: Array) -> Array:
        """Return clients' mean losses by the whole model."""
        return self.whole.losses(x, clients)

    def evaluate(self, x: Array, begin: int, end: int) -> Sums:
        """Return the whole model's sums over test samples [begin, end)."""
        return self.whole.evaluate(x, begin, end)

    def evaluate_clients(self, x: Array, clients: Array) -> list[Sums]:
        """Return the whole model's sums over each client's own test samples."""
        return self.whole.evaluate_clients(x, clients)
