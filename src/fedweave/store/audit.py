"""The audit log: one line per client asked, each with a digest of itself and of all lines before it.

Editing, dropping or moving a line breaks the chain at that line; cutting the end contradicts the digest in the
database. The chain starts from the experiment's settings. Keep a copy of the last digest elsewhere (``fedweave
verify`` prints it) to detect a log that was rewritten as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.core.crash_points import crash_point
from fedweave.core.settings import BadInput
from fedweave.core.typed_json import parse_json
from fedweave.store.contents import AuditLine
from fedweave.tables.files import open_inside, read_bytes

FILE = "audit.jsonl"


class End(NamedTuple):
    """The end of a log: its length in bytes, and the digest of its last line."""

    bytes: int
    chain: str


class Audit:
    """Writes the log of one run; lines are buffered until the state of their round is saved."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._waiting: list[tuple[int, list[str]]] = []
        self.end = End(0, initial_digest(folder))

    def note(self, round: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Buffer one round's lines; they are written with its state."""
        self._waiting.append((round, [text_of({"round": round, **line}) for line in lines]))

    def write(self, round: int) -> End:
        """Append the buffered lines up to this round and return the new end of the log."""
        lines = [line for r, some in self._waiting for line in some if r <= round]
        if not lines:
            self._waiting = []
            return self.end
        chain, text = self.end.chain, list[str]()
        for line in lines:
            chain = digest_of(chain, line)
            text.append(f'{line[:-1]}, "chain": "{chain}"}}\n')
        content = "".join(text).encode()
        with open_inside(self._path, "ab") as file:
            crash_point("audit opened")
            file.truncate(self.end.bytes)  # removes part of a line left by a full disk
            file.write(content)
            file.flush()
            crash_point("audit written")
            os.fsync(file.fileno())
        self._waiting = []
        self.end = End(self.end.bytes + len(content), chain)
        return self.end

    def rewind(self, end: End | None) -> None:
        """Remove what was written after ``end``, because those rounds run again; without ``end``, remove everything."""
        self.end = end or End(0, initial_digest(self._path.parent))
        self._waiting = []
        if self._path.exists():
            crash_point("audit rewinding")
            with open_inside(self._path, "r+b") as file:
                file.truncate(self.end.bytes)


def initial_digest(folder: Path) -> str:
    """Return the digest that the first line is chained to: that of the run's original settings."""
    return hashlib.sha256(read_bytes(folder / "experiment.json")).hexdigest()


def text_of(line: Mapping[str, Any]) -> str:
    """Return a line as it is written, without its digest."""
    return json.dumps(line, sort_keys=True)


def digest_of(chain: str, text: str) -> str:
    """Return the digest of a line that follows the one with the digest ``chain``."""
    return hashlib.sha256(f"{chain}\n{text}".encode()).hexdigest()


def check(folder: Path, end: End) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    """Yield (number, line, problem) for each line up to the recorded end of the log; stop at the first problem."""
    chain = initial_digest(folder)
    content = read_bytes(folder / FILE)
    lines = content[: end.bytes].split(b"\n")
    for number, text in enumerate(lines[:-1], 1):
        try:
            line = dict(parse_json(text, AuditLine, f"{FILE}:{number}"))
        except BadInput:
            yield number, None, "is not a line of an audit log"
            return
        recorded = line.pop("chain")
        chain = digest_of(chain, text_of(line))
        if recorded != chain:
            yield number, line, "does not follow from the lines before it"
            return
        yield number, line, ""
    if len(content) < end.bytes or lines[-1] or chain != end.chain:
        yield len(lines), None, "is missing: the log was cut here"
