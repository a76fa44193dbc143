"""Which of two methods is better, over seeds: paired t intervals, equivalence, many tests, smallest detectable effects.

Values are one number per seed, in the same order of seeds for both methods; each seed has its own partition, model,
world and cohorts, shared by the methods, so that differences are taken seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedweave.core.records import Array

Verdict = Literal["better", "worse", "equal", "undecided"]
LEVEL = 0.05  # of a two-sided test, so that an interval covers 95 %
POWER = 0.8


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, ours − theirs, with its t interval."""

    mean: float
    deviation: float  # standard deviation of the differences
    seeds: int
    level: float = LEVEL

    @property
    def error(self) -> float:
        """Standard error of the mean; nan with one seed."""
        return float(self.deviation / np.sqrt(self.seeds))

    @property
    def interval(self) -> tuple[float, float]:
        """The t interval at this level; infinite with one seed."""
        return self._interval(self.level)

    def _interval(self, level: float) -> tuple[float, float]:
        if self.seeds < 2:
            return -np.inf, np.inf
        half = self._critical(level) * self.error
        return self.mean - half, self.mean + half

    @property
    def detectable(self) -> float:
        """The smallest true difference that so many seeds with this spread find with a probability of 80 %.

        The noncentrality δ of a noncentral t with n − 1 degrees of freedom that exceeds the critical value with that
        probability, times the standard error.
        """
        if self.seeds < 2:
            return np.inf
        from scipy.special import nctdtrinc

        return float(nctdtrinc(self.seeds - 1, 1 - POWER, self._critical(self.level))) * self.error

    def _critical(self, level: float) -> float:
        """Return the quantile of the t distribution that an interval reaches to."""
        from scipy.special import stdtrit  # loading it takes longer than starting the command line

        return float(stdtrit(self.seeds - 1, 1 - level / 2))

    def p_above(self, margin: float = 0.0) -> float:
        """Return the one-sided p value of "the true difference is larger than the margin"."""
        if self.seeds < 2:
            return 1.0
        gap = self.mean - margin
        if self.error == 0:  # the same difference for every seed
            return 0.0 if gap > 0 else 1.0
        from scipy.special import stdtr

        return float(stdtr(self.seeds - 1, -gap / self.error))

    def p_below(self, margin: float = 0.0) -> float:
        """Return the one-sided p value of "the true difference is smaller than the margin"."""
        return Difference(-self.mean, self.deviation, self.seeds, self.level).p_above(-margin)

    def p_equal(self, margin: float) -> float:
        """Return the p value of "the true difference is within ± margin": the larger of two one-sided tests."""
        return max(self.p_above(-margin), self.p_below(margin)) if margin > 0 else 1.0

    def p_unequal(self, margin: float) -> float:
        """Return the p value of "the true difference is outside ± margin", on whichever side it was seen."""
        return min(1.0, 2 * min(self.p_above(margin), self.p_below(-margin)))

    def verdict(self, margin: float = 0.0) -> Verdict:
        """Return better or worse where the interval excludes zero, else equal where it is shown within ± margin.

        Equality takes two one-sided tests at the level itself: the interval of twice the level lies within ± margin.
        """
        if self.p_above() <= self.level / 2:
            return "better"
        if self.p_below() <= self.level / 2:
            return "worse"
        return "equal" if self.p_equal(margin) <= self.level else "undecided"


def paired_difference(
    ours: Sequence[float] | Array, theirs: Sequence[float] | Array, higher_is_better: bool = True, level: float = LEVEL
) -> Difference:
    """Return by how much ours is better than theirs, seed by seed; seeds where either is missing (nan) count for none.

    A better value is a positive difference, also where lower is better.
    """
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"Paired values must be one number per seed each. Got shapes {a.shape} and {b.shape}.")
    gap = (a - b if higher_is_better else b - a)[np.isfinite(a) & np.isfinite(b)]
    if not gap.size:
        return Difference(np.nan, np.nan, 0, level)
    return Difference(float(gap.mean()), float(gap.std(ddof=1)) if gap.size > 1 else np.nan, gap.size, level)


def mean_over_seeds(values: Sequence[float] | Array) -> Difference:
    """Return the mean of one number per seed with its t interval; missing ones (nan) are left out."""
    return paired_difference(values, np.zeros(len(values)))


def censored(times: Sequence[float | None] | Array, end: float | Array) -> Array:
    """Return times to a target where a run that never reached it (None, nan, inf) counts as later than its end.

    Leaving such runs out would favour whoever fails (survivor bias). ``end`` is the first time that was not observed:
    R + 1 for rounds.
    """
    found = np.array([np.nan if t is None else t for t in times], float)
    return np.where(np.isfinite(found), found, end)


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values: rejecting those below a level keeps the chance of any false one below it."""
    order, m = np.argsort(p, kind="stable"), len(p)
    steps = np.maximum.accumulate([min(1.0, (m - i) * p[k]) for i, k in enumerate(order)]) if m else []
    return _unsort(order, steps)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return Benjamini and Hochberg's adjusted p values, which bound the expected share of false rejections."""
    order, m = np.argsort(p, kind="stable"), len(p)
    steps = [min(1.0, m / (i + 1) * p[k]) for i, k in enumerate(order)]
    return _unsort(order, np.minimum.accumulate(steps[::-1])[::-1] if m else [])


def _unsort(order: Array, values: Sequence[float] | Array) -> list[float]:
    found = [1.0] * len(order)
    for k, value in zip(order, values, strict=True):
        found[k] = float(value)
    return found
