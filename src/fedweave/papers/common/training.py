"""Runs on images, measured round by round, and the experiments of one data set at one scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedweave.core.records import Array
from fedweave.data import Dataset
from fedweave.engine.pool.processes import Workers
from fedweave.papers.common.parallel import Key, Progress, run_seeds
from fedweave.papers.common.scale import ImageSize, Scale, load_samples
from fedweave.round.rules import NO_RULES
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import deterministic, iterate, run
from fedweave.runs.results import Result
from fedweave.runs.session import prepare

TAIL = 50  # last rounds, whose mean is compared: single rounds vary by tens of points when classes are split


class Trajectory(NamedTuple):
    """One run, round by round, and how much each client took part."""

    accuracy: Array  # (R,) of the model after each round
    class_accuracy: Array  # (R, C)
    device_seconds: Array  # (R,) local training of all asked clients, summed up to each round
    steps_done: int  # local steps of all asked clients, over all rounds
    averaged: float  # accuracy of the mean of the last TAIL models
    averaged_classes: Array  # (C,) accuracy of that mean, class by class
    answers: Array  # (N,) how often each client's answer was received
    steps: Array  # (N,) its local steps, summed over these answers
    reach: Array  # (N,) its displacements in units of the first step, ‖u‖ / (η ‖g₀‖), summed

    def last(self, rounds: int) -> float:
        """Return the mean accuracy of the last ``rounds`` rounds."""
        return float(self.accuracy[-rounds:].mean())

    def rounds_to(self, accuracy: float) -> float:
        """Return the round that first reached this accuracy; nan if none did."""
        hit = np.flatnonzero(self.accuracy >= accuracy)
        return float(hit[0] + 1) if hit.size else np.nan

    def seconds_to(self, accuracy: float) -> float:
        """Return the devices' seconds until this accuracy was first reached; nan if it never was."""
        hit = np.flatnonzero(self.accuracy >= accuracy)
        return float(self.device_seconds[hit[0]]) if hit.size else np.nan


def run_and_measure(experiment: Experiment) -> Trajectory:
    """Run an experiment in this process and measure it."""
    session = prepare(experiment, Workers(1))._replace(rules=NO_RULES)
    e, engine, n = experiment, session.engine, session.base.size
    scores, seconds, models, steps_done = [], [], np.zeros(session.start.x.size), 0
    answers, steps, reach = np.zeros(n), np.zeros(n), np.zeros(n)
    tail = min(TAIL, e.rounds)
    with deterministic():
        for state, happened in iterate(session):
            replies, ids = happened.replies, happened.cohort.ids[happened.replies.received]
            length, first = np.linalg.norm(replies.updates[replies.received], axis=1), replies.first_gradient
            first = happened.lr * first[replies.received]
            answers[ids] += 1
            steps[ids] += happened.view.population.steps[ids]
            # zero where a network has no gradient
            reach[ids] += np.divide(length, first, out=np.zeros(ids.size), where=first > 0)
            scores.append(engine.evaluate(state.x))
            seconds.append(replies.seconds.sum())
            steps_done += int(replies.steps.sum())
            if state.round > e.rounds - tail:
                models += state.x / tail
        end = engine.evaluate(models.astype(np.float32))
    return Trajectory(
        np.array([s["accuracy"] for s in scores]),
        np.array([s["class_accuracy"] for s in scores]),
        np.cumsum(seconds),
        steps_done,
        end["accuracy"],
        end["class_accuracy"],
        answers,
        steps,
        reach,
    )


@dataclass(frozen=True)
class Setup(ABC):
    """One data set at one scale."""

    data: str
    scale: Scale
    on_progress: Progress | None

    @property
    @abstractmethod
    def size(self) -> ImageSize:
        """How much is run."""

    @cached_property
    def samples(self) -> Dataset:
        """The data, reduced to the size."""
        return load_samples(self.data, self.scale, self.size)

    def run(self, experiments: Mapping[Key, Experiment]) -> dict[Key, list[Result]]:
        """Return the results of every experiment, one per seed."""
        return run_seeds(run, experiments, self.size.seeds, self.on_progress)
