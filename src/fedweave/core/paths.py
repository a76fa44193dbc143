"""Names that become paths or imports: what they may hold, and whose word is enough to follow them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from fedweave.core.errors import BadInput, brief

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


class _Source(NamedTuple):
    """Who names something, and how what they name can be used nevertheless."""

    who: str
    way: str


FOLDER = _Source("a run folder", "If you trust the folder, resume with --trust (in Python with trust=True).")
SERVER = _Source("the server", "Import its module in the client's app.")
_untrusted: ContextVar[_Source | None] = ContextVar("_untrusted", default=None)


@contextmanager
def _named_by(source: _Source | None) -> Generator[None]:
    token = _untrusted.set(source)
    try:
        yield
    finally:
        _untrusted.reset(token)


def from_run_folder(trust: bool) -> AbstractContextManager[None]:
    """Build settings that a run folder holds: without trust they may not name files to read or modules to import."""
    return _named_by(None if trust else FOLDER)


def from_server() -> AbstractContextManager[None]:
    """Build settings that a server sends to a client: of parts that the client's app has imported itself."""
    return _named_by(SERVER)


def check_path(path: str | Path) -> None:
    """Refuse a path that only a run folder names: the folder may be somebody else's."""
    if source := _untrusted.get():
        raise BadInput(f"This run reads {brief(str(path))!r}, a path that {source.who} names. {source.way}")


def check_import(*plugins: str) -> None:
    """Refuse to import plug-ins that only a run folder or a message names."""
    if plugins and (source := _untrusted.get()):
        names = brief(", ".join(plugins), 300)
        raise BadInput(f"Plug-ins are not imported because {source.who} names them: {names}. {source.way}")
