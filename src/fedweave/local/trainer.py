"""What every trainer of clients has in common: pieces of clients, and what becomes of one whose own code fails."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.local.batches import Job
from fedweave.records import Array, Mishap


class Trained(NamedTuple):
    """What one piece of clients did."""

    updates: Array  # (c, D)
    loss: Array  # (c,) mean over the local steps
    first_gradient: Array  # (c,) norm of the first stochastic gradient
    variance: Array  # (c,) of the stochastic gradients on the way; nan unless asked for
    failed: tuple[Mishap, ...] = ()  # whose training failed: their rows are zero and nan


class Recalled(NamedTuple):
    """What the clients of one piece begin with beside the model, where they remember."""

    memory: Array  # (c, D)
    sent: Array | None  # (D,)
    share: Array  # (c,) N ω_i


class Trainer(ABC):
    """Trains pieces of clients from a given model."""

    @abstractmethod
    def train(
        self,
        x: Array,
        round: int,
        jobs: Sequence[Job],
        lr: float,
        recalled: Recalled | None = None,
        measure: bool = False,
        starts: Array | None = None,
    ) -> Trained:
        """Train a piece from ``x``, or each from its own of ``starts`` (c, D), with step ``lr``; updates are y − x.

        ``measure`` also measures the variance of each one's gradients on the way.
        """

    def attempt(
        self,
        x: Array,
        skip: bool,
        round: int,
        jobs: Sequence[Job],
        lr: float,
        recalled: Recalled | None = None,
        measure: bool = False,
        starts: Array | None = None,
    ) -> Trained:
        """Train a piece in which somebody's code may fail: that is told with the clients' names, or they are skipped.

        Of several that train together each is then tried alone, so that one does not cost the others their work.
        """
        try:
            return self.train(x, round, jobs, lr, recalled, measure, starts)
        except (Exception, SystemExit) as error:
            if not skip:
                error.add_note(f"While clients {', '.join(str(j.client) for j in jobs)} trained in round {round}.")
                raise
            if len(jobs) == 1:
                return _failed(x, jobs[0].client, error)
        alone = [
            self.attempt(
                x,
                skip,
                round,
                [job],
                lr,
                None if recalled is None else recalled._replace(memory=recalled.memory[[i]], share=recalled.share[[i]]),
                measure,
                None if starts is None else starts[[i]],
            )
            for i, job in enumerate(jobs)
        ]
        *rows, failed = zip(*alone, strict=True)
        return Trained(*(np.concatenate(column) for column in rows), failed=tuple(f for some in failed for f in some))


def _failed(x: Array, client: int, error: BaseException) -> Trained:
    nothing = np.full(1, np.nan)
    why = f"its training failed: {traceback.format_exception_only(error)[0].strip()}"
    trace = "".join(traceback.format_exception(error))
    return Trained(np.zeros((1, x.size), x.dtype), nothing, nothing, nothing, (Mishap(client, why, trace),))
