"""What every trainer of clients has in common: pieces of clients, and what becomes of one whose own code fails."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array, Failure
from fedweave.local.batches import Job


class Trained(NamedTuple):
    """What one piece of clients did."""

    updates: Array  # (c, D)
    loss: Array  # (c,) mean over the local steps
    first_gradient: Array  # (c,) norm of the first stochastic gradient
    variance: Array  # (c,) of the stochastic gradients on the way; nan unless asked for
    failed: tuple[Failure, ...] = ()  # whose training failed: their rows are zero and nan


class Recalled(NamedTuple):
    """What the clients of one piece begin with beside the model, where they remember."""

    memory: Array  # (c, D)
    sent: Array | None  # (D,)
    share: Array  # (c,) N ω_i


class Piece(NamedTuple):
    """Clients that train together in one round."""

    round: int
    jobs: Sequence[Job]
    lr: float
    recalled: Recalled | None = None
    measure: bool = False  # whether to measure the variance of each one's gradients on the way
    starts: Array | None = None  # (c, D) where each begins; None: all at the model

    def only(self, i: int) -> Piece:
        """Return the piece of one of its clients alone."""
        recalled, starts = self.recalled, self.starts
        if recalled is not None:
            recalled = recalled._replace(memory=recalled.memory[[i]], share=recalled.share[[i]])
        return self._replace(jobs=[self.jobs[i]], recalled=recalled, starts=None if starts is None else starts[[i]])


class Trainer(ABC):
    """Trains pieces of clients from a given model."""

    @abstractmethod
    def train(self, x: Array, piece: Piece) -> Trained:
        """Train a piece from the model ``x``; updates are y − x."""

    def attempt(self, x: Array, piece: Piece, skip: bool) -> Trained:
        """Train a piece in which somebody's code may fail: that is told with the clients' names, or they are skipped.

        Of several that train together each is then tried alone, so that one does not cost the others their work.
        """
        try:
            return self.train(x, piece)
        except (Exception, SystemExit) as error:
            who = [job.client for job in piece.jobs]
            if not skip:
                error.add_note(f"While clients {', '.join(map(str, who))} trained in round {piece.round}.")
                raise
            if len(who) == 1:
                return _failed(x, who[0], error)
        *rows, failed = zip(*(self.attempt(x, piece.only(i), skip) for i in range(len(who))), strict=True)
        return Trained(*(np.concatenate(column) for column in rows), failed=tuple(f for some in failed for f in some))


def _failed(x: Array, client: int, error: BaseException) -> Trained:
    nothing = np.full(1, np.nan)
    why = f"its training failed: {traceback.format_exception_only(error)[0].strip()}"
    trace = "".join(traceback.format_exception(error))
    return Trained(np.zeros((1, x.size), x.dtype), nothing, nothing, nothing, (Failure(client, why, trace),))
