"""Names that become paths or imports: what they may hold, and whose word is enough to follow them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
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

_way: ContextVar[str] = ContextVar("_way", default="")  # how to allow it to whoever is not trusted; empty: trusted


@contextmanager
def _told_by_others(way: str) -> Generator[None]:
    token = _way.set(way)
    try:
        yield
    finally:
        _way.reset(token)


def from_run_folder(trust: bool) -> AbstractContextManager[None]:
    """Build settings that a run folder holds: without trust they may not name files to read or modules to import."""
    way = "If you trust the folder, resume with --trust (in Python with trust=True)."
    return _told_by_others("" if trust else way)


def from_server() -> AbstractContextManager[None]:
    """Build settings that a server sends to its clients: they are made of what a client has imported itself."""
    return _told_by_others("Import it in the client's app too.")


def check_path(path: str | Path) -> None:
    """Refuse a path that only a run folder names: the folder may be somebody else's."""
    if way := _way.get():
        raise BadInput(f"This run reads {brief(str(path))!r}, a path that its run folder names. {way}")


def check_import(plugin: str) -> None:
    """Refuse to import what only a run folder or a message names."""
    if way := _way.get():
        raise BadInput(f"{brief(plugin)!r} is a plug-in that is not imported because others name it. {way}")
