"""What commands print: tables, and during runs nothing, progress, or progress with all details."""

from __future__ import annotations

import sys

from rich.console import Console

from fedweave.cli.parameters import Talk
from fedweave.cli.signals import heed
from fedweave.core.errors import BadInput
from fedweave.runs.callbacks import Callback, Given, Running
from fedweave.runs.refusals import Refusals


def screen(least: int = 100) -> Console:
    """Return where tables are printed: as wide as the terminal, and wide enough for them when written to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, least))


def beside_progress(talk: Talk) -> list[Given]:
    """Return the callbacks that are there with or without progress: warnings, particulars, and the end by a signal."""
    return [*([Refusals(_warn)] if talk.quiet else []), *([Particulars()] if talk.verbose else []), heed]


def check(talk: Talk) -> None:
    """Refuse what contradicts itself."""
    if talk.quiet and talk.verbose:
        raise BadInput("--quiet and --verbose exclude each other.")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


class Particulars(Callback):
    """Reports what a run works with, from its manifest."""

    def begin(self, run: Running) -> None:
        """Print software, processor, trainer, data and model of a run that begins."""
        for line in particulars(run):
            print(f"{run.label}: {line}", file=sys.stderr)


def particulars(run: Running) -> list[str]:
    """Return lines about what a run works with."""
    facts, samples, model = run.manifest, run.manifest["samples"], run.manifest["model"]
    spread = f" with {min(samples)} to {max(samples)} samples, {sum(samples)} in all" if samples else ""
    dealt = f", partition: {facts['partition']}" if "partition" in facts else ""  # neither fleets nor older runs say
    return [
        f"software: {', '.join(f'{name} {number}' for name, number in facts['versions'].items())}",
        f"processor: {', '.join(facts['processor'].values())}",
        f"trainer: {facts['trainer']}, device: {facts['device']}",
        f"data: {facts['data']['name']}, {facts['clients']} clients{spread}{dealt}",
        f"model: {model['name']}, {model['parameters']} parameters; task: {facts['task']['name']}",
        f"folder: {run.folder or 'none'}" + (f", continued after round {run.rounds_done}" if run.rounds_done else ""),
    ]
