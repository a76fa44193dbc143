"""A world read from a CSV file: availability, steps, loss rate, seconds and link rates per client, over the rounds."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, PositiveInt, ValidationInfo

from fedweave.core.paths import check_path
from fedweave.core.records import MOST_SECONDS, MOST_STEPS, Array, Population
from fedweave.core.roles import System
from fedweave.core.settings import BadInput, brief, nearest, settings
from fedweave.sample.fedcs import link_seconds
from fedweave.system.devices import LEAST, MBIT, MOST
from fedweave.system.measured import FASTEST
from fedweave.system.wireless import add_links

COLUMNS = (
    *("client", "round", "on", "off", "available", "steps", "loss_rate", "seconds"),
    *("compute_seconds", "up_mbit", "down_mbit"),
)
APART = (  # columns that say the same thing in two ways
    ({"on", "off"}, {"round", "available"}, "say when the client is available"),
    ({"seconds"}, {"compute_seconds", "up_mbit", "down_mbit"}, "say how long a participation takes"),
)
TOGETHER = ({"on", "off"}, {"up_mbit", "down_mbit"})


class _Row(NamedTuple):
    round: int
    client: int
    values: dict[str, float]
    where: str


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
    """A column ``client`` (0, 1, …), and any of the others; what is not in the file is as ``inner`` has it.

    ``available`` (0/1), ``steps``, ``loss_rate`` and ``seconds`` hold from the ``round`` of their row on until the
    client's next row; without a ``round`` column they hold from the first round. An empty cell and a client without
    rows keep what they had. Instead of ``round`` and ``available`` a row can have ``on`` and ``off``: a client with
    such rows is available from ``on`` until just before ``off`` (empty: for good), and not otherwise.
    With a column ``seconds``, those of a whole participation whatever is sent, bytes take no time for any client.
    Instead of it a row can have ``compute_seconds``, ``up_mbit`` and ``down_mbit``: then bytes count. A link without a
    rate takes no time.
    ``repeat``: after so many rounds the trace begins again.
    """

    path: Annotated[Path, AfterValidator(_named)]
    # Of the file, set on creation: a resumed run must find the same world.
    sha256: Annotated[str, AfterValidator(_check_file)] = Field(default="", validate_default=True)
    inner: System | None = None  # the nominal clients
    repeat: PositiveInt | None = None

    def population(self, base: Population, round: int, seed: int) -> Population:
        last, columns = read_trace(self.path, self.sha256)
        if last >= base.size:  # now, not in the round of its first row
            raise BadInput(f"{self.path}: client {last} is in the trace, but there are only {base.size} clients.")
        now = (round - 1) % self.repeat + 1 if self.repeat else round
        before = replace(base, steps=columns["steps"].fill(base.steps, now))  # for worlds that take seconds from steps
        before = self.inner.population(before, round, seed) if self.inner else before
        changed = {name: columns[name].fill(getattr(before, name), now) for name in ("available", "steps", "loss_rate")}
        return _with_seconds(replace(before, **changed), columns, now)


def _with_seconds(p: Population, columns: Mapping[str, _Column], round: int) -> Population:
    """Return the clients with the trace's seconds and rates, if it has any."""
    if not any(columns[name].client.size for name in COLUMNS[-4:]):
        return p
    if columns["seconds"].client.size:  # whatever is sent
        return replace(p, latency=columns["seconds"].fill(p.latency, round), up_rate=None, down_rate=None)
    compute = columns["compute_seconds"].fill(np.maximum(p.latency - sum(link_seconds(p)), 0), round)
    if p.up_rate is None and not columns["up_mbit"].client.size and not columns["down_mbit"].client.size:
        return replace(p, latency=compute)
    free = np.full(p.size, FASTEST / MBIT)
    up, down = (
        MBIT * columns[name].fill(free if rate is None else rate / MBIT, round)
        for name, rate in (("up_mbit", p.up_rate), ("down_mbit", p.down_rate))
    )
    return add_links(p, compute, up, down)


class _Column(NamedTuple):
    """The filled cells of one column, in order of rounds."""

    round: Array
    client: Array
    value: Array

    def fill(self, values: Array, round: int) -> Array:
        """Return the values (N,) with those that the trace has by this round."""
        if not self.client.size:
            return values
        filled = np.array(values)
        so_far = slice(np.searchsorted(self.round, round, side="right"))
        filled[self.client[so_far]] = self.value[so_far]  # rows are sorted by round, so later ones win
        return filled


