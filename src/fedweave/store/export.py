"""Export the rows of a run as CSV or Parquet files, and its model as a state dict."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from fedweave.core.crash_points import crash_point
from fedweave.core.records import Array
from fedweave.core.settings import BadInput
from fedweave.store.states import in_order
from fedweave.tables.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

Columns = Mapping[str, Array]


def write_tables(
    folder: Path, rounds: Columns, clients: Columns, to: Literal["csv", "parquet"], scores: Columns | None = None
) -> list[Path]:
    """Write the rows per round and per client, and scores of clients if any, into a run folder; return the files."""
    write = _write_csv if to == "csv" else _write_parquet
    tables, files = {"rounds": _flat(rounds), "clients": clients}, list[Path]()
    if scores and scores["value"].size:
        tables["client_scores"] = scores
    for name, columns in tables.items():
        files.append(folder / f"{name}.{to}")
        with replacing(files[-1]) as file:
            write(file, {n: c.astype(np.int64) if c.dtype == bool else c for n, c in columns.items()})
        crash_point("export: table written")
    return files


def write_summary(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as CSV, with a column for each key of any of them; what is None is left empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    with replacing(path) as file:
        _write_csv(file, {name: np.array([row.get(name) for row in rows], object) for name in names})
    return path


def write_model(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write a state dict to a .pt or .safetensors file; the latter has ``facts`` as metadata."""
    import torch
    from safetensors.torch import save

    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(path) as file:
        if path.suffix == ".pt":
            torch.save(kept, file)
        else:
            file.write(in_order(save(kept, metadata={"format": "pt", **facts})))


def _flat(columns: Columns) -> dict[str, Array]:
    """Return the columns with one column per class in place of ``class_accuracy``."""
    flat = {name: column for name, column in columns.items() if column.ndim == 1}
    per_class = columns["class_accuracy"]
    return {**flat, **{f"class_{c}_accuracy": per_class[:, c] for c in range(per_class.shape[1])}}


def _write_csv(file: IO[bytes], columns: Columns) -> None:
    text = io.TextIOWrapper(file, newline="", encoding="utf-8")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*(c.tolist() for c in columns.values()), strict=True))
    text.detach()  # flushes, and leaves the file open


def _write_parquet(file: IO[bytes], columns: Columns) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise BadInput("Parquet needs pyarrow: pip install 'fedweave[data]', or export --to csv.") from None
    pq.write_table(pa.table(dict(columns)), file)
