"""What a simulator needs of a pool of training processes, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self

from fedweave.core.records import Array
from fedweave.local.client_data import ClientData
from fedweave.local.trainer import Trainer

Build = Callable[[ClientData], Trainer]
Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of (trainer, x, …) and its arguments after x


class WorkerDied(RuntimeError):  # noqa: N818 - it says what happened
    """A training process ended in the middle of its work."""


class Pool(Protocol):
    """Who trains for a simulator: processes of this machine, or the actors of a Ray cluster."""

    patience: float  # seconds of work to be done without it before it is worthwhile
    holds: Any  # the ``build`` whose trainer it has now

    @property
    def count(self) -> int | None:
        """How many train at the same time; None as long as nobody knows."""
        ...

    @property
    def worthwhile(self) -> bool:
        """Whether to use it now."""
        ...

    def join(self) -> None:
        """Find the machines that will train, so that whoever cannot be reached is an error before anything begins."""
        ...

    def load(self, build: Build, data: ClientData, pieces: int) -> bool:
        """Get the trainer ``build(data)``, for rounds of about ``pieces``; return whether that could be done."""
        ...

    def map(self, x: Array, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Do each call, with ``x`` in front of its arguments, wherever there is room; yield (position, result)."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, value: Any, where: Any, /) -> bool | None: ...
