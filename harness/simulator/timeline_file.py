# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
"""A timeline as one Parquet file.

The tables lie below one another in one long table whose column ``table`` names them;
columns a table lacks are null. So any Parquet reader can filter and use it, and rows can be
appended while a simulation runs. The metadata holds the span kinds and the SHA-256.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UserError
from harness.simulator.output import written_whole
from harness.simulator.timeline import Contributions, Decodes, Folds, Restarts, Spans, Timeline

__all__ = ["load", "save"]

_TABLES: dict[str, Any] = {
    "folds": Folds,
    "contributions": Contributions,
    "spans": Spans,
    "restarts": Restarts,
    "decodes": Decodes,
}
_TYPES = {
    "fold": pa.int64(),
    "time_s": pa.float64(),
    "worker": pa.int32(),
    "read_version": pa.int64(),
    "read_time_s": pa.float64(),
    "first_step": pa.int64(),
    "steps": pa.int32(),
    "decode_version": pa.int64(),
    "kind": pa.int32(),
    "start_s": pa.float64(),
    "end_s": pa.float64(),
    "version": pa.int64(),
    "restored_version": pa.int64(),
    "slot": pa.int32(),
    "utterance": pa.int64(),
    "decode_time_s": pa.float64(),
}
_SCHEMA = pa.schema([("table", pa.string()), *_TYPES.items()])


def save(timeline: Timeline, path: Path) -> str:
    """Write ``timeline`` atomically; returns its SHA-256."""
    digest = timeline.sha256()
    notes = {"kinds": json.dumps(timeline.kinds), "sha256": digest, "format": "lagbench timeline 2"}
    schema = _SCHEMA.with_metadata(notes)
    with (
        written_whole(path, "the timeline") as draft,
        pq.ParquetWriter(draft, schema, compression="zstd") as writer,
    ):
        for name, rows in timeline.tables().items():
            writer.write_table(_long(name, rows.columns(), len(rows)))
    return digest


def _long(name: str, columns: dict[str, Any], rows: int) -> pa.Table:
    """One of the tables with every column of the file, null where it has none."""
    arrays = [pa.array([name], pa.string()).take(pa.array(np.zeros(rows, np.int64)))]
    for column, kind in _TYPES.items():
        values = columns.get(column)
        arrays.append(pa.nulls(rows, kind) if values is None else pa.array(values, kind))
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def load(path: Path) -> Timeline:
    """Read a timeline and check it against its SHA-256."""
    try:
        everything = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot read a timeline ({reason})") from error
    notes = everything.schema.metadata or {}
    if not everything.schema.equals(_SCHEMA) or not {b"kinds", b"sha256"} <= set(notes):
        raise UserError(f"{path}: not a timeline; allowed: a file that lagbench saved")
    names = everything.column("table").to_numpy()
    parts = {name: _rows(kind, everything, names == name) for name, kind in _TABLES.items()}
    timeline = Timeline(**parts, kinds=tuple(json.loads(notes[b"kinds"])))
    if timeline.sha256() != notes[b"sha256"].decode():
        raise UserError(f"{path}: the timeline's content does not match its SHA-256")
    return timeline


def _rows(kind: Any, everything: pa.Table, keep: Any) -> Any:
    """One table out of the long one."""
    rows = everything.filter(pa.array(keep))
    columns = kind.__dataclass_fields__
    found = {name: rows.column(name).combine_chunks() for name in columns}
    present = {
        name: column.to_numpy(zero_copy_only=False)
        for name, column in found.items()
        if column.null_count == 0 and not (name == "decode_version" and len(column) == 0)
    }
    return kind(**present)
