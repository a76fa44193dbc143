"""Which channels a client sends: how many of each layer, and the most important of them (FedDD section 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fedweave.core.records import Array
from fedweave.upload.channels import Channels

Rounding = Literal["nearest", "up", "down", "exact"]
Choice = Literal["importance", "random", "max", "delta", "ordered"]

SMALL = 1e-3  # of a layer's root mean square: below, a weight is taken for this small and not for zero


def channel_counts(channels: Channels, rate: float, rounding: Rounding = "nearest") -> Array:
    """Return how many channels of each layer (L,) are sent at a dropout rate: N_l (1 − D), one at least.

    Algorithm 2 of the paper prints N_l·D, the number that is *not* sent. ``rounding`` "exact" rounds down, then grants
    layers one more each, the largest fraction first, as long as all together stay within the share of the entries.
    """
    widths = np.asarray(channels.widths)
    exact = widths * (1 - rate)
    if rounding in ("nearest", "up"):
        count = np.floor(exact + 0.5) if rounding == "nearest" else np.ceil(exact - 1e-9)
        return count.clip(1, widths).astype(np.int64)
    count = np.floor(exact + 1e-9).clip(1, widths).astype(np.int64)
    if rounding == "exact":
        entries = channels.entries[list(channels.firsts)]
        left = (1 - rate) * channels.dim - count @ entries
        for layer in np.argsort(count - exact, kind="stable"):
            if count[layer] < exact[layer] and entries[layer] <= left + 1e-9:
                count[layer] += 1
                left -= entries[layer]
    return count


def most_important(channels: Channels, score: Array, counts: Array) -> Array:
    """Return the channels (G,) with the highest scores, so many of each layer; ties go to the first."""
    kept = np.zeros(channels.count, bool)
    for first, width, n in zip(channels.firsts, channels.widths, counts, strict=True):
        kept[first + np.argsort(-score[first : first + width], kind="stable")[:n]] = True
    return kept


def scores(
    choice: Choice, channels: Channels, start: Array, end: Array, coverage: Array, rng: np.random.Generator
) -> Array:
    """Return how important each channel is (G,) for a client that went from ``start`` to ``end``."""
    if choice == "random":
        return rng.random(channels.count)
    if choice == "ordered":
        return -np.arange(channels.count, dtype=float)
    if choice == "max":
        return _lengths(channels, lambda w, after: after, start, end)
    if choice == "delta":
        return _lengths(channels, lambda w, after: after - w, start, end)
    return _lengths(channels, importance, start, end) / coverage


def importance(w: Array, after: Array) -> Array:
    """Return |ΔW (W + ΔW)/W| entry by entry (FedDD eq. 20) of one layer's weight.

    A weight of zero would make it infinite and win whatever it did: |W| counts as a thousandth of the layer's root mean
    square at least. Where weights change little beside their size, this is the size of the change.
    """
    least = SMALL * np.sqrt(np.mean(np.square(w, dtype=float))) + 1e-12
    return (after - w) * (after / np.maximum(np.abs(w), least))


def _lengths(channels: Channels, measure: Callable[[Array, Array], Array], start: Array, end: Array) -> Array:
    """Return the 2-norm of a measure over the weights of each channel; biases and norms only go along."""
    square = np.zeros(channels.count)
    for t in channels.tensors:
        if t.weighs:
            value = measure(t.of(start), t.of(end)).astype(float)
            square[channels.rows(t)] += np.einsum("rf,rf->r", value, value)
    return np.sqrt(square)
