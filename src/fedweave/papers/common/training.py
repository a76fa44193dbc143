"""Comparisons on images: what is measured of a run, and how data is made small enough for a laptop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.data import Dataset
from fedweave.engine.pool.processes import Workers
from fedweave.papers.common.claims import Claim, Scale
from fedweave.round import run_round
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import deterministic
from fedweave.runs.session import prepare

TAIL = 50  # rounds at the end whose mean is compared: single rounds swing by tens of points when classes are split


class Trail(NamedTuple):
    """One run, round by round, and who did what in it."""

    accuracy: Array  # (R,) of the model after each round
    class_accuracy: Array  # (R, C)
    device_seconds: Array  # (R,) local training of all asked clients, summed up to each round
    steps_done: int  # local steps of all asked clients, over all rounds
    averaged: float  # accuracy of the mean of the last TAIL models
    averaged_classes: Array  # (C,) accuracy of that mean, class by class
    heard: Array  # (N,) how often each client was heard
    steps: Array  # (N,) its local steps, summed over these visits
    reach: Array  # (N,) its displacements in units of a first step, ‖u‖ / (η ‖g₀‖), summed too

    def last(self, rounds: int) -> float:
        """Return the mean accuracy of the last so many rounds."""
        return float(self.accuracy[-rounds:].mean())

    def rounds_to(self, accuracy: float) -> float:
        """Return the round that first reached this accuracy; nan if none did."""
        hit = np.flatnonzero(self.accuracy >= accuracy)
        return float(hit[0] + 1) if hit.size else np.nan

    def seconds_to(self, accuracy: float) -> float:
        """Return the devices' seconds until this accuracy was first reached; nan if it never was."""
        hit = np.flatnonzero(self.accuracy >= accuracy)
        return float(self.device_seconds[hit[0]]) if hit.size else np.nan


def follow(experiment: Experiment) -> Trail:
    """Run an experiment in this process and measure it."""
    session = prepare(experiment, Workers(1))
    e, state, engine, n = experiment, session.start, session.engine, session.base.size
    scores, seconds, models, steps_done = [], [], np.zeros(state.x.size), 0
    heard, steps, reach = np.zeros(n), np.zeros(n), np.zeros(n)
    tail = min(TAIL, e.rounds)
    with deterministic():
        for r in range(1, e.rounds + 1):
            population = e.system.population(session.base, r, e.seed)
            state, happened = run_round(e.method, state, population, engine, e.lr, e.seed, e.calibrate)
            replies, ids = happened.replies, happened.cohort.ids[happened.replies.received]
            length, first = np.linalg.norm(replies.updates[replies.received], axis=1), replies.first_gradient
            first = happened.lr * first[replies.received]
            heard[ids] += 1
            steps[ids] += population.steps[ids]
            reach[ids] += np.divide(length, first, out=np.zeros(ids.size), where=first > 0)  # a dead network: no way
            scores.append(engine.evaluate(state.x))
            seconds.append(replies.seconds.sum())
            steps_done += int(replies.steps.sum())
            if r > e.rounds - tail:
                models += state.x / tail
        end = engine.evaluate(models.astype(np.float32))
    return Trail(
        np.array([s["accuracy"] for s in scores]),
        np.array([s["class_accuracy"] for s in scores]),
        np.cumsum(seconds),
        steps_done,
        end["accuracy"],
        end["class_accuracy"],
        heard,
        steps,
        reach,
    )


def smaller(data: Dataset, train: int, test: int, pool: int = 1) -> Dataset:
    """Return ``train`` and ``test`` samples, as many of each class, images averaged over ``pool`` × ``pool`` pixels."""
    x, y = _first(data.x, data.y, train // data.classes)
    test_x, test_y = _first(data.test_x, data.test_y, test // data.classes)
    return replace(data, x=pooled(x, pool), y=y, test_x=pooled(test_x, pool), test_y=test_y, group=None, source=None)


def _first(x: Array, y: Array, each: int) -> tuple[Array, Array]:
    chosen = np.sort(np.concatenate([np.flatnonzero(y == c)[:each] for c in np.unique(y)]))
    return x[chosen], y[chosen]


def pooled(x: Array, pool: int) -> Array:
    """Return images averaged over ``pool`` × ``pool`` pixels; what does not fill a block is cut off."""
    if pool == 1:
        return x
    n, channels, height, width = x.shape
    x = x[:, :, : height // pool * pool, : width // pool * pool]
    blocks = x.reshape(n, channels, height // pool, pool, width // pool, pool)
    return np.rint(blocks.mean((3, 5))).astype(x.dtype)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error over seeds."""
    array = np.asarray(values, float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else np.nan


def leads(text: str, ours: Array, others: Mapping[str, Array], scale: Scale, unit: float = 100, sign: int = 1) -> Claim:
    """Judge whether ours beat the best other by more than twice the error of their difference, seed by seed."""
    if scale == "smoke":
        return Claim(text, "not run at this scale", "too few rounds and seeds")
    best = max(others, key=lambda n: sign * others[n].mean())
    lead, error = spread((sign * (ours - others[best])).tolist())
    told = f"{unit * ours.mean():.4g} against {unit * others[best].mean():.4g} of {best}"
    return Claim.judged(text, bool(lead > 2 * error), f"{told}, better by {unit * lead:.2g} ± {unit * error:.2g}")