@cache
def read_trace(path: Path, sha256: str) -> tuple[int, dict[str, _Column]]:
    """Return the last client and the columns by name; ``sha256`` identifies the file in the cache."""
    rows = _rows(path)
    columns = {}
    for name in COLUMNS[4:]:
        filled = [(row.round, row.client, row.values[name]) for row in rows if name in row.values]
        round, client, value = (np.array(c) for c in zip(*filled, strict=True)) if filled else (np.empty(0, int),) * 3
        columns[name] = _Column(round, client, value)
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
        header = list(reader.fieldnames or ())
        if "seconds" not in header:  # as a file of clients for `fedweave plan` calls it
            reader.fieldnames = header = ["seconds" if name == "latency_seconds" else name for name in header]
        problems = [
            f"{path}:1: there is no column {h!r}.{nearest(h, COLUMNS)} Valid: {', '.join(COLUMNS)}."
            for h in header
            if h not in COLUMNS
        ]
        problems += [f"{path}:1: {problem}" for problem in _header_problems(set(header))]
        if problems:
            raise BadInput(*problems)
        rows = [_row(f"{path}:{reader.line_num}", cells, problems) for cells in reader]
    if not rows:
        problems.append(f"{path}: there are no rows.")
    if not problems and "on" in header:
        rows = _switched(rows, problems)
    if problems:
        raise BadInput(*problems)
    return sorted(rows, key=lambda row: row.round)  # stable: within a round the file's order


def _header_problems(header: set[str]) -> list[str]:
    problems = [] if "client" in header else ["the column 'client' is missing."]
    for one, other, what in APART:
        if one & header and other & header:
            names = [" and ".join(repr(name) for name in COLUMNS if name in part & header) for part in (one, other)]
            problems.append(f"{names[0]} and {names[1]} both {what}: leave one of them out.")
    for pair in TOGETHER:
        if len(pair & header) == 1:
            problems.append(
                f"the column {(pair - header).pop()!r} is missing, which goes with {(pair & header).pop()!r}."
            )
    return problems


def _switched(rows: list[_Row], problems: list[str]) -> list[_Row]:
    """Return rows that switch their clients on, and between them rows that switch them off."""
    switched, until = list[_Row](), dict[int, float]()
    for row in sorted(rows, key=lambda row: (row.client, row.round)):
        off = row.values.pop("off", np.inf)
        if row.round < until.get(row.client, 0):
            problems.append(f"{row.where}: client {row.client} is on already in round {row.round}.")
        if off <= row.round:
            problems.append(f"{row.where}: the column 'off' must be after 'on'. Got {off:g} instead.")
        if row.client not in until:
            switched.append(_Row(1, row.client, {"available": 0.0}, row.where))
        switched.append(_Row(row.round, row.client, {**row.values, "available": 1.0}, row.where))
        switched += [_Row(int(off), row.client, {"available": 0.0}, row.where)] if np.isfinite(off) else []
        until[row.client] = off
    return switched  # in the order of a client's rounds: who is switched off and on in a round is on


_CHECKS: dict[str, tuple[Callable[[str], float], Callable[[float], bool], str]] = {
    "client": (int, lambda v: v >= 0, "a whole number >= 0"),
    "round": (int, lambda v: v >= 1, "a whole number >= 1"),
    "on": (int, lambda v: v >= 1, "a whole number >= 1"),
    "off": (int, lambda v: v >= 2, "a whole number >= 2"),
    "available": (int, lambda v: v in (0, 1), "0 or 1"),
    "steps": (int, lambda v: 1 <= v <= MOST_STEPS, f"a whole number from 1 to {MOST_STEPS}"),
    "loss_rate": (float, lambda v: 0 <= v < 1, "a number in [0, 1)"),
    "seconds": (float, lambda v: 0 < v <= MOST_SECONDS, f"a number > 0, at most {MOST_SECONDS:g}"),
    "compute_seconds": (float, lambda v: 0 < v <= MOST_SECONDS / 10, f"a number > 0, at most {MOST_SECONDS / 10:g}"),
    "up_mbit": (float, lambda v: LEAST <= v <= MOST, f"a number from {LEAST:g} to {MOST:g}"),
    "down_mbit": (float, lambda v: LEAST <= v <= MOST, f"a number from {LEAST:g} to {MOST:g}"),
}


def _row(where: str, cells: dict[Any, Any], problems: list[str]) -> _Row:
    values: dict[str, float] = {}
    for beyond in cells.pop(None, ()):  # where csv puts cells without a column
        problems.append(f"{where}: there is a cell beyond the last column. Got {beyond!r}.")
    for column, text in cells.items():
        if text is None or not text.strip():
            if column in ("client", "on"):
                problems.append(f"{where}: the column {column!r} is empty.")
            continue
        convert, allowed, what = _CHECKS[column]
        try:
            value = convert(text)
        except (TypeError, ValueError):
            value = np.nan
        if not allowed(value):
            problems.append(f"{where}: the column {column!r} must be {what}. Got {text!r} instead.")
        values[column] = value
    client, round_ = values.pop("client", -1), values.pop("round", values.pop("on", 1))
    return _Row(int(np.nan_to_num(round_)), int(np.nan_to_num(client)), values, where)
