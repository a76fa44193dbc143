"""A world read from a CSV file: availability, steps, loss rate and seconds per client, over the rounds."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo

from fedweave.core.paths import check_path
from fedweave.core.records import MOST_SECONDS, MOST_STEPS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, brief, nearest, settings

COLUMNS = ("client", "round", "available", "steps", "loss_rate", "seconds")


class _Row(NamedTuple):
    round: int
    client: int
    values: dict[str, float]


def _named(path: Path) -> Path:
    check_path(path)
    return Path(os.path.expanduser(path)).absolute()


def _check_file(sha256: str, info: ValidationInfo) -> str:
    """Return the digest of the trace file; report a broken or changed file now, not in the middle of a run."""
    path = info.data.get("path")
    if path is None:  # which was wrong already
        return sha256
    found = hashlib.sha256(_content(path)).hexdigest()
    if sha256 not in ("", found):
        raise BadInput(f"The trace file {str(path)!r} has changed: its SHA-256 was {sha256}, it is {found}.")
    read_trace(path, found)
    return found


@settings
class Trace(System):
    """Columns ``client`` (0, 1, …), and any of ``round``, ``available`` (0/1), ``steps``, ``loss_rate``, ``seconds``.

    A row holds from its round on until the client's next row; without a ``round`` column it holds from the first
    round. An empty cell and a client without rows keep the nominal value.
    """

    path: Annotated[Path, AfterValidator(_named)]
    # Of the file, set on creation: a resumed run must find the same world.
    sha256: Annotated[str, AfterValidator(_check_file)] = Field(default="", validate_default=True)

    def population(self, base: Population, round: int, seed: int) -> Population:
        last, columns = read_trace(self.path, self.sha256)
        if last >= base.size:  # now, not in the round of its first row
            raise BadInput(f"{self.path}: client {last} is in the trace, but there are only {base.size} clients.")
        changed = {}
        for name, column in columns.items():
            values = np.array(getattr(base, name))
            so_far = slice(np.searchsorted(column.round, round, side="right"))
            values[column.client[so_far]] = column.value[so_far]  # rows are sorted by round, so later ones win
            changed[name] = values
        return replace(base, **changed)


class _Column(NamedTuple):
    """The filled cells of one column, in order of rounds."""

    round: Array
    client: Array
    value: Array


@cache
def read_trace(path: Path, sha256: str) -> tuple[int, dict[str, _Column]]:
    """Return the last client and the columns as fields of Population; ``sha256`` identifies the file in the cache."""
    rows = _rows(path)
    columns = {}
    for name in ("available", "steps", "loss_rate", "seconds"):
        filled = [(row.round, row.client, row.values[name]) for row in rows if name in row.values]
        round, client, value = (np.array(c) for c in zip(*filled, strict=True)) if filled else (np.empty(0, int),) * 3
        columns["latency" if name == "seconds" else name] = _Column(round, client, value)
    return max(row.client for row in rows), columns


def _content(path: Path) -> bytes:
    if not os.path.isfile(path):
        raise BadInput(
            f"There is no trace file {brief(str(path), 300)!r}. A trace is a CSV file with the columns "
            f"{', '.join(COLUMNS)}."
        )
    try:
        return path.read_bytes()
    except OSError as e:
        raise BadInput(f"{path}: the trace file cannot be read: {e}.") from None


def _rows(path: Path) -> list[_Row]:
    """Return the rows sorted by round; report all errors at once, with line and column."""
    try:
        text = _content(path).decode("utf-8-sig")  # spreadsheets write a byte-order mark
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}: the trace file cannot be read: {e}.") from None
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames or []
        problems = [
            f"{path}:1: there is no column {h!r}.{nearest(h, COLUMNS)} Valid: {', '.join(COLUMNS)}."
            for h in header
            if h not in COLUMNS
        ]
        if "client" not in header:
            problems.append(f"{path}:1: the column 'client' is missing.")
        if problems:
            raise BadInput(*problems)
        rows = [_row(f"{path}:{reader.line_num}", cells, problems) for cells in reader]
    if not rows:
        problems.append(f"{path}: there are no rows.")
    if problems:
        raise BadInput(*problems)
    return sorted(rows, key=lambda row: row.round)  # stable: within a round the file's order


_CHECKS: dict[str, tuple[Callable[[str], float], Callable[[float], bool], str]] = {
    "client": (int, lambda v: v >= 0, "a whole number >= 0"),
    "round": (int, lambda v: v >= 1, "a whole number >= 1"),
    "available": (int, lambda v: v in (0, 1), "0 or 1"),
    "steps": (int, lambda v: 1 <= v <= MOST_STEPS, f"a whole number from 1 to {MOST_STEPS}"),
    "loss_rate": (float, lambda v: 0 <= v < 1, "a number in [0, 1)"),
    "seconds": (float, lambda v: 0 < v <= MOST_SECONDS, f"a number > 0, at most {MOST_SECONDS:g}"),
}


def _row(where: str, cells: dict[Any, Any], problems: list[str]) -> _Row:
    values: dict[str, float] = {}
    for beyond in cells.pop(None, ()):  # where csv puts cells without a column
        problems.append(f"{where}: there is a cell beyond the last column. Got {beyond!r}.")
    for column, text in cells.items():
        if text is None or not text.strip():
            if column == "client":
                problems.append(f"{where}: the column 'client' is empty.")
            continue
        convert, allowed, what = _CHECKS[column]
        try:
            value = convert(text)
        except (TypeError, ValueError):
            value = np.nan
        if not allowed(value):
            problems.append(f"{where}: the column {column!r} must be {what}. Got {text!r} instead.")
        values[column] = value
    client, round_ = values.pop("client", -1), values.pop("round", 1)
    return _Row(int(np.nan_to_num(round_)), int(np.nan_to_num(client)), values)
