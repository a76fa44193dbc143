"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import fedweave as fw


class StopAfter(fw.Callback):
    """Presses Ctrl-C once this round of this run is done: the run-th that begins, or that of a method."""

    def __init__(self, round, run=1):
        self._round, self._run, self._begun = round, run, []

    def begin(self, run):
        self._begun.append(run)

    def round(self, run, row, state):
        mine = run.name == self._run if isinstance(self._run, str) else self._begun.index(run) + 1 == self._run
        if mine and row["round"] == self._round:
            raise KeyboardInterrupt
