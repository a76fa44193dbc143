"""Random changes of training batches; their random numbers lie at the client's own address, so runs resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import PositiveInt

from fedweave.core.settings import settings

if TYPE_CHECKING:
    from torch import Generator, Tensor


class Transform(Protocol):
    """A function of the inputs of a training batch, as they are stored, and of a generator for random numbers."""

    def __call__(self, x: Tensor, rng: Generator) -> Tensor:
        """Return the changed inputs (B, …)."""
        ...


@settings
class RandomCrop:
    """Shift each image (B, C, H, W) at random by up to ``padding`` pixels; what comes in from outside is zero."""

    padding: PositiveInt = 4

    def __call__(self, x: Tensor, rng: Generator) -> Tensor:
        import torch
        from torch.nn.functional import pad

        p, (count, _, height, width) = self.padding, x.shape
        top, left = torch.randint(0, 2 * p + 1, (2, count, 1), generator=rng).to(x.device)
        rows, columns = torch.arange(height, device=x.device) + top, torch.arange(width, device=x.device) + left
        here = torch.arange(count, device=x.device)[:, None, None]
        return pad(x, (p, p, p, p))[here, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@settings
class RandomFlip:
    """Mirror each image (B, C, H, W) left to right, with chance one half."""

    def __call__(self, x: Tensor, rng: Generator) -> Tensor:
        import torch

        mirrored = torch.rand(len(x), generator=rng).to(x.device) < 0.5
        return torch.where(mirrored[:, None, None, None], x.flip(3), x)
