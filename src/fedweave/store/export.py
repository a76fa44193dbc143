"""Export the rows of a run as CSV or Parquet files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.runs.results import Columns, Result


def write_tables(result: Result, to: Literal["csv", "parquet"]) -> list[Path]:
    """Write rounds and clients into the run folder and return the files."""
    assert result.folder is not None
    write = _write_csv if to == "csv" else _write_parquet
    files = []
    for name, columns in (("rounds", _flat(result.rounds)), ("clients", result.clients)):
        files.append(result.folder / f"{name}.{to}")
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
