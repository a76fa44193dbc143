"""The simulated worlds of the papers: each client's work, latency and loss rate."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from fedweave.core.randomness import Stream, borrow, rng_for
from fedweave.core.records import MOST_SECONDS, MOST_STEPS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, settings


def check_range(ends: tuple[float, float]) -> tuple[float, float]:
    """Return a range; refuse one whose high end comes first."""
    if ends[0] > ends[1]:
        raise ValueError(f"must be a range, the low end first. Got {ends} instead.")
    return ends


Rate = Annotated[float, Field(ge=0, lt=1)]
Work = Annotated[int, Field(gt=0, le=MOST_STEPS)]
Counts = Annotated[tuple[Work, Work], AfterValidator(check_range)]
StepSeconds = Annotated[float, Field(gt=0, le=MOST_SECONDS / MOST_STEPS)]
Rates = Annotated[tuple[Rate, Rate], AfterValidator(check_range)]
Seconds = Annotated[tuple[NonNegativeFloat, PositiveFloat], AfterValidator(check_range)]
Unit = Literal["steps", "epochs"]


def steps_of(epochs: Array, samples: Array, batch_size: Array) -> Array:
    """Return the local steps of this many passes over the data; the last, partial batch of a pass counts as a step."""
    steps = np.maximum(np.rint(epochs * np.ceil(samples / batch_size)), 1)
    if steps.max(initial=1) > MOST_STEPS:
        i = int(steps.argmax())
        many = f"{epochs[i]:g} epochs over {samples[i]} samples in batches of {batch_size[i]}"
        raise BadInput(f"At most {MOST_STEPS} local steps are possible. {many} are {steps[i]:g}: use fewer epochs.")
    return steps.astype(np.int64)


def _work(amount: Array, unit: Unit, base: Population) -> Array:
    return steps_of(amount, base.samples, base.batch_size) if unit == "epochs" else amount.astype(np.int64)


@lru_cache(maxsize=16)  # the same every round, and cheap rounds would be slower without
def _evenly_spaced(ends: tuple[float, float], clients: int) -> Array:
    values = np.linspace(*ends, clients)
    values.setflags(write=False)
    return values


Halves = tuple[tuple[float, float], tuple[float, float]]  # the ranges of slow and of fast clients


@lru_cache(maxsize=16)
def _halves(work: Halves, loss: Halves, clients: int) -> tuple[Array, Array]:
    """Return low end and width of the ranges of work and loss rate (2, N): the first half is slow, the second fast."""
    ends = np.repeat([work, loss], (clients // 2, clients - clients // 2), axis=1)
    low, high = ends[..., 0].copy(), ends[..., 1].copy()
    span = high - low + [[1], [0]]  # work is rounded down
    for values in (low, span):
        values.setflags(write=False)
    return low, span


@settings
class Uniform(System):
    """Clients differ only in their data: nominal work, no losses, equal latencies.

    With work counted in epochs and uneven data this is FedAWARE's "Hybrid" setting.
    """

    seconds: PositiveFloat = 1.0

    def population(self, base: Population, round: int, seed: int) -> Population:
        return replace(base, latency=np.full(base.size, self.seconds))


@settings
class Static(System):
    """Work and loss rates that rise or fall evenly from the first client to the last, the same every round.

    The defaults are FedACS I.3.1 (T = 1, 3, …, 39 and 1 − q = 0.60, 0.62, …, 0.98 for 20 clients).
    """

    work: tuple[PositiveInt, PositiveInt] = (1, 39)
    loss_rate: tuple[Rate, Rate] = (0.40, 0.02)
    unit: Unit = "steps"
    step_seconds: StepSeconds = 0.1
    replaces: ClassVar[tuple[str, ...]] = ("steps",)

    def population(self, base: Population, round: int, seed: int) -> Population:
        steps = _work(np.rint(_evenly_spaced(self.work, base.size)), self.unit, base)
        loss_rate = _evenly_spaced(self.loss_rate, base.size)
        return replace(base, steps=steps, loss_rate=loss_rate, latency=steps * self.step_seconds)

    @classmethod
    def figure4(cls) -> Any:
        """FedACS figure 4, middle: T = 1 … 30 and q = 0.01 … 0.3, both rising."""
        return cls(work=(1, 30), loss_rate=(0.01, 0.3))


@settings
class Dynamic(System):
    """Redrawn every round: the first half of the clients is slow and unreliable, the second fast and reliable.

    The defaults are FedACS I.3.1 (whose text calls the loss rates communication probabilities).
    """

    slow_work: Counts = (1, 10)
    slow_loss: Rates = (0.4, 0.5)
    fast_work: Counts = (20, 30)
    fast_loss: Rates = (0.0, 0.1)
    unit: Unit = "steps"
    step_seconds: StepSeconds = 0.1
    replaces: ClassVar[tuple[str, ...]] = ("steps",)

    def population(self, base: Population, round: int, seed: int) -> Population:
        low, span = _halves((self.slow_work, self.fast_work), (self.slow_loss, self.fast_loss), base.size)
        work, loss_rate = drawn = borrow(seed, round, Stream.SYSTEM).random((2, base.size))
        drawn *= span
        np.floor(work, out=work)  # whole numbers, both ends included
        drawn += low
        steps = _work(work, self.unit, base)
        return replace(base, steps=steps, loss_rate=loss_rate, latency=steps * self.step_seconds)

    @classmethod
    def figure4(cls) -> Any:
        """FedACS figure 4, right."""
        return cls(slow_loss=(0.2, 0.4), fast_loss=(0.0, 0.2))


@settings
class HybridPlus(System):
    """FedAWARE's Hybrid+: every round each client draws its own number of epochs and its own batch size.

    Batch sizes are uniform on [smallest_batch, samples); a client with no more samples than that uses all of them.
    """

    epochs: Counts = (2, 5)
    smallest_batch: PositiveInt = 10
    step_seconds: StepSeconds = 0.1
    replaces: ClassVar[tuple[str, ...]] = ("steps", "batch_size")

    def population(self, base: Population, round: int, seed: int) -> Population:
        rng = rng_for(seed, round, Stream.SYSTEM)
        epochs = rng.integers(*self.epochs, base.size, endpoint=True)
        drawn = rng.integers(self.smallest_batch, np.maximum(base.samples, self.smallest_batch + 1))
        batch_size = np.where(base.samples > self.smallest_batch, drawn, base.samples)
        steps = steps_of(epochs, base.samples, batch_size)
        return replace(base, steps=steps, batch_size=batch_size, latency=steps * self.step_seconds)


@settings
class Latency(System):
    """Each client has its own seconds per participation, drawn once, uniform on ``seconds`` (latency paper).

    ``law`` "lognormal" has the same minimum and mean, but a heavy tail; ``sigma`` is the spread of the logarithms.
    """

    seconds: Seconds = (0.0, 1.0)
    law: Literal["uniform", "lognormal"] = "uniform"
    sigma: PositiveFloat = 1.0

    def population(self, base: Population, round: int, seed: int) -> Population:
        (low, high), rng = self.seconds, rng_for(seed, 0, Stream.SYSTEM)
        if self.law == "lognormal":
            draws = np.exp(self.sigma * rng.standard_normal(base.size) - self.sigma**2 / 2) / 2
        else:  # 1 − U lies in (0, 1]: no latency is exactly zero
            draws = 1 - rng.random(base.size)
        return replace(base, latency=low + (high - low) * draws)

    @classmethod
    def heavy_tailed(cls) -> Any:
        """Log-normal seconds: one client in ten is at least 3.6 times as slow as the median."""
        return cls(law="lognormal")
