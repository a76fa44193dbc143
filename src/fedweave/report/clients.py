"""The clients: how often each was asked and answered, and which labels it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.runs.results import Array, Result


@dataclass(frozen=True)
class Participation:
    """Shares of the rounds per client, most asked first, averaged over the seeds rank by rank."""

    asked: Array
    answered: Array

    @property
    def answer_rate(self) -> float:
        """Return the share of requests that were answered."""
        return float(self.answered.sum() / self.asked.sum()) if self.asked.any() else 0.0

    @property
    def never_asked(self) -> int:
        """Return how many clients were never asked, in the seed with the fewest."""
        return int(np.count_nonzero(self.asked == 0))


def participation(runs: Sequence[Result]) -> Participation | None:
    """Return the participation of clients in ``runs``, None when no client was ever asked.

    Each seed may redraw data and devices, so client 3 of one seed is not client 3 of the next: clients are
    ranked within each seed. Shares, not counts, because an interrupted run has fewer rounds.
    """
    runs = [run for run in runs if "client" in run.clients and run.clients["client"].size]
    if not runs:
        return None
    n = max(_count_clients(run) for run in runs)
    ranked = np.array([_rank_clients(run, n) for run in runs])  # (seeds, 2, clients)
    return Participation(*ranked.mean(0))


def label_counts(run: Result) -> Array | None:
    """Return ``manifest["labels"]`` as clients × classes, short rows filled with zeros; None when absent or empty."""
    rows = run.manifest.get("labels")
    if rows is None or len(rows) == 0:
        return None
    width = max(len(row) for row in rows)
    table = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=float)
    return table if table.size else None


def _count_clients(run: Result) -> int:
    return max(len(run.manifest.get("labels") or ()), int(run.clients["client"].max()) + 1)


def _rank_clients(run: Result, n: int) -> Array:
    ids = np.asarray(run.clients["client"], dtype=int)
    received = np.asarray(run.clients["received"], dtype=float) > 0
    counts = np.stack([np.bincount(ids, minlength=n), np.bincount(ids[received], minlength=n)])
    order = np.lexsort((-counts[1], -counts[0]))
    return counts[:, order] / max(1, int(run.rounds["round"].size))
