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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.base.errors import UserError
from harness.simulator.output import written_whole
from harness.simulator.timeline import (
    KINDS,
    Contributions,
    Decodes,
    Digest,
    Folds,
    Pieces,
    Restarts,
    Spans,
    Timeline,
)

__all__ = ["load_timeline", "save_segments", "save_timeline"]

_TABLES: dict[str, Any] = {
    "folds": Folds,
    "contributions": Contributions,
    "spans": Spans,
    "restarts": Restarts,
    "decodes": Decodes,
    "pieces": Pieces,
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


def save_timeline(timeline: Timeline, path: str | Path) -> str:
    """Write one Parquet file, whole or not at all, and return its SHA-256 (`Timeline.sha256`)."""
    return save_segments([timeline], path)


def save_segments(parts: Iterable[Timeline], path: str | Path) -> str:
    """Write successive parts of one timeline as they come; returns the SHA-256 of the whole.

    No more than a part is held in memory, and what was lost or is in flight: those rows come
    after all that folded. A file that was written in parts loads as one that was not.

    Args:
        parts: in order; as in `concat`, only the last one's rows in flight count.
        path: appears when all parts are written.

    Raises:
        ValueError: parts differ in their span kinds.
    """
    digest, kinds, last, lost = Digest(), None, Contributions(), list[Contributions]()
    with (
        written_whole(Path(path), "the timeline") as draft,
        pq.ParquetWriter(draft, _SCHEMA, compression="zstd") as writer,
    ):

        def put(table: str, rows: Any) -> None:
            digest.add(table, rows)
            if len(rows):
                writer.write_table(_long(table, rows.columns(), len(rows)))

        for part in parts:
            if len(part.folds) or len(part.spans) or kinds is None:
                if kinds not in (None, part.kinds):
                    raise ValueError(f"span kinds {part.kinds} follow {kinds}")
                kinds = part.kinds
            for table, rows in part.tables().items():
                put(table, part.folded() if table == "contributions" else rows)
            lost += [part.lost()] if len(part.lost()) else []
            last = part.in_flight()
        for rows in (*lost, last):
            if len(rows):
                put("contributions", rows)
        sha256 = digest.hexdigest(kinds or KINDS)
        notes = {"kinds": json.dumps(kinds or KINDS), "sha256": sha256}
        writer.add_key_value_metadata({**notes, "format": "lagbench timeline 2"})
    return sha256


def _long(name: str, columns: dict[str, Any], rows: int) -> pa.Table:
    """One of the tables with every column of the file, null where it has none."""
    arrays = [pa.array([name], pa.string()).take(pa.array(np.zeros(rows, np.int64)))]
    for column, kind in _TYPES.items():
        values = columns.get(column)
        arrays.append(pa.nulls(rows, kind) if values is None else pa.array(values, kind))
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def load_timeline(path: str | Path) -> Timeline:
    """Read what `save_timeline` wrote, and check it against its SHA-256.

    Raises:
        UserError: not a timeline, or its content does not match its hash.
    """
    try:
        everything = pq.read_table(path)
        notes = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot read a timeline ({reason})") from error
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
