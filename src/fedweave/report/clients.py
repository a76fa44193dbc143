"""The clients: how often each was asked and answered, how well the model does for it, and which labels it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class Ranked:
    """Scores of the clients, worst first: mean, lowest and highest over the seeds, rank by rank."""

    mean: Array
    low: Array
    high: Array


def ranked_scores(runs: Sequence[Result]) -> Ranked | None:
    """Return the scores at each run's last evaluation of its clients, None where no run has one.

    Clients are ranked within each seed. Where seeds have scores of different numbers of clients, the ranks are those of
    the fewest, and the others are read at the same share of their clients.
    """
    found = [scores for run in runs if (scores := _last_scores(run)) is not None]
    if not found:
        return None
    middle = np.arange(min(s.size for s in found)) + 0.5
    table = np.array([s[(middle / middle.size * s.size).astype(int)] for s in found])
    return Ranked(table.mean(0), table.min(0), table.max(0))


def untested(runs: Iterable[Result]) -> list[int]:
    """Return how many clients of each run with scores have no test samples of their own."""
    rows = [run.manifest.get("test_samples") for run in runs if _last_scores(run) is not None]
    return [sum(not n for n in row) for row in rows if row]


def _last_scores(run: Result) -> Array | None:
    """Return the finite scores of the last evaluation of the clients, worst first."""
    rounds = run.client_scores.get("round", np.zeros(0))
    if not rounds.size:
        return None
    values = np.asarray(run.client_scores["value"], dtype=float)[rounds == rounds.max()]
    values = np.sort(values[np.isfinite(values)])
    if not values.size:
        return None
    return values if run.summary["higher_is_better"] else values[::-1]


@dataclass(frozen=True)
class Unevenness:
    """What the clients of one seed did in all its runs; nan: not asked."""

    steps: Array  # mean of the local steps
    unanswered: Array  # share of requests without a usable answer: lost, too late, refused or not waited for
    fastest: float  # simulated seconds of a participation whose answer was used
    slowest: float


def unevenness(runs: Sequence[Result], clients: int) -> Unevenness | None:
    """Return how uneven work and links were in these runs of one world; None where runs do not say."""
    rows = [run.clients for run in runs if {"steps", "seconds", "received"} <= run.clients.keys()]
    if not any(table["client"].size for table in rows):
        return None
    ids = np.concatenate([table["client"] for table in rows]).astype(int)
    received, steps, seconds = (
        np.concatenate([np.asarray(table[name], float) for table in rows]) for name in ("received", "steps", "seconds")
    )
    asked = np.bincount(ids, minlength=clients)

    def mean(values: Array) -> Array:
        return np.where(asked > 0, np.bincount(ids, values, clients) / np.maximum(asked, 1), np.nan)

    known = seconds[np.isfinite(seconds) & (received > 0)]
    if not known.size or ids.max() >= clients:
        return None
    return Unevenness(mean(steps), mean(1.0 - (received > 0)), float(known.min()), float(known.max()))


def label_counts(run: Result) -> Array | None:
    """Return ``manifest["labels"]`` as clients × classes, short rows filled with zeros; None when absent or empty."""
    rows = run.manifest.get("labels")
    if rows is None or len(rows) == 0:
        return None
    width = max(len(row) for row in rows)
    table = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=float)
    return table if table.size else None


def _count_clients(run: Result) -> int:
    listed = max(run.manifest.get("clients") or 0, len(run.manifest.get("labels") or ()))
    return max(listed, int(run.clients["client"].max()) + 1)


def _rank_clients(run: Result, n: int) -> Array:
    ids = np.asarray(run.clients["client"], dtype=int)
    received = np.asarray(run.clients["received"], dtype=float) > 0
    counts = np.stack([np.bincount(ids, minlength=n), np.bincount(ids[received], minlength=n)])
    order = np.lexsort((-counts[1], -counts[0]))
    return counts[:, order] / max(1, int(run.rounds["round"].size))
