"""Names that become paths: what they may hold, and whose word is enough for a file to be read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from fedweave.core.settings import BadInput, brief

MOST_BYTES = 200  # of a name: folders of runs add a seed, and at most 255 bytes are allowed


def check_name(name: str) -> str:
    """Return a name that becomes a file or folder; refuse one that would lead somewhere else."""
    bad = not name.isprintable() or name.startswith(".") or any(sign in name for sign in "/\\:")
    if bad or not name or len(name.encode()) > MOST_BYTES:
        raise BadInput(
            f"The name {brief(name)!r} cannot be used for a file: it must have 1 to {MOST_BYTES} bytes, without / \\ : "
            "and control characters, and must not begin with a dot."
        )
    return name


FileName = Annotated[str, AfterValidator(check_name)]

_trusted: ContextVar[bool] = ContextVar("_trusted", default=True)


@contextmanager
def from_run_folder(trust: bool) -> Generator[None]:
    """Build settings that a run folder holds: without trust they may not name files to read."""
    token = _trusted.set(trust)
    try:
        yield
    finally:
        _trusted.reset(token)


def check_path(path: str | Path) -> None:
    """Refuse a path that only a run folder names: the folder may be somebody else's."""
    if not _trusted.get():
        raise BadInput(
            f"This run reads {brief(str(path))!r}, a path that its run folder names. If you trust the folder, "
            "resume with --trust (in Python with trust=True)."
        )
