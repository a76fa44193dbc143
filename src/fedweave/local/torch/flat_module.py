"""A torch module whose parameters and buffers are views of one flat vector."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Layout
from fedweave.core.settings import BadInput
from fedweave.local.client_data import ClientData
from fedweave.local.torch.samples import first_samples, run
from fedweave.local.torch.threads import drawing_from, one_thread


class FlatModule:
    """Loads, trains and reads a module through one vector.

    Convolution weights are kept channels-last inside: on a CPU that makes a step of a small CNN faster. So the
    vector inside is ordered differently from the one outside; ``load`` and ``read`` translate, once per client.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        weights, buffers = travelling(module)
        tensors = {**weights, **buffers}
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        self.layout = layout_of(module)
        self._images = any(w.dim() == 4 for w in weights.values())
        device = next(iter(tensors.values())).device
        self._vector = torch.empty(self.layout.dim, dtype=torch.float32, device=device)
        pieces = self._vector.split(self.layout.sizes)
        self._views = [_view(p, s) for p, s in zip(pieces, self.layout.shapes, strict=True)]
        self._weights = list(weights.values())
        with torch.no_grad():
            for tensor, view in zip(tensors.values(), self._views, strict=True):
                view.copy_(tensor)
        for weight, view in zip(self._weights, self._views, strict=False):
            weight.data = view
        for name, view in zip(buffers, self._views[len(weights) :], strict=True):
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, view)

    @property
    def parameters(self) -> Tensor:
        """The trained part of the vector, in the inner order; writing to it changes the module."""
        return self._vector[: self.layout.parameters]

    def load(self, x: Array) -> None:
        """Set the module to the flat vector ``x``."""
        with torch.no_grad():
            for view, tensor in zip(self._views, named_tensors(self.layout, x).values(), strict=True):
                view.copy_(tensor)
            for counter, initial in self._counters:  # num_batches_tracked and the like start again
                counter.copy_(initial)

    def read(self, out: Array | None = None) -> Array:
        """Return the module's values as a flat vector, written to ``out`` if given."""
        out = np.empty(self.layout.dim, np.float32) if out is None else out
        with torch.no_grad():
            for tensor, view in zip(_tensors(self.layout, out), self._views, strict=True):
                tensor.copy_(view)
        return out

    def inner(self, vector: Array) -> Tensor:
        """Return the trained part of a flat vector in the inner order."""
        pieces = torch.from_numpy(vector[: self.layout.parameters]).split(self.layout.sizes[: len(self._weights)])
        shaped = [_inner(p.view(s)) for p, s in zip(pieces, self.layout.shapes, strict=False)]
        return torch.cat(shaped).to(self._vector.device)

    def fit(self, x: Any) -> Any:
        """Return a batch in the memory order that the convolutions want."""
        image = self._images and isinstance(x, Tensor) and x.dim() == 4
        return x.contiguous(memory_format=torch.channels_last) if image else x

    def gradient(self, loss: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the gradient of ``loss`` in the inner order, written to ``out`` if given."""
        pieces = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        return torch.cat([_inner(g) for g in pieces], out=out)

    def outer(self, g: Tensor) -> Array:
        """Return a vector over the parameters in the order outside, zero for the buffers."""
        pieces = g.split(self.layout.sizes[: len(self._weights)])
        ordered = [_view(p, s).reshape(-1) for p, s in zip(pieces, self.layout.shapes, strict=False)]
        return np.append(
            torch.cat(ordered).cpu().numpy(), np.zeros(self.layout.dim - self.layout.parameters, np.float32)
        )


def named_tensors(layout: Layout, x: Array) -> dict[str, Tensor]:
    """Return the tensors of a flat vector by name, as a model uses them."""
    tensors = dict(zip(layout.names, _tensors(layout, x), strict=True))
    # Weights that do not sum to one can push a variance below zero.
    return {name: t.clamp(min=0) if name.endswith("running_var") else t for name, t in tensors.items()}


def _tensors(layout: Layout, x: Array) -> list[Tensor]:
    """Return the tensors of a flat vector, as views of it."""
    pieces = torch.from_numpy(x).split(layout.sizes)
    return [piece.view(shape) for piece, shape in zip(pieces, layout.shapes, strict=True)]


def _view(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 4:
        return piece.view(shape)
    o, i, h, w = shape
    return piece.view(o, h, w, i).permute(0, 3, 1, 2)


def _inner(g: Tensor) -> Tensor:
    return (g.permute(0, 2, 3, 1) if g.dim() == 4 else g).reshape(-1)


def travelling(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """Return the trained parameters and the running averages: what goes between server and clients.

    Everything else is a constant of the model, the same in every process (see ``build_module``): frozen parameters,
    buffers that are not saved with the model, masks and tables.
    """
    weights = {n: w for n, w in module.named_parameters() if w.requires_grad}
    saved = module.state_dict()
    buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point() and n in saved and b.isfinite().all()}
    return weights, buffers


def layout_of(module: nn.Module) -> Layout:
    """Return where the tensors of a module that travel are in the flat vector."""
    weights, buffers = travelling(module)
    tensors = {**weights, **buffers}
    shapes = tuple(tuple(t.shape) for t in tensors.values())
    return Layout(names=tuple(tensors), shapes=shapes, parameters=sum(w.numel() for w in weights.values()))


def constants_digest(module: nn.Module) -> str:
    """Return the SHA-256 of what a state dict has besides the tensors that travel: frozen parameters, counters, masks.

    Empty if it has nothing else.
    """
    moving = {id(tensor) for part in travelling(module) for tensor in part.values()}
    sha, found = hashlib.sha256(), False
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in moving:
            found = True
            sha.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
            sha.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest() if found else ""


@one_thread()  # as everywhere: other threads would not survive a fork of this process
def build_module(model: Callable[..., nn.Module], seed: int, data: ClientData | None = None) -> nn.Module:
    """Return a new module whose random values are drawn at the seed's own address, in every process alike.

    It is a copy of what ``model`` returns, which may return the same module every time; a function with a parameter
    ``seed`` is given it. Lazy layers get their sizes from a sample of the data.
    """
    with drawing_from(rng_for(seed, 0, Stream.MODEL)):
        module = model(seed=seed) if _takes_seed(model) else model()
        try:
            module = copied(module)
        except Exception as e:
            raise BadInput(
                f"What the model's function returns cannot be copied: {e}. Let it build a plain module."
            ) from None
        if data is not None and isinstance(module, nn.Module) and has_lazy_layers(module):
            with torch.no_grad():
                run(module.eval(), first_samples(data, 2).x)
            module.train()
        return module


def copied(module: nn.Module) -> nn.Module:
    """Return a copy, also of buffers without sizes yet (lazy batch norm), which torch itself does not copy."""
    tensors = module.buffers() if isinstance(module, nn.Module) else ()
    sizeless = [b for b in tensors if isinstance(b, UninitializedBuffer)]
    new: Any = UninitializedBuffer
    return deepcopy(module, {id(b): new(device=b.device, dtype=b.dtype) for b in sizeless})


def _takes_seed(model: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(model).parameters
    except (TypeError, ValueError):  # a built-in function
        return False


def has_lazy_layers(module: nn.Module) -> bool:
    """Return whether the module has layers whose sizes follow from their first input."""
    return any(is_lazy(t) for t in (*module.parameters(), *module.buffers()))


def initial_vector(module: nn.Module) -> Array:
    """Return a module's values as a flat float32 vector: parameters, then buffers."""
    tensors = [t for part in travelling(module) for t in part.values()]
    return np.concatenate([t.detach().cpu().numpy().reshape(-1) for t in tensors]).astype(np.float32)
