"""Read a fleet from a CSV file, and compare the expected cost of several ways to sample its clients."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.core.records import Array
from fedweave.core.settings import BadInput, nearest
from fedweave.solve import LatencyPlan, latency_plan
from fedweave.solve.clients import Clients
from fedweave.solve.latency_plan import evaluate_plan

COLUMNS = ("client", "latency_seconds", "samples", "gradient_bound")
_CHECKS: dict[str, tuple[Callable[[str], Any], str]] = {
    "latency_seconds": (float, "a number > 0"),
    "samples": (int, "a whole number > 0"),
    "gradient_bound": (float, "a number > 0"),
}
MOST_SIZES = 200  # cohort sizes to try for a given law


def read_clients(path: Path) -> Clients:
    """Read CLIENTS.csv; report all errors at once, with line and column."""
    path = path.expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
    except OSError as e:
        raise BadInput(
            f"The client file {str(path)!r} cannot be read: {e.strerror}. Its columns are {', '.join(COLUMNS)}."
        ) from None
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}: the client file is not text: {e}.") from None
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file)
        problems = _header(f"{path}:1", list(reader.fieldnames or ()))
        if problems:
            raise BadInput(*problems)
        first_seen: dict[str, int] = {}
        rows = [_row(path, reader.line_num, cells, first_seen, problems) for cells in reader]
    if len(rows) < 2 and not problems:
        found = "there are no rows" if not rows else "the column 'client' names one client only"
        problems.append(f"{path}:{len(rows) + 1}: {found}: a plan needs at least two to choose between.")
    if problems:
        raise BadInput(*problems)
    columns = {name: np.array([row[name] for row in rows], float) for name in _CHECKS}
    names = tuple(str(row["client"]) for row in rows)
    return Clients(
        name=names, latency=columns["latency_seconds"], samples=columns["samples"], bound=columns["gradient_bound"]
    )


def _header(where: str, header: list[str]) -> list[str]:
    """Return the problems of the header line."""
    valid = f"Valid: {', '.join(COLUMNS)}."
    unknown = [f"{where}: there is no column {h!r}.{nearest(h, COLUMNS)} {valid}" for h in header if h not in COLUMNS]
    missing = [f"{where}: the column {c!r} is missing. {valid}" for c in COLUMNS if c not in header]
    twice = [f"{where}: the column {c!r} appears twice." for c in COLUMNS if header.count(c) > 1]
    return unknown + missing + twice


def _row(
    path: Path, line: int, cells: dict[Any, Any], first_seen: dict[str, int], problems: list[str]
) -> dict[str, Any]:
    """Return the values of a line; add what is wrong with it to ``problems``."""
    where = f"{path}:{line}"
    problems += [f"{where}: there is a cell beyond the last column. Got {b!r}." for b in cells.pop(None, ())]
    name = (cells["client"] or "").strip()
    if not name:
        problems.append(f"{where}: the column 'client' is empty.")
    elif first_seen.setdefault(name, line) != line:
        problems.append(f"{where}: the column 'client' repeats {name!r} of line {first_seen[name]}.")
    values: dict[str, Any] = {"client": name}
    for column, (convert, rule) in _CHECKS.items():
        text = cells[column] or ""
        try:
            values[column] = convert(text)
        except ValueError:
            values[column] = np.nan
        if not 0 < values[column] < np.inf:
            problems.append(f"{where}: the column {column!r} must be {rule}. Got {text!r} instead.")
    return values


def compare_laws(
    clients: Clients, alpha: float, epsilon: float, cohort: int | None, floor: float = 0.0, exhaustive: bool = False
) -> dict[str, LatencyPlan]:
    """Return the plan and the expected costs of norm, uniform and ratio selection, each at its own best M."""
    sizes = None if cohort is None else [cohort]
    given = (clients.latency, clients.data_factor, alpha, epsilon)
    plan = latency_plan(*given, sizes, floor=floor, exhaustive=exhaustive)
    score: Mapping[str, Array] = {
        "norm": clients.weight * clients.bound,
        "uniform": np.ones(clients.weight.size),
        "ratio": clients.weight,
    }
    n = clients.weight.size
    tried = sizes or sorted({plan.cohort_size, *np.rint(np.geomspace(1, n, min(n, MOST_SIZES))).astype(int).tolist()})
    others = {
        name: min((evaluate_plan(s / s.sum(), *given, M) for M in tried), key=lambda law: law.total_seconds)
        for name, s in score.items()
    }
    return {"planned": plan, **others}
