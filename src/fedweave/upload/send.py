"""From what clients computed to what goes over their links: the client half of an upload, client by client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.randomness import Stream, rng_for
from fedweave.core.records import Array, Assignment, Layout, Replies
from fedweave.core.roles import Upload
from fedweave.upload.channels import Channels, channels_of
from fedweave.upload.wire import encoded_size


@dataclass(frozen=True)
class Kind:
    """A model that some clients train: the whole one, or a part of it."""

    layout: Layout
    where: Array | None = None  # (d,) its entries in the whole model's vector; None: it is the whole

    @property
    def channels(self) -> Channels:
        """Its channels."""
        return channels_of(self.layout)

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


@dataclass(frozen=True)
class Fleet:
    """Which client trains which model."""

    kinds: tuple[Kind, ...]
    kind: Array  # (N,) of each client

    @cached_property
    def coverage(self) -> list[Array]:
        """Share of all clients that have a channel, for the channels of each kind: FedDD's CR."""
        parent = max((k.channels.widths for k in self.kinds), key=sum)
        have = [np.zeros(width) for width in parent]
        for i, k in enumerate(self.kinds):
            for layer, width in zip(have, k.channels.widths, strict=True):
                layer[:width] += np.mean(self.kind == i)
        return [
            np.concatenate([layer[:w] for layer, w in zip(have, k.channels.widths, strict=True)]) for k in self.kinds
        ]

    @property
    def dims(self) -> Array:
        """(N,) entries of each client's model."""
        return np.array([k.layout.dim for k in self.kinds])[self.kind]

    @property
    def mixed(self) -> bool:
        """Whether any client trains less than the whole model."""
        return any(k.where is not None for k in self.kinds)


class Begin(NamedTuple):
    """Where clients begin that keep a part of their own: W_n = W ⊙ M_n + Ŵ_n ⊙ (1 − M_n), FedDD eq. 5."""

    start: Array  # (k, D)
    fetched: Array  # (k, D) bool: which entries are the server's


def start_vectors(assignment: Assignment, ids: Array) -> Begin | None:
    """Return where each of these clients begins; None: all at x."""
    kept = assignment.context.kept
    if kept is None or not kept.written[ids].any():
        return None
    own = kept[ids]
    fetched = np.isnan(own)
    fetched[~kept.written[ids]] = True
    return Begin(np.where(fetched, assignment.x, own), fetched)


def apply_upload(
    replies: Replies, upload: Upload, fleet: Fleet, assignment: Assignment, begin: Begin | None
) -> Replies:
    """Return the replies as they arrive: without what was not sent, and with the bytes that it really takes.

    A lost reply has its size too: how many channels a client sends does not depend on what it learned.
    """
    budget, x, ids = assignment.context.budget, assignment.x, assignment.cohort.ids
    if budget is None and not fleet.mixed:
        return replies
    mask, down = np.zeros(replies.updates.shape, bool), np.full(ids.size, x.nbytes)
    up, luck = np.zeros(ids.size, np.int64), upload_rng(assignment.view.seed, assignment.round)
    for i, client in enumerate(ids):
        kind, share = fleet.kinds[fleet.kind[client]], fleet.coverage[fleet.kind[client]]
        channels, start = kind.channels, kind.of(x if begin is None else begin.start[i])
        kept = np.ones(channels.count, bool)
        if budget is not None:
            end = kind.of(x + replies.updates[i]) if replies.received[i] else start
            kept = upload.send(channels, start, end, float(budget[i]), share, luck(int(client)))
        up[i] = x.itemsize * channels.dim if budget is None else encoded_size(channels, kept, x.itemsize)
        down[i] = x.itemsize * (channels.dim if begin is None else np.count_nonzero(kind.of(begin.fetched[i])))
        mask[i] = kind.whole(channels.spread(kept), x.size, rest=False)
    return _masked(replies._replace(bytes_up=up, bytes_down=down), mask, budget is not None, x)


def _masked(replies: Replies, mask: Array, keeps: bool, x: Array) -> Replies:
    """Return the replies without what was not sent, and with what each received client keeps of its own instead."""
    mask[~replies.received] = False
    kept = own_part(x, replies.updates, mask) if keeps else None
    if mask[replies.received].all():  # as if nothing could be left out
        return replies._replace(kept=kept)
    return replies._replace(updates=np.where(mask, replies.updates, x.dtype.type(0)), mask=mask, kept=kept)


def own_part(x: Array, update: Array, sent: Array) -> Array:
    """Return what clients go on with (…, D) of where they came to; nan: the server's, as of all that was sent."""
    end = x + update
    return np.where(sent | ~np.isfinite(end), x.dtype.type(np.nan), end)  # non-finite entries are downloaded again


def upload_rng(seed: int, round: int) -> Callable[[int], np.random.Generator]:
    """Return the random numbers with which a client chooses what to send, at its own address."""
    return lambda client: rng_for(seed, round, Stream.UPLOAD, client)
