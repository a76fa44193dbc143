"""Export the rows of a run as CSV or Parquet files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from fedweave.core.records import Array
from fedweave.core.settings import BadInput

Columns = Mapping[str, Array]


def write_tables(folder: Path, rounds: Columns, clients: Columns, to: Literal["csv", "parquet"]) -> list[Path]:
    """Write the rows per round and per client into a run folder and return the files."""
    write = _write_csv if to == "csv" else _write_parquet
    files = []
    for name, columns in (("rounds", _flat(rounds)), ("clients", clients)):
        files.append(folder / f"{name}.{to}")
        write(files[-1], columns)
    return files


def _flat(columns: Columns) -> dict[str, Array]:
    """Return the columns with one column per class in place of ``class_accuracy``."""
    flat = {name: column for name, column in columns.items() if column.ndim == 1}
    per_class = columns["class_accuracy"]
    return {**flat, **{f"class_{c}_accuracy": per_class[:, c] for c in range(per_class.shape[1])}}


def _write_csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(c.tolist() for c in columns.values()), strict=True))


def _write_parquet(path: Path, columns: Columns) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise BadInput("Parquet needs pyarrow: pip install 'fedweave[data]', or export --to csv.") from None
    pq.write_table(pa.table(dict(columns)), path)
