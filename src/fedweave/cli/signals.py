"""Ctrl-C and SIGTERM: save the state, end the run and say how to resume it."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

stopped: list[int] = []  # the signals received


def stop(number: int, _: Any) -> None:
    """Handle a signal: record it, and interrupt the program as Ctrl-C does."""
    stopped.append(number)
    raise KeyboardInterrupt


def heed(_: Mapping[str, Any]) -> None:
    """Stop after a round if a signal was lost: Python discards what a handler raises during a finalizer."""
    if stopped:
        raise KeyboardInterrupt


@contextmanager
def unmasked() -> Generator[None]:
    """Raise an interrupt as such where a module that is being loaded makes another error of it.

    C code makes an ImportError, and Python itself a RuntimeError where a class is being made.
    """
    try:
        yield
    except (ImportError, RuntimeError) as e:
        if not stopped or not (isinstance(e, ImportError) or isinstance(e.__cause__, KeyboardInterrupt)):
            raise
        raise KeyboardInterrupt from e


@contextmanager
def resumable(folder: Path) -> Generator[None]:
    """Attach the folder to a KeyboardInterrupt if the run can be resumed from it."""
    try:
        with unmasked():
            yield
    except KeyboardInterrupt as e:
        if any(os.path.isfile(folder / name) for name in ("run.sqlite", "compare.json")):
            e.__dict__.setdefault("folder", folder)
        raise
