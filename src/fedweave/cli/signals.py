"""Ctrl-C and SIGTERM: the run ends with its state saved, and whoever stopped it is told how to go on."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedweave.runs.experiment import Experiment
    from fedweave.runs.loop import OnRound, Watch

stopped: list[int] = []  # the signals that came


def stop(number: int, _: Any) -> None:
    """Handle a signal: note it, and end what is under way as Ctrl-C does."""
    stopped.append(number)
    raise KeyboardInterrupt


def heeding(watch: Watch) -> Watch:
    """Stop after a round in which a signal was lost: Python drops what a handler raises in the midst of a finalizer."""

    def begin(name: str, experiment: Experiment) -> OnRound:
        told = watch(name, experiment)

        def heed(row: Mapping[str, Any]) -> None:
            told(row)
            if stopped:
                raise KeyboardInterrupt

        return heed

    return begin


@contextmanager
def resumable(folder: Path) -> Generator[None]:
    """Let whoever is stopped know the folder to go on from, as soon and as long as there is one."""
    try:
        yield
    except KeyboardInterrupt as e:
        if any((folder / name).is_file() for name in ("run.sqlite", "compare.json")):
            e.__dict__.setdefault("folder", folder)
        raise
