"""Read a fleet from a CSV file or a run folder, and compare the expected cost of several ways to sample its clients."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedweave.core.records import Array, Population
from fedweave.core.settings import BadInput, nearest
from fedweave.sample import LatencyOptimal
from fedweave.solve import LatencyPlan, latency_plan
from fedweave.solve.clients import Clients
from fedweave.solve.latency_plan import evaluate_plan
from fedweave.store.run_folder import RunFolder
from fedweave.tables.files import shown_path

COLUMNS = ("client", "latency_seconds", "samples", "gradient_bound")
_CHECKS: dict[str, tuple[Callable[[str], Any], str]] = {
    "latency_seconds": (float, "a number > 0"),
    "samples": (int, "a whole number > 0"),
    "gradient_bound": (float, "a number > 0"),
}
OPTIONAL = ("samples", "gradient_bound")
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
    return Clients(
        name=tuple(str(row["client"]) for row in rows),
        latency=columns["latency_seconds"],
        samples=columns["samples"],
        bound=columns["gradient_bound"],
        assumed=tuple(name for name in OPTIONAL if name not in (reader.fieldnames or ())),
    )


class Measured(NamedTuple):
    """The clients of a run as its rows show them."""

    clients: Clients
    alpha: float  # by eq. 27, over the first rounds
    trial: int  # how many
    negative: bool  # whether eq. 27 is, so that α has its least value
    unheard: int  # clients that never answered and count as average ones


def read_run(folder: Path) -> Measured:
    """Estimate latencies, gradient bounds and α of a run folder's clients as ``LatencyOptimal`` does in its trial."""
    with closing(RunFolder.open(folder, write=False)) as store:
        rows, manifest, experiment = store.columns("clients"), store.manifest, store.experiment
    where = shown_path(folder)
    # runs of older versions list labels only
    samples = manifest.get("samples") or [sum(row) for row in manifest.get("labels") or ()]
    heard = (rows["received"] > 0) & np.isfinite(rows["first_gradient"])
    problems = []
    if len(samples) < 2:
        problems.append(f"{where} does not say how many samples each of at least two clients has.")
    if not heard.any():
        problems.append(f"{where} has no gradient norms (column first_gradient), as runs of older versions have not.")
    if np.isnan(rows["expected"]).any():
        problems.append(f"{where} has no sampling probabilities (column expected): its sampler has no law.")
    if problems:
        raise BadInput(*problems, "Measure the clients with a run such as: fedweave run latency_ratio --rounds 20")
    equal = experiment.get("weights") == "equal"
    size = np.ones(len(samples)) if equal else np.asarray(samples, float)
    one = np.ones(size.size)
    population = Population(
        weight=size / size.sum(), samples=size, steps=one, batch_size=one, loss_rate=0 * one, latency=one,
        available=one > 0,
    )  # fmt: skip
    sampler = LatencyOptimal(1, latency="observed")
    (square, latency, alpha), printed = sampler.estimates_from(rows, population)
    names = tuple(map(str, range(size.size)))
    clients = Clients(name=names, latency=latency, samples=size, bound=np.sqrt(square))
    trial = min(sampler.trial, np.unique(rows["round"][heard]).size)
    return Measured(clients, alpha, trial, printed < alpha, size.size - np.unique(rows["client"][heard]).size)


def _header(where: str, header: list[str]) -> list[str]:
    """Return the problems of the header line."""
    valid = f"Valid: {', '.join(COLUMNS)}."
    unknown = [f"{where}: there is no column {h!r}.{nearest(h, COLUMNS)} {valid}" for h in header if h not in COLUMNS]
    missing = [f"{where}: the column {c!r} is missing. {valid}" for c in COLUMNS if c not in (*header, *OPTIONAL)]
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
        text = "1" if column in OPTIONAL and column not in cells else cells[column] or ""
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
