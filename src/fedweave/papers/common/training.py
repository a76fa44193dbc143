"""The experiments of one data set at one scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fedweave.data import Dataset
from fedweave.papers.common.parallel import Key, Progress, run_seeds
from fedweave.papers.common.scale import ImageSize, Scale, load_samples
from fedweave.runs.experiment import Experiment
from fedweave.runs.loop import run
from fedweave.runs.results import Result


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
