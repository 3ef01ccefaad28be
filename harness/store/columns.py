# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow ships no stubs; this module is the only one of the store that meets it)
"""Logged rows, as rows, as arrays and as a Parquet file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.base.errors import UserError
from harness.store import atomic

MetricRow = dict[str, Any]
Columns = dict[str, np.ndarray]

# the columns every row has; further ones are float64 and NaN where a row has none
TYPES: dict[str, type] = {
    "name": str,
    "value": np.float64,
    "fold": np.int64,
    "time_s": np.float64,
    "epoch": np.float64,
}
ARROW = {"name": pa.string(), "fold": pa.int64()}


def columns_of(rows: Sequence[MetricRow]) -> Columns:
    """Rows as equally long arrays: the common columns, then the further ones by name."""
    further = sorted({key for row in rows for key in row} - TYPES.keys())
    columns: Columns = {key: np.array([r[key] for r in rows], TYPES[key]) for key in TYPES}
    for key in further:
        columns[key] = np.array([row.get(key, math.nan) for row in rows], np.float64)
    return columns


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns as one Parquet file, atomically."""
    arrays = {
        key: pa.array(array.tolist(), ARROW.get(key, pa.float64()))
        for key, array in columns.items()
    }
    with atomic.replacing(path) as temporary:
        pq.write_table(pa.table(arrays), temporary)


def read_columns(path: Path) -> Columns:
    """Read what ``write_columns`` wrote.

    Raises:
        UserError: the file is damaged.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not a whole file of metrics ({first})") from None
    return {
        key: np.array(table.column(key).to_pylist(), TYPES.get(key, np.float64))
        for key in table.column_names
    }
